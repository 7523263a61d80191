"""Eager training steps next to torchdiffeq's, at two tolerances: what own steps and the kept graph cost and save.

    python -m benchmarks.eager                  # on the CPU with one thread; a minute or two
    python -m benchmarks.eager --quick          # one turn, few samples: does all run?

The problems are `mlp-flow` and `plain-node` of the other benchmarks, at rtol 1e-3 with atol 1e-6 and with atol 1e-3.
All entries take their turns in one process with one thread; the ratio compares the first quartiles of the turns in
processor time. Errors are those of x(t1) and of all gradients, relative to a solve in double precision at tolerances of
1e-10.
"""

from __future__ import annotations

import argparse
import functools
import json
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .environment import describe, prepare

ATOLS = (1e-6, 1e-3)
PEER = "torchdiffeq, backprop"
OURS: dict[str, dict[str, Any]] = {
    "ncode": {},
    "ncode, one step size": {"step": "batch"},
    'ncode, keep="states"': {"keep": "states"},
    'ncode, one step size, keep="states"': {"step": "batch", "keep": "states"},
}


def problems(quick: bool, seed: int) -> Iterator[tuple[str, Any]]:
    """The flows by name."""
    from .contest import Settings
    from .workloads import mlp_flow, plain_node

    settings = Settings(device="cpu", seed=seed, quick=quick, peers=(), compile=False)
    yield "mlp-flow", mlp_flow.flow(settings)
    yield "plain-node", plain_node.flow(1024, settings.seed)


def make_steps(flow: Any, atol: float) -> dict[str, Callable[[], Any]]:
    """A training step of every entry: loss, gradients and x(t1)."""
    import torch
    import torchdiffeq

    import ncode

    from .flow import gradients

    x0, weights = flow.leaves("cpu")
    f = next(iter(flow.torch_fields.values()))
    tolerance = {"rtol": flow.rtol, "atol": atol}
    times = torch.tensor([0.0, flow.t1])

    def peer() -> Any:
        x = torchdiffeq.odeint(lambda t, x: f(t, x, weights), x0, times, method="dopri5", **tolerance)[-1]
        return gradients(x, x0, weights)

    def ours(**how: Any) -> Any:
        if flow.shared:
            sol = ncode.solve(lambda t, x, _: f(t, x, weights), x0, 0.0, flow.t1, **tolerance, **how)
        else:
            sol = ncode.solve(f, x0, 0.0, flow.t1, theta=weights, **tolerance, **how)
        return gradients(sol.x, x0, weights)

    return {PEER: peer, **{name: functools.partial(ours, **how) for name, how in OURS.items()}}


def measure(steps: dict[str, Callable[[], Any]], turns: int) -> dict[str, list[float]]:
    """Seconds of each turn."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(turns + 1):
        for name, step in steps.items():
            start = time.process_time()
            step()
            if turn:  # the first one does not count
                seconds[name].append(time.process_time() - start)
    return seconds


def distance(found: Any, expected: Any) -> float:
    """The length of the difference over the length of the expected."""
    squares = sum(float((a.double() - b).square().sum()) for a, b in zip(found, expected, strict=True))
    return (squares / sum(float(b.square().sum()) for b in expected)) ** 0.5


def compare(flow: Any, atol: float, turns: int) -> list[dict[str, Any]]:
    """One record per entry."""
    from .flow import read, reference

    steps, exact = make_steps(flow, atol), reference(flow)
    outcomes = {name: read(step()) for name, step in steps.items()}
    seconds = measure(steps, turns)
    fastest = {name: statistics.quantiles(times, n=4)[0] if turns > 1 else times[0] for name, times in seconds.items()}
    return [
        {
            "entry": name,
            "seconds": fastest[name],
            "ratio": fastest[name] / fastest[PEER],
            "error": distance([outcome.x1], [exact.x1]),
            "gradient_error": distance(outcome.gradients, exact.gradients),
        }
        for name, outcome in outcomes.items()
    ]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.eager", description="Time eager training steps.")
    parser.add_argument("--turns", type=int, default=60, help="turns per entry. Default: 60.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="one turn, few samples")
    parser.add_argument("--json", type=Path, help="Default: results/bench-eager-cpu.json, unless --quick.")
    return parser.parse_args(arguments)


def main() -> int:
    options = parse()
    prepare("cpu", threads=1)
    found = []
    for name, flow in problems(options.quick, options.seed):
        for atol in ATOLS:
            rows = compare(flow, atol, 1 if options.quick else options.turns)
            found.append({"problem": name, "rtol": flow.rtol, "atol": atol, "rows": rows})
            print(f"{name}, rtol {flow.rtol:g}, atol {atol:g}")
            for row in rows:
                errors = f"error {row['error']:.1e}, of gradients {row['gradient_error']:.1e}"
                print(f"  {row['entry']:36s} {1e3 * row['seconds']:6.1f} ms  {row['ratio']:.2f}  {errors}", flush=True)
    path = options.json or (None if options.quick else Path("results") / "bench-eager-cpu.json")
    if path is not None:
        command = f"python -m benchmarks.eager {shlex.join(sys.argv[1:])}".strip()
        data = {"command": command, "clock": "processor time", "seed": options.seed, **describe("cpu", threads=1)}
        path.write_text(json.dumps({**data, "problems": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
