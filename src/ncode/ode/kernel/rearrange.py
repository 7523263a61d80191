"""A program rearranged before it is printed: less that backward keeps of a stage, fewer loops, fewer arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .ir import Buffer, Contract, Pointwise, Program, Statement, Term, View, reads

SHORT = 4  # a contraction of so few terms is written out, and shares its loop with others
_SUMS = 8  # elements of contractions that one loop sums up


def rearrange(program: Program) -> None:
    """Drop what nothing uses, write short contractions out, and leave to the adjoint what it alone needs."""
    program.drop_unused()
    _take_products(program)
    for part in (program.statements, program.adjoint):
        part[:] = [_written_out(it) for it in part]
    _sink(program)


def _take_products(program: Program) -> None:
    """A term that is a product takes the product itself, if it is computed anyway."""
    used = {buffer for it in (*program.statements, *program.adjoint) for buffer in reads(it)}

    def taken(term: Term) -> Term:
        product = term.product
        if product is None or product.buffer not in used:
            return term
        smaller = product.buffer.size <= max(it.buffer.size for it in term.factors)
        return Term((product,)) if smaller else term

    program.own_terms = {number: taken(term) for number, term in program.own_terms.items()}
    program.shared_terms = [taken(term) for term in program.shared_terms]


def _written_out(it: Statement) -> Statement:
    if not isinstance(it, Contract) or it.operands[0].shape[-1] > SHORT:
        return it
    return Pointwise(
        it.out, "dot", tuple(_cut(view, k) for k in range(it.operands[0].shape[-1]) for view in it.operands)
    )


def _cut(view: View, k: int) -> View:
    return View(view.buffer, view.shape[:-1], view.strides[:-1], view.offset + k * view.strides[-1])


def _sink(program: Program) -> None:
    """Move what the slope does not depend on to the adjoint, unless more values would have to be kept for it."""
    needed = {it.buffer for it in (*program.slopes, *program.errors, program.singular) if isinstance(it, View)}
    for it in reversed(program.statements):
        if it.out.buffer in needed:
            needed.update(reads(it))
    staying = [it for it in program.statements if it.out.buffer in needed]
    moving = [it for it in program.statements if it.out.buffer not in needed]
    late = {view.buffer for term in program.terms for view in term.factors}
    late.update(view.buffer for view in (*program.state_gradients, program.time_gradient) if isinstance(view, View))

    def kept(first: Sequence[Statement], second: Sequence[Statement]) -> int:
        read = late.union(*map(reads, second))
        return sum(it.size for it in {it.out.buffer for it in first} & read)

    if kept(staying, [*moving, *program.adjoint]) <= kept(program.statements, program.adjoint):
        program.statements[:], program.adjoint[:] = staying, [*moving, *program.adjoint]


@dataclass(eq=False)
class Loop:
    """Statements that one loop executes: a single one, or several pointwise ones and contractions of their results."""

    statements: list[Statement]
    sums: list[Contract] = field(default_factory=list)

    @property
    def outs(self) -> dict[Buffer, View]:
        return {it.out.buffer: it.out for it in self.statements}

    @property
    def reads(self) -> Iterable[Buffer]:
        return [buffer for it in (*self.statements, *self.sums) for buffer in reads(it)]


def make_loops(statements: Sequence[Statement]) -> list[Loop]:
    """All statements, each in the first loop after those it depends on that can take it, or in one of its own."""
    written = Counter(it.out.buffer for it in statements)
    loops: list[Loop] = []
    last: dict[Buffer, int] = {}  # the last loop that writes a buffer
    for it in statements:
        start = max((last[buffer] for buffer in (*reads(it), it.out.buffer) if buffer in last), default=0)
        single = written[it.out.buffer] == 1
        place = next((i for i in range(start, len(loops)) if single and _takes(loops[i], it, written)), len(loops))
        if place == len(loops):
            loops.append(Loop([it]))
        elif isinstance(it, Contract):
            loops[place].sums.append(it)
        else:
            loops[place].statements.append(it)
        last[it.out.buffer] = place
    return loops


def _takes(loop: Loop, it: Statement, written: Counter[Buffer]) -> bool:
    """Whether a loop can execute a statement too: of what the loop writes, it reads only what the same turn wrote."""
    outs = loop.outs
    if not all(isinstance(other, Pointwise) and written[other.out.buffer] == 1 for other in loop.statements):
        return False
    if any(buffer == other.out.buffer for other in loop.sums for buffer in reads(it)):
        return False
    inside = [view for view in it.operands if isinstance(view, View) and view.buffer in outs]
    if isinstance(it, Pointwise):
        return it.out.shape == loop.statements[0].out.shape and all(view == outs[view.buffer] for view in inside)
    if not isinstance(it, Contract) or not inside:
        return False
    full = sum(other.out.size for other in loop.sums) + it.out.size > _SUMS
    return not full and all(_follows(view, outs[view.buffer]) for view in inside)


def _follows(view: View, out: View) -> bool:
    """Whether the last index of a view counts the turns of the loop over `out`, and its other indices nothing."""
    strides = [stride for size, stride in zip(out.shape, out.strides, strict=True) if size > 1]
    others = [stride for size, stride in zip(view.shape[:-1], view.strides[:-1], strict=True) if size > 1]
    return (
        strides == [view.strides[-1]] and out.size == view.shape[-1] and out.offset == view.offset and not any(others)
    )
