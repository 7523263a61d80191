"""Random calls of `solve` that must succeed, as data that can be built again in any precision and for any samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.utils import _pytree as pytree

import ncode
from ncode.ode import METHODS

from . import reference
from .grammar import (
    HOLDERS,
    SWITCHES,
    Expression,
    Tensors,
    as_column,
    evaluate,
    expressions,
    leaves_of,
    make_field,
    names,
    smooth,
)

DOUBLE = torch.float64
ADAPTIVE = tuple(name for name, tableau in METHODS.items() if tableau.adaptive)
STIFF = ("rosenbrock23", "rodas5p", "kvaerno5", "auto")
ITERATED = ("kvaerno5", "implicit_euler", "trapezoid")  # by Newton's method, which cannot be compiled
STIFF_FIXED = ("rosenbrock23", "rodas5p", "kvaerno5", "implicit_euler", "trapezoid")
ORDERS = {"rosenbrock23": 2, "rodas5p": 5, "kvaerno5": 5, "auto": 5} | {name: it.order for name, it in METHODS.items()}
NESTS = ("tensor", "tensor", "tuple", "dict")
TOLERANCES = ("number", "number", "tensor", "per sample", "per component")
COMPLEX_NAMES = {"x", "number", "vector", "sample", "matrix", "add", "sub", "mul", "sin"}
FAR = (1e4, -1e6, 1.7e9, 1.7e12)  # seconds and milliseconds since 1970 among them
FORGETS_TIME = 1e5  # a field at later times than this must not depend on time, which its precision cannot resolve

_sizes = st.lists(st.integers(1, 3), max_size=2).map(tuple)
_trees = st.recursive(
    st.lists(st.integers(1, 2), max_size=2).map(tuple),
    lambda inner: st.lists(inner, min_size=1, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, min_size=1),
    max_leaves=3,
)


@dataclass(frozen=True)
class Times:
    """Start and length per sample, or one pair for all, after an offset. `kind` is how they are given."""

    kind: str
    pairs: tuple[tuple[float, float], ...]
    offset: float = 0.0


@dataclass(frozen=True)
class Case:
    """A call of `solve`."""

    batch: int
    shape: tuple[int, ...]
    seed: int
    field: Expression
    times: Times
    holder: str = "closure"
    scale: float = 1.0
    decay: float = 0.0
    control: Any = None  # a nest of shapes
    feedback: bool = False
    cost: bool = False
    saved: tuple[float, ...] | None = None  # as fractions of the interval
    saved_kind: str = "own"
    nest: str = "tensor"  # of x0: with a second state, which decays
    tolerance: str = "number"  # how rtol and atol are given
    event: float | None = None  # a level whose crossings by the mean of x are recorded
    dtype: torch.dtype = DOUBLE
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def depends_on_time(self) -> bool:
        """Whether the functions read t: not where the rounding of an absolute time is a good part of the interval."""
        ends = [self.times.offset + start + part for start, length in self.times.pairs for part in (0.0, length)]
        shortest = min((abs(length) for _, length in self.times.pairs if length), default=1.0)
        rounding = max(map(abs, ends)) * torch.finfo(self.dtype).eps
        return abs(self.times.offset) < FORGETS_TIME and rounding < 0.005 * shortest

    def changed(self, **options: Any) -> Case:
        """The same call with other options."""
        return replace(self, options={**self.options, **options})

    def build(
        self, dtype: torch.dtype | None = None, rows: Sequence[int] | None = None, trained: bool = False
    ) -> Arguments:
        """The arguments, new in memory, of some samples only, in another precision, or with gradients."""
        return Arguments(self, dtype or self.dtype, list(range(self.batch) if rows is None else rows), trained)


class Arguments:
    """The tensors and functions of a case.

    Attributes:
        leaves: The tensors that may have a gradient, by name.
    """

    def __init__(self, case: Case, dtype: torch.dtype, rows: list[int], trained: bool):
        self.case, self.dtype, self.rows = case, dtype, rows
        real = torch.empty(0, dtype=dtype).real.dtype if dtype.is_complex else dtype
        generator = torch.Generator().manual_seed(case.seed)

        def normal(*size: int) -> Tensor:
            value = torch.randn(case.batch, *size, generator=generator, dtype=DOUBLE)[rows]
            return value.to(real).to(dtype, copy=True).requires_grad_(trained)

        self.x0 = normal(*case.shape)
        self.theta = None if case.control is None else _map_tree(lambda size: normal(*size), case.control)
        tensors = Tensors.random(case.batch, case.shape, case.seed + 1).to(dtype, rows, trained)
        self.f = make_field(self._field, tensors, case.holder)
        self.g = make_field(self._feedback, tensors, case.holder) if case.feedback else None
        self.cost = make_field(self._cost, tensors, case.holder) if case.cost else None
        self.leaves = {"x0": self.x0}
        self.leaves |= {f"theta {i}": leaf for i, leaf in enumerate(leaves_of(self.theta))}
        self.leaves |= {f"tensor {i}": leaf for i, leaf in enumerate(tensors.leaves)}
        self._make_times(trained)

    def _make_times(self, trained: bool) -> None:
        times, count = self.case.times, len(self.rows)
        pairs = times.pairs if len(times.pairs) > 1 else times.pairs * self.case.batch
        pairs = [pairs[row] for row in self.rows]
        self.t0 = torch.tensor([times.offset + start for start, _ in pairs], dtype=DOUBLE)
        self.t1 = torch.tensor([times.offset + start + length for start, length in pairs], dtype=DOUBLE)
        self.given: tuple[Any, Any] = (self.t0, self.t1)
        if times.kind == "tensors" and trained:
            self.t0.requires_grad_()
            self.t1.requires_grad_()
            self.leaves |= {"t0": self.t0, "t1": self.t1}
        if times.kind != "tensors" and count:
            self.given = (float(self.t0[0]), float(self.t1[0]))
            if times.kind == "scalars":
                self.given = (self.t0[0].detach().clone(), self.t1[0].detach().clone())
        elif times.kind != "tensors":
            self.given = (0.0, 1.0)
        self.ts: Tensor | None = None
        self.save_at: Any = None
        if self.case.saved is not None:
            fractions = torch.tensor(self.case.saved, dtype=DOUBLE)
            t0, t1 = self.t0.detach()[:, None], self.t1.detach()[:, None]
            within = torch.minimum(torch.maximum(t0 + (t1 - t0) * fractions, t0.minimum(t1)), t0.maximum(t1))
            self.ts = self.save_at = within.requires_grad_(trained)
            if self.case.saved_kind != "own" and count:
                shared = self.ts.detach()[0]
                self.save_at = shared.tolist() if self.case.saved_kind == "list" else shared
            elif trained:
                self.leaves["save_at"] = within

    def _field(self, t: Tensor, x: Tensor, theta: Any, get: Any) -> Tensor:
        t = t if self.case.depends_on_time else torch.zeros(len(x), dtype=x.real.dtype)
        value = evaluate(self.case.field, t, x, theta, get)
        bounded = value / (1 + value.abs() ** 2) if x.is_complex() else torch.tanh(value)
        return self.case.scale * bounded + self.case.decay * x

    def _feedback(self, t: Tensor, x: Tensor, theta: Any, get: Any) -> Any:
        drive = (x.reshape(len(x), -1).mean(1) * get("vector", 0).mean()).sin()
        return pytree.tree_map(lambda leaf: as_column(drive, leaf) - 0.5 * leaf, theta)

    def _cost(self, t: Tensor, x: Tensor, theta: Any, get: Any) -> Tensor:
        cost = (x * x.conj()).real.reshape(len(x), -1).mean(1) * get("vector", 1).real.mean()
        return cost + 0.1 * t if self.case.depends_on_time else cost

    @property
    def solve(self) -> dict[str, Any]:
        """The keyword arguments of `solve`."""
        case = self.case
        x0, options = nested(case.nest, self.x0, self.x0.new_ones(len(self.x0), 2)), dict(case.options)
        if "dt" not in options:
            options |= {name: self._tolerance(options[name]) for name in ("rtol", "atol") if name in options}
        if case.event is not None:
            options["events"] = ncode.Event(self._of_x(self._event), terminal=False)
        return {
            "dynamics": self._of_x(self.f, returns_x=True),
            "x0": x0,
            "t0": self.given[0],
            "t1": self.given[1],
            "theta": self.theta,
            "feedback": None if self.g is None else self._of_x(self.g),
            "cost": None if self.cost is None else self._of_x(self.cost),
            "save_at": self.save_at,
            **options,
        }

    def _of_x(self, function: Any, returns_x: bool = False) -> Any:
        """A function of (t, x, theta) as one of the nest of x."""
        nest = self.case.nest
        if nest == "tensor":
            return function

        def call(t: Tensor, x: Any, theta: Any) -> Any:
            value = function(t, unnested(x), theta)
            return nested(nest, value, -_second(x)) if returns_x else value

        return call

    def _event(self, t: Tensor, x: Tensor, theta: Any) -> Tensor:
        return x.real.reshape(len(x), -1).mean(1) - self.case.event

    def _tolerance(self, value: float) -> Any:
        kind, count, shape = self.case.tolerance, self.case.batch, self.case.shape
        if kind == "number":
            return value
        factors = torch.ones((1,) * (1 + len(shape)))
        if kind == "per sample":
            factors = torch.linspace(0.3, 1.0, count)[self.rows].reshape(-1, *[1] * len(shape))
        elif kind == "per component" and shape:
            factors = torch.linspace(0.3, 1.0, shape[-1])
        return nested(self.case.nest, value * factors, value)

    def reference(self, tolerance: float = 1e-9) -> reference.Reference:
        """The solution in double precision, to a tight tolerance."""
        problem = (self.f, self.g, self.cost, self.x0, self.t0, self.t1, self.theta, self.ts)
        return reference.solve(*problem, tolerance=tolerance)

    def fixed_reference(self) -> reference.Reference:
        """The fixed steps of the case's method, in double precision."""
        tableau, dt = METHODS[self.case.options["method"]], self.case.options["dt"]
        return reference.fixed(tableau, dt, self.f, self.g, self.cost, self.x0, self.t0, self.t1, self.theta, self.ts)


