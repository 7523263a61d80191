"""What the sources of a solve and of its pullback share, on every machine: settings, and what a block of samples reads.

A block is what one thread works on: samples side by side in vectors on a CPU (machine_cpu.py), where one that has
finished stands still until the block has; one sample on a GPU (machine_cuda.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ...errors import Status
from ..implicit_tableau import RosenbrockTableau
from ..tableau import Tableau
from .emit_cpp import Printer
from .ir import Buffer, Program, View
from .lower import Lowered


class Work(NamedTuple):
    """How much a source computes, which decides whether it is unrolled."""

    operations: int  # of a step
    largest: int  # elements of the largest array


@dataclass(frozen=True)
class Machine:
    """What differs between machines."""

    prelude: Callable[[torch.dtype, Work], str]  # types and functions
    settings: str  # more members of `Settings`
    memory: str  # `Place`, a block's samples; their numbers in memory; the tape
    run_forward: str  # the entry, which calls `solve_block` for each block
    run_backward: str  # likewise, `pull_block`
    keeps_stages: bool  # whether backward keeps all stages of a step, or evaluates them again one by one


@dataclass(frozen=True)
class Shape:
    """What the source of a solve depends on, apart from its program: numbers of elements, and the method."""

    states: tuple[int, ...]  # elements of each leaf of z
    parts: tuple[tuple[int, int], ...]  # leaves whose errors have one norm: from, to
    controls: tuple[int, ...]  # elements of each constant of a sample
    tableau: Tableau | RosenbrockTableau
    fixed: bool
    saved: int = 0  # leaves of z that are saved at given times; 0 without such times

    @property
    def explicit(self) -> Tableau:
        """The method, where it is an explicit one."""
        assert isinstance(self.tableau, Tableau)
        return self.tableau

    @property
    def evaluations(self) -> int:
        """Evaluations of an attempt."""
        tableau = self.tableau
        return tableau.advancing if self.fixed and isinstance(tableau, RosenbrockTableau) else tableau.stages

    @property
    def needs_end(self) -> bool:
        """Whether an attempt of an explicit method evaluates the slope at its end, which the next one starts with."""
        ends = self.explicit.error_needs_end, self.explicit.dense_needs_end
        return (not self.fixed and ends[0]) or (bool(self.saved) and ends[1])

    @property
    def backward_evaluations(self) -> int:
        """Evaluations of the pullback of a step."""
        tableau = self.tableau
        return tableau.advancing if isinstance(tableau, RosenbrockTableau) else tableau.stages

    @property
    def offsets(self) -> list[int]:
        return [sum(self.states[:i]) for i in range(len(self.states) + 1)]


def declarations(parts: Sequence[Lowered], shape: Shape, machine: Machine) -> str:
    """Sizes, the numbers of statuses, and `Settings`."""
    counts = {
        "D": sum(shape.states),
        "S": shape.evaluations,
        "LEAVES": len(shape.states),
        "SHOWN": max(shape.offsets[shape.saved], 1),
        "CONTROLS": max(len(shape.controls), 1),
        "SHARED": max(len(shared_buffers(parts)), 1),
        "SUMS": sum(sum_sizes(parts[0].program)),
    }
    numbers = ", ".join(f"{name} = {count}" for name, count in counts.items())
    statuses = ", ".join(f"{it.name} = {int(it)}" for it in Status)
    return f"enum {{ {numbers} }};\nconstexpr int32_t {statuses};\n" + _SETTINGS.replace("MORE", machine.settings)


def shared_buffers(parts: Sequence[Lowered]) -> list[Buffer]:
    """The shared tensors of all programs of a source."""
    return [buffer for part in parts for buffer in part.shared.values()]


def context(parts: Sequence[Lowered], shape: Shape, program: Program | None = None, stages: str = "") -> str:
    """What a block of samples reads: shared tensors, its constants, and the settings of the solve."""
    fields = [f"const real *{buffer.name};" for buffer in shared_buffers(parts)]
    fields += [f"V theta{i}[{max(size, 1)}];" for i, size in enumerate(shape.controls)]
    lines = [f"{buffer.name} = p.shared[{i}];" for i, buffer in enumerate(shared_buffers(parts))]
    if program is not None:
        sums = {f"own{i}": max(term.factors[0].size, 1) for i, term in enumerate(program.own_terms.values())}
        sums["total"] = max(sum(sum_sizes(program)), 1)
        fields += [stages, *(f"V {name}[{size}];" for name, size in sums.items())]
        lines += [f"LOOP for (int e = 0; e < {size}; e++) {name}[e] = spread(0);" for name, size in sums.items()]
    return _CONTEXT.replace("FIELDS", "\n  ".join(fields)).replace("PREPARE", "\n    ".join(lines))


def work_of(parts: Sequence[Lowered], shape: Shape, times: int) -> Work:
    """The work of a step that evaluates its programs so many times."""
    statements = [it for part in parts for it in (*part.program.statements, *part.program.adjoint)]
    sizes = [it.out.buffer.size for it in statements]
    operations = times * sum(part.program.operations for part in parts)
    return Work(operations, max([*sizes, *shape.controls, *shape.states], default=0))


def sum_sizes(program: Program) -> list[int]:
    """How many elements each sum over samples has."""
    return [term.factors[0].size for term in program.shared_terms]


def places_of(lowered: Lowered, shape: Shape, stage: str = "") -> dict[Buffer, str]:
    """What inputs are called."""
    clocks, offsets, leaves = lowered.graph.clocks, shape.offsets, len(shape.states)
    places = dict(zip(lowered.inputs[:clocks], (f"{stage}t", f"{stage}h"), strict=False))
    inputs = lowered.inputs[clocks:]
    places |= {inputs[i]: f"({stage}z + {offsets[i]})" for i in range(leaves)}
    places |= {inputs[leaves + i]: f"c.theta{i}" for i in range(len(shape.controls))}
    gradients = inputs[leaves + len(shape.controls) :]
    places |= {buffer: f"({stage}g + {offsets[i]})" for i, buffer in enumerate(gradients)}
    return places | {buffer: f"c.{buffer.name}" for buffer in lowered.shared.values()}


def print_results(printer: Printer, name: str, results: Sequence[View | float], shape: Shape) -> None:
    for i, result in enumerate(results):
        own = result.shape if isinstance(result, View) else (shape.states[i],)
        printer.copy(f"({name} + {shape.offsets[i]})", result, own)


def load_controls(shape: Shape) -> str:
    own = [f"  load(c.theta{i}, p.theta[{i}], {n}, c);" for i, n in enumerate(shape.controls)]
    return "\n".join(own)


def move_states(shape: Shape, function: str, name: str, pointers: str) -> str:
    """Load or store all leaves of a state."""
    leaves = zip(shape.offsets, shape.states, strict=False)
    return "\n".join(f"  {function}({name} + {at}, p.{pointers}[{i}], {n}, c);" for i, (at, n) in enumerate(leaves))


def saved_weights(tableau: Tableau) -> list[str]:
    """Lines that compute the weights w of the slopes in dense output, at a fraction sigma of a step."""
    lines = []
    for i, row in enumerate(tableau.dense):
        polynomial = "spread(0)"
        for weight in reversed(row):
            polynomial = f"({polynomial} + real({weight!r})) * sigma"
        lines.append(f"      w[{i}] = {polynomial};")
    return lines


def move_saved(shape: Shape, function: str, name: str, pointers: str, index: str, mask: str) -> list[str]:
    """Load or store all saved leaves at one saved time of each sample."""
    leaves = enumerate(zip(shape.offsets, shape.states[: shape.saved], strict=False))
    return [
        f"      {function}({name} + {at}, p.{pointers}[{i}], {n}, {index}, {mask}, p.times, c);"
        for i, (at, n) in leaves
    ]


def weighted(row: Sequence[float], name: str = "k[{}][d]") -> str:
    parts = [f"real({w!r}) * {name.format(i)}" for i, w in enumerate(row) if w]
    return " + ".join(parts) if parts else "spread(0)"


_SETTINGS = """
struct Settings {  // as run.py fills it
  const real *z0[LEAVES], *theta[CONTROLS], *shared[SHARED];
  real *z1[LEAVES], *theta_gradient[CONTROLS];
  const double *t0, *span;
  double *reached, *size, *t0_gradient, *span_gradient;
  int32_t *status, *accepted, *rejected, *nfe;
  const int32_t *active;
  real *sums;
  double rtol[LEAVES], atol[LEAVES];
  const double *ts;  // saved times, (batch, times)
  real *saved[LEAVES];  // (batch, times, elements), of the first leaves
  const real *saved_gradient[LEAVES];
  double dt, low, high, stretch, safety, smallest, largest, now, before, earlier;
  int64_t batch, attempts, times;
  MORE
};
"""

_CONTEXT = """
struct Context : Place {
  FIELDS
  T t0;
  real rtol[LEAVES], atol[LEAVES];
  double low, high;
  FUNCTION_MEMBER void prepare(const Settings &p) {
    PREPARE
    LOOP for (int i = 0; i < LEAVES; i++) rtol[i] = p.rtol[i], atol[i] = p.atol[i] > SMALLEST ? p.atol[i] : SMALLEST;
    low = p.low, high = p.high;
  }
  FUNCTION_MEMBER V clock(T t) const { return narrow(t + t0); }
  FUNCTION_MEMBER T limited(T h) const {
    if (low == 0 && high == UNLIMITED) return h;
    T a = absolute(h);
    a = smaller(larger(a, time_of(low)), time_of(high));
    return h < 0 ? -a : a;
  }
};
"""
