"""A training step of a continuous normalising flow: `ncode.flows.Flow`, torchdiffeq's example cnf.py, and diffrax.

    python -m benchmarks.cnf                  # on the CPU with one thread; about twenty minutes, most of them compiling
    python -m benchmarks.cnf --quick          # one turn, nothing compiled: does all run?

The problem is that of torchdiffeq's example: 512 points on two circles, a field with one hidden layer whose weights a
hypernetwork makes from t, t from 10 to 0, dopri5 at tolerances of 1e-5, and the exact divergence. A step is the
log-likelihood of the batch and its gradient, at the first weights and at trained ones. Three fields:

- "example": the operations of torchdiffeq's example.
- "layers": the same function as two linear layers.
- "time": a network 3-64-64-2 with t as an input, which needs no hypernetwork.

The first two compute their weights once per evaluation, for one t, so that ncode takes one step size for the batch as
torchdiffeq does (`step="batch"`); the last one has a step size per sample. All libraries evaluate the same field with
the same weights, in turn, in one process with one thread; the ratio compares the fastest turns in processor time.
diffrax takes one step size for the batch, which is faster there for "time", too, and its whole step is jitted. Errors
are those against torchdiffeq in double precision at tolerances of 1e-9. Samples start from the same draws of the base.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import math
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .environment import describe, prepare

if TYPE_CHECKING:
    from torch import Tensor

PEERS = ("torchdiffeq", "diffrax")
FIELDS = ("example", "layers", "time")
ENTRIES = (
    *("torchdiffeq odeint", "torchdiffeq odeint_adjoint"),
    *("diffrax checkpointed", "diffrax backsolve"),
    *("ncode eager", "ncode compiled"),
)
T1, TOLERANCE, WIDTH = 10.0, 1e-5, 64


def make_field(name: str) -> Any:
    """A module f(t, x) with t of shape (1,) or (batch,)."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Hypernetwork(nn.Module):
        """The weights of a network 2-64-2 at a time: (2, width), (width,) and (width, 2)."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
            self.head = nn.Linear(32, 7 * WIDTH)

        def forward(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            w, u, gate, b = self.head(self.layers(t[:1, None]))[0].split((2 * WIDTH, 2 * WIDTH, 2 * WIDTH, WIDTH))
            return w.reshape(WIDTH, 2), b, (u * gate.sigmoid()).reshape(WIDTH, 2)

    class Example(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = Hypernetwork()

        def forward(self, t: Tensor, x: Tensor) -> Tensor:
            w, b, u = self.weights(t)
            copies = x[None].repeat(WIDTH, 1, 1)
            hidden = torch.tanh(copies @ w[:, :, None] + b[:, None, None])
            return (hidden @ u[:, None]).mean(0)

    class Layers(Example):
        def forward(self, t: Tensor, x: Tensor) -> Tensor:
            w, b, u = self.weights(t)
            return torch.tanh(F.linear(x, w, b)) @ (u / WIDTH)

    class TimeInput(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(3, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
            self.head = nn.Linear(WIDTH, 2)

        def forward(self, t: Tensor, x: Tensor) -> Tensor:
            inputs = torch.cat([x, (t / T1).expand(len(x))[:, None]], 1)
            return self.head(self.layers(inputs)) / T1

    return {"example": Example, "layers": Layers, "time": TimeInput}[name]()


def circles(n: int) -> Tensor:
    """Points on two circles of radius 1 and 1/2, with noise."""
    import torch

    angle, radius = 2 * math.pi * torch.rand(n), torch.where(torch.arange(n) % 2 == 0, 1.0, 0.5)
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1) + 0.06 * torch.randn(n, 2)


def make_base(dtype: Any = None) -> Any:
    import torch

    return torch.distributions.MultivariateNormal(torch.zeros(2, dtype=dtype), 0.1 * torch.eye(2, dtype=dtype))


class WithAutograd:
    """What the entries that compute with torch have in common."""

    def log_prob(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def stepper(self, x: Tensor, parameters: list[Any]) -> Callable[[], Any]:
        """A training step: the negative log-likelihood, and its gradient."""
        import torch

        def step() -> tuple[float, list[Tensor]]:
            loss = -self.log_prob(x).mean()
            return float(loss.detach()), list(torch.autograd.grad(loss, parameters))

        return step

    def read(self, result: Any) -> tuple[float, list[Tensor]]:
        return result


class Torchdiffeq(WithAutograd):
    """The flow as torchdiffeq's example solves it: state and change of log p in one tuple."""

    def __init__(self, field: Any, adjoint: bool, tolerance: float = TOLERANCE):
        import torchdiffeq
        from torch import nn

        class Joint(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.field, self.count = field, 0

            def forward(self, t: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
                import torch

                self.count += 1
                with torch.enable_grad():
                    x = state[0].requires_grad_()
                    slope = self.field(t.reshape(1), x)
                    rows = [torch.autograd.grad(slope[:, i].sum(), x, create_graph=True)[0][:, i] for i in range(2)]
                return slope, -(rows[0] + rows[1])

        self.joint = Joint()
        self.options = {"rtol": tolerance, "atol": tolerance, "method": "dopri5"}
        self.odeint = torchdiffeq.odeint_adjoint if adjoint else torchdiffeq.odeint

    def _solve(self, x: Tensor, times: list[float]) -> tuple[Tensor, Tensor]:
        import torch

        start = x.clone(), x.new_zeros(len(x))
        xs, changes = self.odeint(self.joint, start, torch.tensor(times, dtype=x.dtype), **self.options)
        return xs[-1], changes[-1]

    def log_prob(self, x: Tensor) -> Tensor:
        z, change = self._solve(x, [T1, 0.0])
        return make_base(x.dtype).log_prob(z) - change

    def samples(self, z: Tensor) -> Tensor:
        return self._solve(z, [0.0, T1])[0].detach()

    def evaluations(self, x: Tensor) -> list[int]:
        """In forward and backward."""
        start = self.joint.count
        loss = -self.log_prob(x).mean()
        middle = self.joint.count
        loss.backward()
        return [middle - start, self.joint.count - middle]


class Ncode(WithAutograd):
    """The same flow by `ncode.flows.Flow`."""

    def __init__(self, field: Any, step: str, compile: bool):
        import ncode

        self.flow = ncode.flows.Flow(
            ncode.dynamics.Function(Field(field)),
            make_base(),
            t1=T1,
            rtol=TOLERANCE,
            atol=TOLERANCE,
            step=step,
            compile=compile,
        )

    def log_prob(self, x: Tensor) -> Tensor:
        return self.flow.log_prob(x)

    def samples(self, z: Tensor) -> Tensor:
        return self.flow.block(z).detach()

    def evaluations(self, x: Tensor) -> list[int]:
        solution = self.flow.to_base(x)
        (solution.x.sum() + solution.cost.sum()).backward()
        return [int(solution.stats.nfe.max()), int(solution.stats.nfe_backward.max())]


def Field(field: Any) -> Any:  # a class that needs torch, which is imported late
    """The field as a function of (t, x, theta)."""
    from torch import nn

    class WithControl(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.field = field

        def forward(self, t: Tensor, x: Tensor, theta: Any) -> Tensor:
            return self.field(t, x)

    return WithControl()


@dataclass(eq=False)
class Row:
    """One entry on one problem."""

    entry: str
    step: Callable[[], Any]
    first: float  # seconds of the first step, with compiling
    record: dict[str, Any]
    seconds: list[float] = dataclasses.field(default_factory=list)


def distance(found: list[Tensor], expected: list[Tensor]) -> float:
    """The length of the difference over the length of the expected."""
    pairs = list(zip(found, expected, strict=True))
    squares = sum(float((a.double() - b).square().sum()) for a, b in pairs)
    return math.sqrt(squares / sum(float(b.square().sum()) for _, b in pairs))


def train(field: Any, name: str, steps: int, batch: int, compile: bool) -> None:
    import torch

    entry = Ncode(field, "sample" if name == "time" else "batch", compile)
    optimiser = torch.optim.Adam(field.parameters(), 1e-3)
    for _ in range(steps):
        optimiser.zero_grad()
        (-entry.log_prob(circles(batch)).mean()).backward()
        optimiser.step()


def make_entry(label: str, field: Any, name: str) -> Any:
    """One way to solve the flow of one field."""
    library, _, way = label.partition(" ")
    if library == "torchdiffeq":
        return Torchdiffeq(field, way == "odeint_adjoint")
    if library == "ncode":
        return Ncode(field, "sample" if name == "time" else "batch", way == "compiled")
    from .cnf_diffrax import Diffrax

    return Diffrax(field, name, way, (T1, TOLERANCE))


def make_rows(field: Any, name: str, x: Tensor, entries: tuple[str, ...]) -> list[Row]:
    """Every entry on one field: what it computes, checked against the reference, and its first time."""
    import copy

    import torch

    parameters, z = list(field.parameters()), make_base().sample((len(x),))
    double = copy.deepcopy(field).double()
    exact = Torchdiffeq(double, False, 1e-9)
    bits = 1 / (2 * math.log(2))  # per dimension
    loss, gradient = exact.stepper(x.double(), list(double.parameters()))()
    samples, rows = exact.samples(z.double()), []
    for label in entries:
        entry = make_entry(label, field, name)
        step = entry.stepper(x, parameters)
        start = time.perf_counter()
        found, grads = entry.read(step())
        first = time.perf_counter() - start
        record = {
            "bits_per_dimension": found * bits,
            "error_of_bits": abs(found - loss) * bits,
            "relative_error_of_gradient": distance(grads, gradient),
            "largest_error_of_samples": float((entry.samples(z) - samples).abs().max()),
            "evaluations": entry.evaluations(x),
        }
        torch.testing.assert_close(found, loss, rtol=1e-3, atol=1e-3)
        rows.append(Row(label, step, first, record))
    return rows


def measure(rows: list[Row], turns: int) -> None:
    """Time all entries in turn; the first step of a turn does not count."""
    for turn in range(turns):
        for row in rows if turn % 2 else rows[::-1]:
            row.step()
            start = time.process_time()
            row.step()
            row.seconds.append(time.process_time() - start)


def summary(rows: list[Row]) -> list[dict[str, Any]]:
    """One record per entry; `times_faster` compares with the faster way of torchdiffeq, and of diffrax if it ran."""
    peers = {library: [min(row.seconds) for row in rows if row.entry.startswith(library)] for library in PEERS}
    return [
        {
            "entry": row.entry,
            "seconds": min(row.seconds),
            "median_seconds": statistics.median(row.seconds),
            "times_faster": {library: min(times) / min(row.seconds) for library, times in peers.items() if times},
            "first_seconds": row.first,
            **row.record,
        }
        for row in rows
    ]


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.cnf", description="Time a step of a normalising flow.")
    parser.add_argument("--turns", type=int, default=11, help="turns per entry; the fastest counts. Default: 11.")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--train", type=int, default=300, help="steps before the second measurement. Default: 300.")
    parser.add_argument("--fields", nargs="*", choices=FIELDS, default=FIELDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="one turn, few samples, nothing trained or compiled")
    parser.add_argument("--json", type=Path, help="Default: results/bench-cnf-cpu.json, unless --quick.")
    return parser.parse_args(arguments)


def write(path: Path, found: list[dict[str, Any]], seed: int) -> None:
    """Write problems to a file, in place of the same ones and next to the others that are there."""
    old = json.loads(path.read_text())["problems"] if path.exists() else []
    new = {(problem["field"], problem["trained_steps"]) for problem in found}
    kept = [problem for problem in old if (problem["field"], problem["trained_steps"]) not in new]
    problems = sorted(kept + found, key=lambda it: (FIELDS.index(it["field"]), it["trained_steps"]))
    data = {"clock": "processor time", "seed": seed, "tolerance": TOLERANCE, **describe("cpu", threads=1)}
    path.write_text(json.dumps({**data, "problems": problems}, indent=1) + "\n")


def main() -> int:
    options = parse()
    prepare("cpu", threads=1)
    import torch

    left_out = {"ncode compiled"} if options.quick else set()
    if importlib.util.find_spec("diffrax") is None:
        print("diffrax is not installed: skipped", file=sys.stderr)
        left_out |= {label for label in ENTRIES if label.startswith("diffrax")}
    entries = tuple(label for label in ENTRIES if label not in left_out)
    turns, batch = (1, 32) if options.quick else (options.turns, options.batch)
    command = f"python -m benchmarks.cnf {shlex.join(sys.argv[1:])}".strip()
    path = options.json or (None if options.quick else Path("results") / "bench-cnf-cpu.json")
    for name in options.fields:
        for steps in (0,) if options.quick else (0, options.train):
            torch.manual_seed(options.seed)
            field = make_field(name)
            train(field, name, steps, batch, compile=not options.quick)
            rows = make_rows(field, name, circles(batch), entries)
            measure(rows, turns)
            problem = {"field": name, "trained_steps": steps, "batch": batch, "turns": turns, "command": command}
            problem["rows"] = summary(rows)
            print(f"{name}, trained for {steps} steps")
            for row in problem["rows"]:
                faster = "  ".join(f"{it:5.2f} x {library}" for library, it in row["times_faster"].items())
                shown = f"  {row['entry']:28s} {1e3 * row['seconds']:7.1f} ms  {faster}"
                print(f"{shown}  {row['bits_per_dimension']:.5f} bits  evaluations {row['evaluations']}", flush=True)
            if path is not None:
                write(path, [problem], options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
