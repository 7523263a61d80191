"""Statements of a loop program as C++, in which every element is a vector of samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from .ir import Buffer, Contract, Operand, Pointwise, Program, Reduce, Statement, View
from .rearrange import Loop, make_loops

UNROLLED = 4  # loops of at most this many turns are written out
_ACCUMULATORS = 8  # sums that are under way at a time, to hide the latency of an addition


class Printer:
    """Prints statements. `places` says how a buffer is called; others become local arrays."""

    def __init__(self, places: dict[Buffer, str], kept: Iterable[Buffer] = ()):
        self.places, self.kept = dict(places), {*places, *kept}
        self.lines: list[str] = []

    def block(self, statements: Sequence[Statement]) -> list[str]:
        """All statements in order, several in one loop where that can be."""
        loops = make_loops(statements)
        for number, loop in enumerate(loops):
            later = {buffer for other in loops[number + 1 :] for buffer in other.reads}
            self._print(loop, later | self.kept)
        return self.lines

    def copy(self, place: str, operand: Operand, shape: Sequence[int]) -> None:
        """Write an operand to an array, row by row."""
        target = Buffer(place, math.prod(shape))
        self.places[target] = place
        view = operand.expand(shape) if isinstance(operand, View) else operand
        self._loop([Pointwise(View.whole(target, shape), "copy", (view,))], {target})

    def name(self, buffer: Buffer) -> str:
        if buffer not in self.places:
            self.places[buffer] = buffer.name
            self.lines.append(f"V {buffer.name}[{max(buffer.size, 1)}];")
        return self.places[buffer]

    def _print(self, loop: Loop, stored: set[Buffer]) -> None:
        first = loop.statements[0]
        if isinstance(first, Contract):
            self._contract(first)
        elif isinstance(first, Reduce):
            self._reduce(first)
        else:
            self._loop([it for it in loop.statements if isinstance(it, Pointwise)], stored, loop.sums)

    def _loop(self, group: Sequence[Pointwise], stored: set[Buffer], sums: Sequence[Contract] = ()) -> None:
        views = [view for it in group for view in (it.out, *it.operands) if isinstance(view, View)]
        for it in (*group, *sums):
            if it.out.buffer in stored or isinstance(it, Contract):
                self.name(it.out.buffer)
        shape, strides = collapse(group[0].out.shape, views)
        table = dict(zip(map(id, views), strides, strict=True))
        count = math.prod(shape)
        if count == 0:
            return

        def turn(index: Sequence[int | str], part: int = 0) -> Iterator[str]:
            inside: dict[Buffer, str] = {}
            for number, it in enumerate(group):
                values = [self._value(operand, table, index, inside) for operand in it.operands]
                yield f"V r{number} = {_call(it.op, values)};"
                inside[it.out.buffer] = f"r{number}"
                if it.out.buffer in stored:
                    place = array_index(it.out.offset, table[id(it.out)], index)
                    yield f"{self.name(it.out.buffer)}[{place}] = r{number};"
            for number, it in enumerate(sums):
                yield from self._add(it, number, part, index, inside)

        if count <= UNROLLED:
            for index in _indices(shape):
                self.lines.append("{ " + " ".join(turn(index)) + " }")
            return
        parts = _parts(count, sum(it.out.size for it in sums)) if sums else 1
        cells = [f"a{n}_{u}_{p} = {{}}" for n, it in enumerate(sums) for u in range(it.out.size) for p in range(parts)]
        self.lines += ["{ V " + ", ".join(cells) + ";"] if sums else []
        names = [f"i{d}" for d in range(len(shape))]
        heads = [f"LOOP for (int {i} = 0; {i} < {n}; {i} += {parts})" for i, n in zip(names, shape, strict=True)]
        self.lines.append(" ".join(heads) + " {")
        for part in range(parts):
            self.lines += ["{", *turn([f"{i} + {part}" for i in names] if part else names, part), "}"]
        self.lines.append("}")
        for number, it in enumerate(sums):
            for u, index in enumerate(_indices(it.out.shape)):
                total = " + ".join(f"a{number}_{u}_{p}" for p in range(parts))
                self.lines.append(f"{self._load(it.out, index)} = {total};")
        self.lines += ["}"] if sums else []

    def _add(
        self, it: Contract, number: int, part: int, index: Sequence[int | str], inside: dict[Buffer, str]
    ) -> Iterator[str]:
        """What a turn of a loop adds to a contraction of its results."""
        for u, element in enumerate(_indices(it.out.shape)):
            factors = [inside.get(view.buffer) or self._load(view, [*element, *index]) for view in it.operands]
            yield f"a{number}_{u}_{part} += {' * '.join(factors)};"

    def _value(
        self, operand: Operand, table: dict[int, tuple[int, ...]], index: Sequence[int | str], inside: dict
    ) -> str:
        if not isinstance(operand, View):
            return _number(operand)
        if operand.buffer in inside:
            return inside[operand.buffer]
        text = f"{self.name(operand.buffer)}[{array_index(operand.offset, table[id(operand)], index)}]"
        return f"spread({text})" if operand.buffer.shared else text

    def _load(self, view: View, index: Sequence[int | str]) -> str:
        return f"{self.name(view.buffer)}[{array_index(view.offset, view.strides, index)}]"

    def _reduce(self, it: Reduce) -> None:
        start = {"sum": "0", "prod": "1", "amax": "-INF", "amin": "INF"}[it.op]
        join = {"sum": "r + {}", "prod": "r * {}", "amax": "maximum_(r, {})", "amin": "minimum_(r, {})"}[it.op]
        rank, source = len(it.out.shape), it.operands[0]
        self.name(it.out.buffer)
        names = [f"i{d}" for d in range(len(source.shape))]
        heads = [f"LOOP for (int {i} = 0; {i} < {n}; {i}++)" for i, n in zip(names, source.shape, strict=True)]
        self.lines += [
            " ".join([*heads[:rank], "{"]),
            f"V r = spread({start});",
            f"{' '.join(heads[rank:])} r = {join.format(self._load(source, names))};",
            f"{self._load(it.out, names[:rank])} = r;",
            "}",
        ]

    def _contract(self, it: Contract) -> None:
        """Several elements of the result at a time, or several parts of one element's sum."""
        out = it.out
        self.name(out.buffer)
        rank, terms = len(out.shape), it.operands[0].shape[-1]
        wide = max(range(rank), key=lambda d: out.shape[d], default=None)
        width = 1 if wide is None else out.shape[wide]
        names = [f"i{d}" for d in range(rank)]
        outer = [
            f"LOOP for (int {names[d]} = 0; {names[d]} < {out.shape[d]}; {names[d]}++)"
            for d in range(rank)
            if d != wide
        ]
        self.lines.append(" ".join([*outer, "{"]))
        for start in range(0, width, _ACCUMULATORS) if width <= 2 * _ACCUMULATORS else [None]:
            if start is None:
                whole = width // _ACCUMULATORS * _ACCUMULATORS
                self.lines.append(f"LOOP for (int j = 0; j < {whole}; j += {_ACCUMULATORS}) {{")
                self._sums(it, names, wide, [f"j + {u}" for u in range(_ACCUMULATORS)], terms)
                self.lines.append("}")
                if width > whole:
                    self._sums(it, names, wide, list(range(whole, width)), terms)
            else:
                self._sums(it, names, wide, list(range(start, min(start + _ACCUMULATORS, width))), terms)
        self.lines.append("}")

    def _sums(
        self, it: Contract, names: list[str], wide: int | None, elements: Sequence[int | str], terms: int
    ) -> None:
        left, right = it.operands
        parts = max(1, min(_ACCUMULATORS // len(elements), terms))
        parts = max(p for p in range(1, parts + 1) if terms % p == 0)

        def at(element: int | str) -> list[int | str]:
            return [element if d == wide else name for d, name in enumerate(names)]

        cells = [(u, p) for u in range(len(elements)) for p in range(parts)]
        self.lines.append("{ V " + ", ".join(f"a{u}_{p} = {{}}" for u, p in cells) + ";")
        self.lines.append(f"LOOP for (int k = 0; k < {terms}; k += {parts}) {{")
        for u, p in cells:
            index = [*at(elements[u]), f"k + {p}" if p else "k"]
            self.lines.append(f"a{u}_{p} += {self._load(left, index)} * {self._load(right, index)};")
        self.lines.append("}")
        for u, element in enumerate(elements):
            total = " + ".join(f"a{u}_{p}" for p in range(parts))
            self.lines.append(f"{self._load(it.out, at(element))} = {total};")
        self.lines.append("}")


def collapse(shape: Sequence[int], views: Sequence[View]) -> tuple[list[int], list[tuple[int, ...]]]:
    """Loops over neighbouring dimensions as one loop, where all views allow it."""
    sizes: list[int] = []
    columns: list[list[int]] = []
    for d, size in enumerate(shape):
        column = [view.strides[d] for view in views]
        if size == 1:
            continue
        if sizes and all(old == new * size for old, new in zip(columns[-1], column, strict=True)):
            sizes[-1], columns[-1] = sizes[-1] * size, column
        else:
            sizes.append(size)
            columns.append(column)
    strides = [tuple(column[v] for column in columns) for v in range(len(views))]
    return sizes, strides


def _indices(shape: Sequence[int]) -> Iterator[list[int | str]]:
    if not shape:
        yield []
        return
    for first in range(shape[0]):
        for rest in _indices(shape[1:]):
            yield [first, *rest]


def array_index(offset: int, strides: Sequence[int], index: Sequence[int | str]) -> str:
    """Where an element lies, in an array."""
    constant, parts = offset, []
    for stride, at in zip(strides, index, strict=True):
        if isinstance(at, int):
            constant += stride * at
        elif stride:
            parts.append(f"({at}) * {stride}" if stride != 1 else at)
    return " + ".join([*parts, *([str(constant)] if constant or not parts else [])])


def _parts(turns: int, sums: int) -> int:
    """How many turns of a loop are written out, each with its own part of the sums."""
    return max(p for p in range(1, UNROLLED + 1) if turns % p == 0 and (p == 1 or p * sums <= _ACCUMULATORS))


def _call(op: str, values: Sequence[str]) -> str:
    if op == "dot":
        return " + ".join(f"{a} * {b}" for a, b in zip(values[::2], values[1::2], strict=True))
    return f"{op}_({', '.join(values)})"


def _number(value: float) -> str:
    if value != value:
        return "spread(NOT_A_NUMBER)"
    if math.isinf(value):
        return "spread(INF)" if value > 0 else "spread(-INF)"
    return f"spread(real({value!r}))"


def lane_buffers(statements: Sequence[Statement]) -> list[Buffer]:
    """The buffers that statements write."""
    return list(dict.fromkeys(it.out.buffer for it in statements))


def program_size(program: Program) -> int:
    """How many elements all buffers of a program have."""
    return sum(buffer.size for buffer in lane_buffers([*program.statements, *program.adjoint]))