def nested(nest: str, x: Any, second: Any) -> Any:
    """Two states in a nest; the first alone as a tensor."""
    return {"tensor": x, "tuple": (x, second), "dict": {"b": second, "a": (x,)}}[nest]


def unnested(x: Any) -> Tensor:
    """The first state of a nest."""
    return x if isinstance(x, Tensor) else x["a"][0] if isinstance(x, dict) else x[0]


def _second(x: Any) -> Tensor:
    return x["b"] if isinstance(x, dict) else x[1]


def _map_tree(function: Any, tree: Any) -> Any:
    if isinstance(tree, list):
        return [_map_tree(function, inner) for inner in tree]
    if isinstance(tree, dict):
        return {name: _map_tree(function, inner) for name, inner in tree.items()}
    return function(tree)


@st.composite
def _times(draw: st.DrawFn, batch: int, shared: bool, far: bool) -> Times:
    offset = draw(st.sampled_from(FAR)) if far and draw(st.integers(0, 5)) == 0 else 0.0
    start = st.sampled_from([0.0, -1.0, 0.125, 0.3])
    length = st.sampled_from([1.0, 0.5, 2.0, -1.0, 0.0]) | st.floats(-2.0, 2.0, width=16)
    pair = st.tuples(start, length)
    kind = draw(st.sampled_from(["numbers", "scalars", "tensors"]))
    if kind == "tensors" and not shared:
        return Times(kind, tuple(draw(st.lists(pair, min_size=batch, max_size=batch))), offset)
    return Times(kind, (draw(pair),), offset)


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    fixed: bool | None = None,
    shared: bool = False,
    far: bool = True,
    empty: bool = True,
    jumps: bool = True,
    landings: bool = False,
    single: bool = True,
    stiff: bool = True,
):
    """A call that must succeed.

    Args:
        draw: Draws from a strategy.
        fixed: Fixed steps or adaptive ones. Default: both.
        shared: Whether all samples have the same times.
        far: Whether times may be far from zero.
        empty: Whether the batch may be empty.
        jumps: Whether the field may jump at some time, or have kinks.
        landings: Whether steps must end at all times at which the field may jump.
        single: Whether single precision is possible.
        stiff: Whether methods for stiff problems are possible.
    """
    batch = draw(st.integers(0 if empty else 1, 4))
    shape = draw(_sizes)
    expression = draw(expressions if jumps else smooth)
    dtypes = [DOUBLE, DOUBLE, torch.complex128, *([torch.float32] if single else [])]
    dtype = draw(st.sampled_from(dtypes))
    control = draw(st.none() | _trees)
    if dtype.is_complex and not names(expression) <= COMPLEX_NAMES:
        dtype = DOUBLE
    step = draw(st.sampled_from(["sample", "sample", "batch"]))
    times = draw(_times(batch, shared or step == "batch", far))
    fractions = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]) | st.floats(0, 1, width=16), max_size=3)
    saved = draw(st.none() | fractions.map(sorted).map(tuple))
    fixed = draw(st.booleans()) if fixed is None else fixed
    methods = list(METHODS) if fixed else list(ADAPTIVE)
    if stiff and not dtype.is_complex and draw(st.integers(0, 3)) == 0:
        methods = list(STIFF_FIXED if fixed else STIFF)
    options: dict[str, Any] = {"step": step, "method": draw(st.sampled_from(methods))}
    level = draw(st.none() | st.none() | st.sampled_from([0.013, -0.31])) if step == "sample" and not fixed else None
    if not fixed and (landings or draw(st.integers(0, 3)) == 0):
        options["jump_ts"] = list(SWITCHES if landings else SWITCHES[: draw(st.integers(0, 3))])
    if fixed:
        # Where h times an eigenvalue is 1, a step of an implicit method does not exist.
        options["dt"] = draw(
            st.sampled_from([0.25, 0.5, 0.1, 1.0, 3.0] if options["method"] in METHODS else [0.1, 0.05])
        )
    else:
        # Methods of low order would take thousands of steps to tight tolerances.
        tightest = {2: 4, 3: 5}.get(ORDERS[options["method"]], 7)
        exponent = draw(st.integers(3, min(tightest, 5) if dtype == torch.float32 else tightest))
        options |= {"rtol": 10.0**-exponent, "atol": 10.0 ** -(exponent + 1)}
        if draw(st.booleans()):
            options |= {"max_dt": 0.3, "save_steps": True}
    return Case(
        batch=batch,
        shape=shape,
        seed=draw(st.integers(0, 1000)),
        field=expression,
        times=times,
        holder=draw(st.sampled_from(HOLDERS)),
        scale=draw(st.sampled_from([1.0, 0.0, 3.0])),
        decay=draw(st.sampled_from([0.0, -1.0, 0.5])),
        control=control,
        feedback=control is not None and draw(st.booleans()),
        cost=draw(st.booleans()),
        saved=saved,
        saved_kind=draw(st.sampled_from(["own", "shared", "list"])) if len(times.pairs) == 1 else "own",
        nest=draw(st.sampled_from(NESTS)),
        tolerance=draw(st.sampled_from(TOLERANCES)),
        event=level,
        dtype=dtype,
        options=options,
    )
