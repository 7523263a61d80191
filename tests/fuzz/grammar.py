"""Random vector fields: expressions as nested tuples, which Hypothesis draws, shrinks and prints.

    ("add", ("x",), ("tanh", ("matrix", 0, ("t",))))        x + tanh(t @ W_0)

Leaves are the state "x", the time "t", a summary of the control "control", a number, a shared parameter ("vector", i),
and a tensor with one row per sample ("sample", i). A field holds its tensors in one of the ways of `HOLDERS`, as users'
programs do.
"""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils import _pytree as pytree

Expression = tuple[Any, ...]
Function = Callable[[Tensor, Tensor, Any], Any]

COUNT = 2  # of the matrices, of the vectors and of the tensors with one row per sample
UNARY: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "sin": torch.sin,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "abs": torch.abs,
    "gauss": lambda e: torch.exp(-e * e),
    "softplus": nn.functional.softplus,
}
BINARY: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "max": torch.maximum,
}
HOLDERS = ("closure", "module", "object", "dataclass", "class", "list", "long list", "deque", "dict", "partial")
HOLDERS += ("global", "method", "callable", "helper", "computed")

_leaves = st.sampled_from([("x",), ("x",), ("t",), ("control",)]) | st.tuples(
    st.sampled_from(["number"]), st.sampled_from([-1.0, 0.5, 2.0])
)
_tensors = st.tuples(st.sampled_from(["vector", "sample"]), st.integers(0, COUNT - 1))
SWITCHES = (-0.51803, 0.26180, 0.76393)  # not at the ends of fixed steps
_switches = st.sampled_from(SWITCHES)


KINKS = ("relu", "abs", "max")


def _grow(inner: st.SearchStrategy[Expression], jumps: bool) -> st.SearchStrategy[Expression]:
    known = [name for name in (*UNARY, *BINARY) if jumps or name not in KINKS]
    grown = (
        st.tuples(st.sampled_from([name for name in known if name in UNARY]), inner)
        | st.tuples(st.sampled_from([name for name in known if name in BINARY]), inner, inner)
        | st.tuples(st.just("matrix"), st.integers(0, COUNT - 1), inner)
    )
    return grown | st.tuples(st.just("where t <"), _switches, inner, inner) if jumps else grown


def _expressions(jumps: bool) -> st.SearchStrategy[Expression]:
    return st.recursive(_leaves | _tensors, lambda inner: _grow(inner, jumps), max_leaves=6)


expressions, smooth = _expressions(jumps=True), _expressions(jumps=False)


def names(expression: Any) -> set[str]:
    """All names that occur in an expression."""
    if not isinstance(expression, tuple):
        return {expression} if isinstance(expression, str) else set()
    return set().union(*map(names, expression))


def as_column(values: Tensor, like: Tensor) -> Tensor:
    """Values (batch,) with the dimensions of a tensor (batch, ...)."""
    return values.reshape(-1, *[1] * (like.dim() - 1))


def leaves_of(tree: Any) -> list[Any]:
    """The leaves of a nest; none of None."""
    return [] if tree is None else pytree.tree_leaves(tree)


def summary(theta: Any, x: Tensor) -> Tensor:
    """A number per sample that depends on every leaf of a control."""
    leaves = [(leaf if x.is_complex() else leaf.real).reshape(len(x), -1).to(x.dtype) for leaf in leaves_of(theta)]
    parts = [(leaf.mean(1) * (1 + 0.5 * i)).sin() for i, leaf in enumerate(leaves)]
    return as_column(torch.stack(parts).sum(0), x) if parts else torch.zeros_like(x)


def evaluate(expression: Expression, t: Tensor, x: Tensor, theta: Any, get: Callable[[str, int], Tensor]) -> Tensor:
    """The value of an expression; `get` returns the tensors that the field holds."""
    name, *rest = expression

    def value(inner: Expression) -> Tensor:
        return evaluate(inner, t, x, theta, get)

    if name == "x":
        return x
    if name == "t":
        return as_column(t, x) + torch.zeros_like(x)
    if name == "control":
        return summary(theta, x) + torch.zeros_like(x)
    if name == "number":
        return torch.full_like(x, rest[0])
    if name in ("vector", "sample"):
        return get(name, rest[0]) + torch.zeros_like(x)
    if name == "matrix":
        matrix = get("matrix", rest[0])
        return value(rest[1]) @ matrix if x.dim() > 1 else value(rest[1]) * matrix[0, 0]
    if name == "where t <":
        return torch.where(as_column(t, x) < rest[0], value(rest[1]), value(rest[2]))
    return UNARY[name](value(rest[0])) if name in UNARY else BINARY[name](value(rest[0]), value(rest[1]))


