"""Bouncing balls: what events cost, next to solves that are told when the balls bounce, diffrax and torchdiffeq.

    python -m benchmarks.events                        # 10,000 balls with five bounces each; a few minutes
    python -m benchmarks.events --device cuda
    python -m benchmarks.events --balls 50 --turns 1 --rows ncode "ncode, told"   # does it run?

Every ball has its own gravity, height and restitution; a step is the times of its bounces and the gradient of their
weighted sum with respect to all three, in double precision at rtol = 1e-6 and atol = 1e-8. Errors are those against the
closed form. All rows run in turn in one process. The fastest turns count, in processor time on a CPU.

- "ncode", "ncode, compiled": one solve with an event that resets the state.
- "ncode, told": a chain of five solves that end at the times of the closed form. What events cost is the time of
  "ncode" over that of this row. The chain keeps its graphs for the backward pass, which solves with events do not;
  "ncode, told, states kept" is the same chain with `keep="states"`, where the backward pass evaluates steps again, too.
- "diffrax, checkpointed", "diffrax, forward mode": a scan over five solves that end at an event, mapped over the balls
  and jitted. Forward mode suits this problem: it has three inputs per ball, and no more.
- "torchdiffeq": five solves by `odeint_event` per ball. A batch can only share one event there, so that balls are
  solved one by one: some of them, and the time is multiplied.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .environment import describe, prepare

BOUNCES = 5
T1 = 100.0
TOLERANCE = {"rtol": 1e-6, "atol": 1e-8}
ROWS = (
    *("ncode", "ncode, compiled", "ncode, told", "ncode, told, states kept"),
    *("diffrax, checkpointed", "diffrax, forward mode"),
    "torchdiffeq",
)


@dataclass(eq=False)
class Balls:
    """The problem: one number per ball each, and the weights of the times in the loss."""

    gravity: Any
    height: Any
    restitution: Any
    weights: Any

    @property
    def inputs(self) -> list[Any]:
        return [self.gravity, self.height, self.restitution]

    def start(self) -> Any:
        import torch

        return torch.stack([self.height, torch.zeros_like(self.height)], 1)

    def closed_form(self) -> Any:
        """The times of the bounces, (balls, bounces)."""
        import torch

        times = [(2 * self.height / self.gravity).sqrt()]
        speed = (2 * self.gravity * self.height).sqrt()
        for _ in range(BOUNCES - 1):
            speed = speed * self.restitution
            times.append(times[-1] + 2 * speed / self.gravity)
        return torch.stack(times, 1)


@dataclass(eq=False)
class Way:
    """One row: how it is run, and how its results are read."""

    forward: Callable[[], Any]
    step: Callable[[], Any]  # forward and backward
    read: Callable[[Any], tuple[Any, list[Any]]] | None  # times and gradients as tensors; None if it was told them
    scale: float = 1.0  # balls of the problem over balls that are solved
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"forward": [], "step": []})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--balls", type=int, default=10_000)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rows", nargs="*", choices=ROWS, default=ROWS)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    prepare(arguments.device, 1)
    found = measure(arguments)
    command = "python -m benchmarks.events " + shlex.join(sys.argv[1:])
    result = {"command": command.strip(), "seed": arguments.seed, **describe(arguments.device, 1), **found}
    print(json.dumps(found, indent=1))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds and errors of every row."""
    import torch

    balls = make_balls(arguments.balls, arguments.seed, arguments.device)
    ways = {}
    for name in arguments.rows:
        library = name.partition(",")[0]
        if importlib.util.find_spec(library) is None:
            print(f"{library} is not installed: skipped", file=sys.stderr)
        else:
            ways[name] = make_way(name, balls, arguments.device)
    clock = time.perf_counter if arguments.device == "cuda" else time.process_time
    wait = torch.cuda.synchronize if arguments.device == "cuda" else lambda: None
    rows: dict[str, Any] = {name: errors(way, balls) for name, way in ways.items()}
    for turn in range(arguments.turns):
        for way in list(ways.values())[:: -1 if turn % 2 else 1]:
            for part, run in (("forward", way.forward), ("step", way.step)):
                way.seconds[part].append(_seconds(run, clock, wait))
    for name, way in ways.items():
        rows[name] |= {part: way.scale * min(times) for part, times in way.seconds.items()}
        rows[name] |= {f"turns of {part}": [way.scale * it for it in times] for part, times in way.seconds.items()}
    found = {"balls": arguments.balls, "turns": arguments.turns, "rows": rows}
    if "ncode" in rows:
        told = {name: row["step"] for name, row in rows.items() if name.startswith("ncode, told")}
        found["ratios"] = {name: rows["ncode"]["step"] / seconds for name, seconds in told.items()}
    return found


