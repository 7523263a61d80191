"""The loop program of one evaluation: statements on small dense tensors of one sample.

A `Buffer` is memory: "lanes" has a copy for each sample, "shared" one for all samples. A `View` says how a tensor lies
in a buffer. A statement fills a view, element by element; it says nothing of batches, threads or a language, so that a
printer (emit_cpp.py) can run as many samples side by side as its machine likes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias


@dataclass(frozen=True, eq=False)
class Buffer:
    """Memory for the elements of a tensor."""

    name: str
    size: int
    shared: bool = False


@dataclass(frozen=True)
class View:
    """A tensor: where in a buffer each of its elements lies."""

    buffer: Buffer
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def whole(cls, buffer: Buffer, shape: Sequence[int]) -> View:
        """A tensor that fills a buffer, row by row."""
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        return cls(buffer, tuple(shape), tuple(strides))

    def expand(self, shape: Sequence[int]) -> View:
        """The tensor broadcast to a shape, as torch does."""
        missing = len(shape) - len(self.shape)
        padded = zip((*[1] * missing, *self.shape), (*[0] * missing, *self.strides), shape, strict=True)
        return View(self.buffer, tuple(shape), tuple(0 if old == 1 else s for old, s, _ in padded), self.offset)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


Operand: TypeAlias = "View | float"


@dataclass(frozen=True, eq=False)
class Pointwise:
    """out = op(*operands), element by element."""

    out: View
    op: str
    operands: tuple[Operand, ...]


@dataclass(frozen=True, eq=False)
class Reduce:
    """out = the sum, largest, ... of the operand over its last dimensions, those that out does not have."""

    out: View
    op: str  # "sum", "amax", "amin", "prod"
    operands: tuple[View]


@dataclass(frozen=True, eq=False)
class Contract:
    """out = the sum of left * right over their last dimension, which out does not have."""

    out: View
    operands: tuple[View, View]


Statement: TypeAlias = "Pointwise | Reduce | Contract"


@dataclass(frozen=True, eq=False)
class Term:
    """What one evaluation adds to a sum: a tensor, or the product of two, element by element."""

    factors: tuple[View, ...]
    product: View | None = None  # where the product of two is, if it is computed

    @property
    def shape(self) -> tuple[int, ...]:
        return self.factors[0].shape


@dataclass(eq=False)
class Program:
    """One evaluation, or one step: statements in order, and where its results lie.

    `adjoint` holds the statements that depend on the gradient of the slope; the others come first.
    """

    statements: list[Statement] = field(default_factory=list)
    adjoint: list[Statement] = field(default_factory=list)
    slopes: list[Operand] = field(default_factory=list)  # of a step: its end
    errors: list[Operand] = field(default_factory=list)  # of a step
    singular: Operand = 0.0  # of a step: whether it met a singular matrix
    state_gradients: list[Operand] = field(default_factory=list)  # of the leaves of z
    time_gradient: Operand = 0.0
    size_gradient: Operand = 0.0  # of a step
    own_terms: dict[int, Term] = field(default_factory=dict)  # of constants of each sample, by their number
    shared_terms: list[Term] = field(default_factory=list)  # summed over samples, for the epilogue of `Lowered`

    @property
    def terms(self) -> list[Term]:
        return [*self.own_terms.values(), *self.shared_terms]

    @property
    def results(self) -> list[View]:
        factors = [view for term in self.terms for view in term.factors]
        single = (*self.slopes, *self.errors, self.singular)
        single = (*single, *self.state_gradients, self.time_gradient, self.size_gradient)
        return [*factors, *(it for it in single if isinstance(it, View))]

    @property
    def operations(self) -> int:
        """How many multiplications, additions or functions an evaluation takes, about."""
        return sum(_work(it) for it in (*self.statements, *self.adjoint))

    def drop_unused(self) -> None:
        """Remove statements whose results nothing uses."""
        used = {view.buffer for view in self.results}
        for part in (self.adjoint, self.statements):
            kept = []
            for statement in reversed(part):
                if statement.out.buffer in used:
                    kept.append(statement)
                    used.update(reads(statement))
            part[:] = kept[::-1]


def reads(statement: Statement) -> Iterable[Buffer]:
    """The buffers that a statement reads."""
    return [it.buffer for it in statement.operands if isinstance(it, View)]


def _work(statement: Statement) -> int:
    return max([statement.out.size, *(it.size for it in statement.operands if isinstance(it, View))])