@dataclass(frozen=True)
class Tensors:
    """The tensors of a field, in double precision: the truth that every other precision is a copy of."""

    matrix: tuple[Tensor, ...]
    vector: tuple[Tensor, ...]
    sample: tuple[Tensor, ...]

    @classmethod
    def random(cls, batch: int, shape: Sequence[int], seed: int) -> Tensors:
        generator = torch.Generator().manual_seed(seed)

        def normal(*size: int) -> tuple[Tensor, ...]:
            return tuple(torch.randn(*size, generator=generator, dtype=torch.float64) for _ in range(COUNT))

        last = shape[-1] if shape else 1
        own = [*[1] * (len(shape) - 1), last] if shape else []
        return cls(tuple(w / last**0.5 for w in normal(last, last)), normal(last), normal(batch, *own))

    def to(self, dtype: torch.dtype, rows: Sequence[int] | None = None, trained: bool = False) -> Tensors:
        """Leaf tensors of a dtype, of some samples only."""

        def leaf(value: Tensor) -> Tensor:
            return value.to(dtype, copy=True).requires_grad_(trained)

        sample = [value if rows is None else value[list(rows)] for value in self.sample]
        return Tensors(tuple(map(leaf, self.matrix)), tuple(map(leaf, self.vector)), tuple(map(leaf, sample)))

    def get(self, name: str, index: int) -> Tensor:
        return getattr(self, name)[index]

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        return self.matrix + self.vector + self.sample


_shelf: dict[int, Tensors] = {}  # what a global name holds, for the last few fields
_fields = itertools.cycle(range(16))


class _Box:
    pass


@dataclass
class _Record:
    tensors: Tensors


def _from_shelf(place: int, name: str, index: int) -> Tensor:
    return _shelf[place].get(name, index)


def make_field(run: Callable[..., Tensor], tensors: Tensors, holder: str) -> Function:
    """The field run(t, x, theta, get), with its tensors held in the way of that name."""
    if holder == "module":
        return _Module(run, tensors)
    if holder == "callable":
        return _Callable(run, tensors)
    if holder == "method":
        return _Callable(run, tensors).method
    if holder == "partial":
        return functools.partial(_with_tensors, run, tensors)
    if holder in ("global", "helper"):
        place = next(_fields)
        _shelf[place] = tensors
        if holder == "global":
            return lambda t, x, theta: run(t, x, theta, _shelf[place].get)
        return lambda t, x, theta: run(t, x, theta, lambda name, index: _from_shelf(place, name, index))
    get = _getter(tensors, holder)
    return lambda t, x, theta: run(t, x, theta, get)


def _with_tensors(run: Callable[..., Tensor], tensors: Tensors, t: Tensor, x: Tensor, theta: Any) -> Tensor:
    return run(t, x, theta, tensors.get)


def _getter(tensors: Tensors, holder: str) -> Callable[[str, int], Tensor]:
    kinds = ("matrix", "vector", "sample")
    if holder == "object":
        box = _Box()
        for kind in kinds:
            setattr(box, kind, list(getattr(tensors, kind)))
        return lambda name, index: getattr(box, name)[index]
    if holder == "dataclass":
        record = _Record(tensors)
        return lambda name, index: record.tensors.get(name, index)
    if holder == "class":
        place = type("Place", (), {kind: getattr(tensors, kind) for kind in kinds})
        return lambda name, index: getattr(place, name)[index]
    if holder in ("list", "long list"):
        things = [*([0.0] * 1200 if holder == "long list" else []), *tensors.leaves]
        return lambda name, index: things[kinds.index(name) * COUNT + index - len(tensors.leaves)]
    if holder == "deque":
        queue = deque(tensors.leaves)
        return lambda name, index: queue[kinds.index(name) * COUNT + index]
    if holder == "dict":
        by_name = {kind: dict(enumerate(getattr(tensors, kind))) for kind in kinds}
        return lambda name, index: by_name[name][index]
    if holder == "computed":  # outside of the solve, from the leaves
        computed = {kind: [value * 2.0 for value in getattr(tensors, kind)] for kind in kinds}
        return lambda name, index: computed[name][index] / 2.0
    return tensors.get


class _Module(nn.Module):
    def __init__(self, run: Callable[..., Tensor], tensors: Tensors):
        super().__init__()
        self.run = run
        for kind in ("matrix", "vector", "sample"):
            for index, value in enumerate(getattr(tensors, kind)):
                # As buffers, since nn.Parameter would be another tensor than the one whose gradient is looked at.
                self.register_buffer(f"{kind}_{index}", value)

    def forward(self, t: Tensor, x: Tensor, theta: Any) -> Tensor:
        return self.run(t, x, theta, lambda name, index: getattr(self, f"{name}_{index}"))


class _Callable:
    def __init__(self, run: Callable[..., Tensor], tensors: Tensors):
        self.run, self.tensors = run, tensors

    def __call__(self, t: Tensor, x: Tensor, theta: Any) -> Tensor:
        return self.run(t, x, theta, self.tensors.get)

    def method(self, t: Tensor, x: Tensor, theta: Any) -> Tensor:
        return self(t, x, theta)