def make_balls(balls: int, seed: int, device: str) -> Balls:
    import torch

    generator = torch.Generator().manual_seed(seed)
    draws = torch.rand(3, balls, dtype=torch.float64, generator=generator).to(device).unbind()
    inputs = [it.requires_grad_() for it in (9 + draws[0], 1 + draws[1], 0.6 + 0.3 * draws[2])]
    return Balls(*inputs, weights=torch.linspace(0.5, 2, BOUNCES, dtype=torch.float64, device=device))


def make_way(name: str, balls: Balls, device: str) -> Way:
    library, _, kind = name.partition(", ")
    if library == "diffrax":
        from .events_diffrax import by_diffrax

        return by_diffrax(balls, kind, device)
    if library == "torchdiffeq":
        return by_torchdiffeq(balls)
    if kind.startswith("told"):
        return by_told_times(balls, keep="states" if kind.endswith("states kept") else "auto")
    return by_events(balls, compile=kind == "compiled")


def with_autograd(run: Callable[[], Any], balls: Balls, told: bool = False) -> Way:
    """A row that computes with torch."""
    import torch

    def step() -> tuple[Any, list[Any]]:
        result = run()
        loss = result.sum() if told else (result * balls.weights).sum()
        return result.detach(), list(torch.autograd.grad(loss, balls.inputs, allow_unused=told))

    return Way(run, step, None if told else lambda result: result)


def fall(t: Any, x: Any, theta: Any) -> Any:
    import torch

    return torch.stack([x[:, 1], -theta[0]], 1)


def turn_round(t: Any, x: Any, theta: Any) -> Any:
    import torch

    return torch.stack([torch.zeros_like(x[:, 0]), -theta[1] * x[:, 1]], 1)


def by_events(balls: Balls, compile: bool) -> Way:
    import ncode

    ground = ncode.Event(lambda t, x, theta: x[:, 0], direction=-1, reset=turn_round, max_count=BOUNCES)

    def run() -> Any:
        theta = balls.gravity, balls.restitution
        sol = ncode.solve(fall, balls.start(), 0.0, T1, theta=theta, events=ground, compile=compile, **TOLERANCE)
        return sol.events[0].ts

    return with_autograd(run, balls)


def by_told_times(balls: Balls, keep: str) -> Way:
    import torch

    import ncode

    times = balls.closed_form().detach()

    def run() -> Any:
        theta = balls.gravity, balls.restitution
        x, t = balls.start(), torch.zeros_like(balls.gravity)
        for end in times.unbind(1):
            x = ncode.solve(fall, x, t, end, theta=theta, keep=keep, **TOLERANCE).x
            x, t = turn_round(t, x, theta), end
        return x

    return with_autograd(run, balls, told=True)


def by_torchdiffeq(balls: Balls, most: int = 40) -> Way:
    """The first balls, one by one."""
    import torch
    import torchdiffeq

    some = Balls(*(it.detach()[:most].clone().requires_grad_() for it in balls.inputs), weights=balls.weights)

    def ball(gravity: Any, height: Any, restitution: Any) -> Any:
        zero, found = torch.zeros_like(height), []
        t, x = zero.detach(), torch.stack([height, zero])
        for _ in range(BOUNCES):
            t, xs = torchdiffeq.odeint_event(
                *(lambda t, x: torch.stack([x[1], -gravity]), x, t),
                # The height alone is 0 just after a bounce, which torchdiffeq takes for an event.
                event_fn=lambda t, x: torch.where(x[1] > 0, x[1], x[0]),
                method="dopri5",
                **TOLERANCE,
            )
            x = torch.stack([zero, -restitution * xs[-1, 1]])
            found.append(t)
        return torch.stack(found)

    way = with_autograd(lambda: torch.stack([ball(*one) for one in zip(*some.inputs, strict=True)]), some)
    way.scale = len(balls.gravity) / len(some.gravity)
    return way


def errors(way: Way, balls: Balls) -> dict[str, float]:
    """The first step, its time with compiling, and the largest errors."""
    import torch

    start = time.perf_counter()
    result = way.step()
    found: dict[str, float] = {"first_seconds": time.perf_counter() - start}
    way.forward()  # compiles, too
    if way.read is None:
        return found
    times, gradients = way.read(result)
    solved = len(times)
    expected = balls.closed_form()
    exact = torch.autograd.grad((expected * balls.weights).sum(), balls.inputs)
    pairs = zip(gradients, exact, strict=True)
    return found | {
        "solved_balls": solved,
        "error_of_times": float((times - expected.detach()[:solved]).abs().max()),
        "error_of_gradients": max(float((a - b[:solved]).abs().max()) for a, b in pairs),
    }


def _seconds(run: Callable[[], Any], clock: Callable[[], float], wait: Callable[[], None]) -> float:
    wait()
    begin = clock()
    run()
    wait()
    return clock() - begin


if __name__ == "__main__":
    main()
