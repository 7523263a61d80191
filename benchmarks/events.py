"""Bouncing balls: what events cost, next to solves that end at the bounces because they are told when.

    python -m benchmarks.events                        # 10,000 balls with five bounces each; a minute
    python -m benchmarks.events --device cuda
    python -m benchmarks.events --balls 50 --turns 1   # does it run?

"told" takes the times of the bounces from the closed form and chains five solves by hand; both run in turn, forward and
backward. The errors are those of the times and of their gradients against the closed form, in double precision.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .environment import describe, prepare

BOUNCES = 5
TOLERANCE = {"rtol": 1e-6, "atol": 1e-8}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--balls", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    prepare(arguments.device, 1)
    found = measure(arguments.balls, arguments.turns, arguments.seed, arguments.device)
    command = "python -m benchmarks.events " + shlex.join(sys.argv[1:])
    result = {"command": command.strip(), "seed": arguments.seed, **describe(arguments.device, 1), **found}
    print(json.dumps(found, indent=1))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def measure(balls: int, turns: int, seed: int, device: str) -> dict[str, Any]:
    """Seconds of both, and the errors of events."""
    import torch

    import ncode

    def fall(t: Any, x: Any, theta: Any) -> Any:
        return torch.stack([x[:, 1], -theta[0]], 1)

    def turn(t: Any, x: Any, theta: Any) -> Any:
        return torch.stack([torch.zeros_like(x[:, 0]), -theta[1] * x[:, 1]], 1)

    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(3, balls, dtype=torch.float64, generator=generator).to(device).unbind()
    inputs = [it.requires_grad_() for it in (9 + draws[0], 1 + draws[1], 0.6 + 0.3 * draws[2])]
    gravity, height, restitution = inputs
    ground = ncode.Event(lambda t, x, theta: x[:, 0], direction=-1, reset=turn, max_count=BOUNCES)

    def closed_form() -> Any:
        times, speed = [(2 * height / gravity).sqrt()], (2 * gravity * height).sqrt()
        for _ in range(BOUNCES - 1):
            speed = speed * restitution
            times.append(times[-1] + 2 * speed / gravity)
        return torch.stack(times, 1)

    def start() -> Any:
        return torch.stack([height, torch.zeros_like(height)], 1)

    def events() -> Any:
        sol = ncode.solve(fall, start(), 0.0, 100.0, theta=(gravity, restitution), events=ground, **TOLERANCE)
        return sol.events[0].ts

    expected = closed_form()
    told_times = expected.detach()

    def told() -> Any:
        x, t = start(), torch.zeros_like(gravity)
        for end in told_times.unbind(1):
            x = ncode.solve(fall, x, t, end, theta=(gravity, restitution), **TOLERANCE).x
            x, t = turn(t, x, (gravity, restitution)), end
        return x

    runs = {"events": events, "told": told}
    rounds = [{name: _seconds(run, inputs, device) for name, run in runs.items()} for _ in range(turns + 1)]
    seconds = {name: [it[name] for it in rounds[1:]] for name in runs}
    best = {name: {part: min(it[part] for it in times) for part in times[0]} for name, times in seconds.items()}
    found = events()
    weights = torch.linspace(0.5, 2, BOUNCES, dtype=torch.float64, device=device)
    grads, exact = (torch.autograd.grad((it * weights).sum(), inputs) for it in (found, expected))
    return {
        "balls": balls,
        "turns": turns,
        "seconds": best,
        "ratio": sum(best["events"].values()) / sum(best["told"].values()),
        "error_of_times": float((found - expected).detach().abs().max()),
        "error_of_gradients": max(float((a - b).abs().max()) for a, b in zip(grads, exact, strict=True)),
    }


def _seconds(run: Callable[[], Any], inputs: list[Any], device: str) -> dict[str, float]:
    """Of a forward and a backward pass: processor time on the CPU, wall time on a GPU."""
    import torch

    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    clock = time.perf_counter if device == "cuda" else time.process_time
    wait()
    begin = clock()
    result = run().sum()
    wait()
    middle = clock()
    torch.autograd.grad(result, inputs, allow_unused=True)
    wait()
    return {"forward": middle - begin, "backward": clock() - middle}


if __name__ == "__main__":
    main()
