"""The drop-in for torchdiffeq next to torchdiffeq itself: the time of every method, grid and gradient.

    python -m benchmarks.compat                  # on the CPU with one thread; about fifteen minutes
    python -m benchmarks.compat --quick          # one turn per case: does all run?

A case is a solve, and with a gradient its backward pass too. Both libraries run each case in turn, in one process with
one thread; the ratio compares the fastest turns in processor time, so that other programs disturb it less. "small" is a
network 2-64-2 on 32 samples, where the time is that of the solver; "slow" takes about 8 ms per evaluation, so that the
time is that of the evaluations.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from .environment import describe, prepare

FIXED = ("euler", "midpoint", "heun2", "heun3", "rk4")
ADAPTIVE = ("dopri5", "dopri8", "bosh3", "fehlberg2", "adaptive_heun")
GRADIENTS = ("none", "odeint", "odeint_adjoint")
LIBRARIES = ("ncode", "torchdiffeq")
SLOW = 8e-3  # seconds per evaluation


@dataclass(eq=False)
class Case:
    """One solve in both libraries."""

    field: str
    method: str
    grid: str  # "even", "uneven" or "event"
    gradient: str
    runs: dict[str, Callable[[], Any]]
    evaluations: dict[str, list[int]] = dataclasses.field(default_factory=dict)  # forward and backward
    seconds: dict[str, list[float]] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.field}, {self.method}, {self.grid}, gradient {self.gradient}"

    @property
    def ratio(self) -> float:
        """The fastest turn of ours over that of torchdiffeq."""
        ours, theirs = (min(self.seconds[library]) for library in LIBRARIES)
        return ours / theirs

    def record(self) -> dict[str, Any]:
        medians = {library: statistics.median(times) for library, times in self.seconds.items()}
        return {
            **{key: getattr(self, key) for key in ("field", "method", "grid", "gradient", "ratio", "evaluations")},
            "seconds": {library: min(times) for library, times in self.seconds.items()},
            "median_seconds": medians,
            "turns": len(self.seconds["ncode"]),
        }


def make_fields(seed: int) -> dict[str, tuple[Any, Any, int]]:
    """The fields by name: a module that counts its evaluations, y0 and the number of fixed steps."""
    import torch
    from torch import nn

    class Counting(nn.Module):
        def __init__(self, *sizes: int):
            super().__init__()
            layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.Tanh())]
            self.network, self.count = nn.Sequential(*layers[:-1]), 0

        def forward(self, t: Any, y: Any) -> Any:
            self.count += 1
            return self.network(y)

    torch.manual_seed(seed)
    slow, batch = Counting(64, 1024, 1024, 64), 128
    y = torch.randn(batch, 64)
    with torch.no_grad():
        slow(0.0, y)
        start = time.perf_counter()
        for _ in range(5):
            slow(0.0, y)
        batch = max(1, round(batch * SLOW / ((time.perf_counter() - start) / 5)))
    return {
        "small": (Counting(2, 64, 2), torch.randn(32, 2), 32),
        "slow": (slow, torch.randn(batch, 64), 8),
    }


def cases(fields: dict[str, tuple[Any, Any, int]]) -> Iterator[Case]:
    """Every method, grid and gradient, and events."""
    for name, (func, y0, steps) in fields.items():
        for method in (*FIXED, *ADAPTIVE):
            for grid in ("even", "uneven", "event"):
                if grid == "event" and method not in ("rk4", "dopri5", "bosh3"):
                    continue
                for gradient in GRADIENTS:
                    yield make_case(name, func, y0, steps, method, grid, gradient)


def make_case(name: str, func: Any, y0: Any, steps: int, method: str, grid: str, gradient: str) -> Case:
    import torch
    import torchdiffeq

    from ncode.compat import torchdiffeq as ours

    arguments: dict[str, Any] = {"method": method, "rtol": 1e-3, "atol": 1e-4}
    t = torch.linspace(0.0, 1.0, steps + 1)
    if grid == "uneven":
        t = t**2
    if grid == "event":
        arguments["event_fn"] = lambda t, y: t - 0.71
        arguments["options"] = {"step_size": 1 / steps} if method in FIXED else {}
    start = y0.clone().requires_grad_(gradient != "none")
    parameters = tuple(func.parameters())

    def build(library: Any) -> Callable[[], Any]:
        interface = getattr(library, "odeint_adjoint" if gradient == "odeint_adjoint" else "odeint")

        def solve() -> Any:
            if grid == "event":
                return library.odeint_event(func, start, t[0], odeint_interface=interface, **arguments)[1]
            return interface(func, start, t, **arguments)

        def run() -> Any:
            if gradient == "none":
                with torch.no_grad():
                    y = solve()
                return func.count, y
            y = solve()
            forward = func.count
            return forward, torch.autograd.grad(y[-1].square().mean(), (start, *parameters))[0]

        return run

    runs = {"ncode": build(ours), "torchdiffeq": build(torchdiffeq)}
    case, results = Case(name, method, grid, gradient, runs), []
    for library, run in runs.items():
        before = func.count
        forward, result = run()
        case.evaluations[library] = [forward - before, func.count - forward]
        results.append(result)
    # Not closer: values of torchdiffeq's bosh3 between two steps are off by more than the tolerance.
    torch.testing.assert_close(*results, rtol=0.1, atol=0.05, msg=lambda text: f"{case.name}: {text}")
    return case


def measure(case: Case, turns: int, least: float) -> None:
    """Time a case in turns of at least so many seconds."""
    for turn in range(turns):
        for library in LIBRARIES if turn % 2 else LIBRARIES[::-1]:
            run, steps, start = case.runs[library], 0, time.process_time()
            while steps == 0 or time.process_time() - start < least:
                run()
                steps += 1
            case.seconds.setdefault(library, []).append((time.process_time() - start) / steps)


def mean(ratios: list[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def table(measured: list[Case]) -> str:
    """Ratios as Markdown: one row per field, method and grid, one column per gradient."""
    lines = ["| field | method | grid | " + " | ".join(GRADIENTS) + " |", "|---|---|---|" + "---:|" * len(GRADIENTS)]
    rows: dict[tuple[str, str, str], dict[str, float]] = {}
    for case in measured:
        rows.setdefault((case.field, case.method, case.grid), {})[case.gradient] = case.ratio
    for key, ratios in rows.items():
        cells = [f"{ratios[gradient]:.2f}" if gradient in ratios else "" for gradient in GRADIENTS]
        lines.append("| " + " | ".join((*key, *cells)) + " |")
    return "\n".join(lines)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.compat", description="Time the drop-in and torchdiffeq.")
    parser.add_argument("--turns", type=int, default=9, help="turns per case; the fastest counts. Default: 9.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("small", "slow"), help="one of the two fields")
    parser.add_argument("--methods", nargs="*", help="some of the methods")
    parser.add_argument("--quick", action="store_true", help="one turn per case")
    parser.add_argument("--json", type=Path, help="Default: results/bench-compat-cpu.json, if all cases are measured.")
    return parser.parse_args(arguments)


def main() -> int:
    options = parse()
    prepare("cpu", threads=1)
    fields = make_fields(options.seed)
    fields = {name: it for name, it in fields.items() if options.only in (None, name)}
    measured: list[Case] = []
    for case in cases(fields):
        if options.methods and case.method not in options.methods:
            continue
        turns = 1 if options.quick else options.turns
        measure(case, turns if case.field == "small" else min(turns, 5), 0.0 if options.quick else 0.03)
        measured.append(case)
        print(f"{case.ratio:5.2f}  {case.name}", flush=True)
    ratios = [case.ratio for case in measured]
    worst = max(measured, key=lambda case: case.ratio)
    print(table(measured))
    print(f"geometric mean {mean(ratios):.3f}, worst {worst.ratio:.2f} ({worst.name})")
    path = options.json
    if path is None and not (options.only or options.methods or options.quick):
        path = Path("results") / "bench-compat-cpu.json"
    if path is not None:
        command = f"python -m benchmarks.compat {shlex.join(sys.argv[1:])}".strip()
        data = {"command": command, "clock": "processor time", "seed": options.seed, **describe("cpu", threads=1)}
        data |= {"geometric_mean": mean(ratios), "worst": worst.ratio, "cases": [case.record() for case in measured]}
        path.write_text(json.dumps(data, indent=1) + "\n")
        print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
