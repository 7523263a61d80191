"""From a traced graph to the loop program of one sample, with the proof that samples are separate.

Every value of the graph is one of four kinds: `Lane`, with one row per sample (it knows which dimension is the batch);
`Fill`, one number throughout; `Shared`, the same for all samples, which torch computes once per solve (the prologue);
`Summed`, a sum over samples, from which torch computes the gradients of captures at the end (the epilogue, linear).
An operation that would mix samples, or that is not known, raises `Unsupported`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, fx

from .ir import Buffer, Contract, Operand, Pointwise, Program, Reduce, Statement, Term, View
from .operations import IDENTITIES, MASKS, POINTWISE, REDUCTIONS, VIEWS
from .outside import Part, make_part
from .rearrange import rearrange
from .trace import Graph, Unsupported
from .values import (
    SAMPLE,
    Fill,
    Lane,
    Mixed,
    Shared,
    Summed,
    example,
    is_linear,
    leaves,
    map_nodes,
    name_of,
    simplified,
)


class Lowered:
    """A lowered graph: the program, its inputs, and what torch computes before and after it."""

    def __init__(self, graph: Graph, batch: int, dtype: torch.dtype, name: str = "w"):
        self.graph, self.batch, self.dtype, self.name = graph, batch, dtype, name
        self.program = Program()
        self.inputs: list[Buffer] = []  # t (and h), z, theta, and the gradient of the slope or end
        self.shared: dict[tuple[fx.Node, int | None], Buffer] = {}  # a node, and the dimension whose first index counts
        self.sums: list[fx.Node] = []  # the nodes that `program.shared_terms` compute
        self.capture_gradients: list[fx.Node | None] = []
        self._fixed: list[Tensor] = []  # shared tensors, where they depend on no capture
        self._count = 0
        self._env: dict[fx.Node, Any] = {}
        self._adjoint: set[Buffer] = set()
        self._products: dict[Buffer, tuple[View, View]] = {}
        self._constants: dict[fx.Node, Tensor] = {}  # values that depend on no input and no capture
        graph.module.graph.eliminate_dead_code()  # a sum that was only differentiated, say
        for node in graph.module.graph.nodes:
            self._env[node] = value = self._visit(node)
            if isinstance(value, Fill) and node not in self._constants:
                like = example(node)
                self._constants[node] = torch.full(value.shape, value.value, dtype=like.dtype, device=like.device)
        rearrange(self.program)

    # What torch computes

    @cached_property
    def _prologue(self) -> Part:
        return make_part([node for node, _ in self.shared], (), self._constants, self.graph.module.graph)

    @cached_property
    def _epilogue(self) -> Part:
        wanted = [node for node in self.capture_gradients if node is not None]
        return make_part(wanted, self.sums, self._constants, self.graph.module.graph)

    def run_prologue(self, captures: dict[str, Tensor]) -> Sequence[Tensor]:
        """The shared tensors of the program, given the captures by name."""
        if self.shared and not self._fixed:
            values = zip(self._prologue((), captures, self.graph.module), self.shared, strict=True)
            found = [self._flat(value, drop) for value, (_, drop) in values]
            if self._prologue.names:
                return found
            self._fixed = found
        return self._fixed

    def run_epilogue(self, sums: Sequence[Tensor], captures: dict[str, Tensor]) -> list[Tensor | None]:
        """The gradients of captures, given the sums over samples."""
        found = iter(self._epilogue(sums, captures, self.graph.module))
        return [None if node is None else next(found) for node in self.capture_gradients]

    def _flat(self, value: Tensor, drop: int | None) -> Tensor:
        value = value if drop is None else value.select(drop, 0)
        return value.detach().to(self.dtype).contiguous()

    # One node

    def _visit(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self._input(node)
        if node.op == "get_attr":
            return Shared(node)
        if node.op == "output":
            return self._output(node.args[0])  # pyright: ignore[reportArgumentType]
        args, kwargs = map_nodes((node.args, node.kwargs), self._env.__getitem__)
        kinds = {type(it) for it in leaves((args, kwargs))}
        if node.target is operator.getitem:
            return args[0][args[1]] if isinstance(args[0], (list, tuple)) else Shared(node)
        name = name_of(node)
        constant = self._constant(node)
        if constant is not None:
            return constant
        mixed = next((it for it in leaves((args, kwargs)) if isinstance(it, Mixed)), None)
        if name in _FACTORIES and (mixed is not None or Lane in kinds):
            number = args[-1] if "full" in name else float("ones" in name)
            return Fill(float(number), tuple(example(node).shape))
        if mixed is not None:
            raise Unsupported(mixed.reason)
        if Summed in kinds:
            if Lane in kinds or not is_linear(name, args, bool(kwargs.get("rounding_mode"))):
                raise Unsupported(f"a gradient of a captured tensor goes through {name} after the sum over samples")
            return Summed(node)
        if Lane not in kinds and Shared in kinds and (name in POINTWISE or name in _PRODUCTS):
            # A constant that may have one row per sample: as a shared tensor, its rows would be those of this batch.
            args = tuple(self._filled(it) if isinstance(it, Fill) else it for it in args)
            kinds = {type(it) for it in args}
        if Lane not in kinds:
            return self._without_samples(node, name, args)
        return self._lane_operation(node, name, args, kwargs)

    def _constant(self, node: fx.Node) -> Fill | Shared | None:
        """A value that depends on nothing else, if it is one: a single number where that says it all."""
        if not isinstance(node.meta.get("val"), Tensor) or any(
            it not in self._constants for it in node.all_input_nodes
        ):
            return None
        args, kwargs = map_nodes((node.args, node.kwargs), self._constants.__getitem__)
        value = node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]
        if not isinstance(value, Tensor) or value.is_complex() or not value.numel():
            return None
        self._constants[node] = value
        first = value.flatten()[0]
        if bool((value == first).all()):
            return Fill(float(first), tuple(value.shape))
        return Shared(node)

    def _input(self, node: fx.Node) -> Lane:
        number, seen = len(self.inputs), example(node)
        buffer = Buffer(f"in{number}", math.prod(seen.shape[1:]))
        self.inputs.append(buffer)
        if number >= self.graph.clocks + self.graph.states + self.graph.controls:
            self._adjoint.add(buffer)
        if seen.dtype != self.dtype:
            raise Unsupported(f"an input of type {seen.dtype}")
        return Lane(buffer, self._layout(seen.shape, 0))

    def _without_samples(self, node: fx.Node, name: str, args: Any) -> Fill | Shared:
        seen = example(node) if isinstance(node.meta.get("val"), Tensor) else None
        if seen is not None and name in ("full", "zeros", "ones", "scalar_tensor"):
            number = {"full": lambda: args[1], "scalar_tensor": lambda: args[0], "ones": lambda: 1}.get(
                name, lambda: 0
            )()
            if isinstance(number, (bool, int, float)):
                return Fill(float(number), tuple(seen.shape))
        if seen is not None and name in VIEWS and isinstance(args[0], Fill):
            return Fill(args[0].value, tuple(seen.shape))
        return Shared(node)

    def _lane_operation(self, node: fx.Node, name: str, args: Any, kwargs: Any) -> Any:
        if name in VIEWS:
            return self._view(node, args, kwargs)
        if not isinstance(node.meta.get("val"), Tensor):
            raise Unsupported(f"the operation {name} is not known to kernels")
        self._check_dtype(node, name)
        if name in IDENTITIES:
            source = example(node.args[0])  # pyright: ignore[reportArgumentType]
            if example(node).dtype == torch.bool and source.dtype != torch.bool:
                return self._pointwise(node, "ne", (args[0], 0.0))
            return args[0]
        if name in POINTWISE:
            return self._pointwise(node, name, args, kwargs)
        if name in REDUCTIONS:
            return self._reduction(node, name, args, kwargs)
        if name in _PRODUCTS:
            return self._product(node, *_PRODUCTS[name], *args)
        if name in ("addmm", "baddbmm", "addmv"):
            letters = _PRODUCTS[{"addmm": "mm", "baddbmm": "bmm", "addmv": "mv"}[name]]
            product = self._product(node, *letters, *args[1:])
            if not isinstance(product, Lane) or any(kwargs.get(it, 1) != 1 for it in ("alpha", "beta")):
                raise Unsupported(f"{name} with factors, or over samples")
            return self._pointwise(node, "add", (args[0], product))
        if name == "cat":
            return self._cat(node, args[0], args[1] if len(args) > 1 else kwargs.get("dim", 0))
        if name in ("select_backward", "slice_backward"):
            return self._scatter(node, name, args)
        raise Unsupported(f"the operation {name} is not known to kernels")

    def _check_dtype(self, node: fx.Node, name: str) -> None:
        allowed = (self.dtype, torch.bool) if name in MASKS else (self.dtype,)
        if example(node).dtype not in allowed:
            raise Unsupported(f"{name} returns {example(node).dtype}, and the state is {self.dtype}")

    def _filled(self, fill: Fill) -> Lane | Fill:
        """A constant as a tensor with one row per sample, if its shape may be that of one."""
        if self.batch not in fill.shape:
            return fill
        new = self._new(fill.shape, fill.shape.index(self.batch))
        self._emit(Pointwise(new.view, "copy", (fill.value,)))
        return new

    # Operations on samples

    def _layout(self, shape: Sequence[int], batch: int) -> Tensor:
        own = [size for d, size in enumerate(shape) if d != batch]
        strides = [math.prod(own[d + 1 :]) for d in range(len(own))]
        strides.insert(batch, SAMPLE)
        return torch.empty_strided(tuple(shape), strides, device="meta")

    def _new(self, shape: Sequence[int], batch: int) -> Lane:
        size = math.prod(shape) // shape[batch]
        self._count += 1
        return Lane(Buffer(f"b{self._count}", size), self._layout(shape, batch))

    def _emit(self, statement: Statement) -> None:
        adjoint = any(isinstance(it, View) and it.buffer in self._adjoint for it in statement.operands)
        if adjoint or statement.out.buffer in self._adjoint:
            self._adjoint.add(statement.out.buffer)
            self.program.adjoint.append(statement)
        else:
            self.program.statements.append(statement)

    def _view(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        lane, apply = args[0], lambda it: node.target(it.layout, *args[1:], **kwargs)  # pyright: ignore[reportCallIssue]
        try:
            found = apply(lane)
        except RuntimeError:  # a view of memory that is not row by row
            lane = self._copy(lane)
            try:
                found = apply(lane)
            except RuntimeError:
                raise Unsupported(f"{name_of(node)} joins samples with another dimension") from None
        layouts = found if isinstance(found, (list, tuple)) else [found]
        for layout in layouts:
            at = [d for d, stride in enumerate(layout.stride()) if stride >= SAMPLE and layout.shape[d] > 1]
            whole = len(at) == 1 and layout.stride(at[0]) == SAMPLE and layout.shape[at[0]] == self.batch
            if not whole or layout.storage_offset() >= SAMPLE:
                raise Unsupported(f"{name_of(node)} takes some samples, or joins them with another dimension")
        lanes = [Lane(lane.buffer, layout) for layout in layouts]
        return lanes if isinstance(found, (list, tuple)) else lanes[0]

    def _copy(self, lane: Lane) -> Lane:
        new = self._new(lane.layout.shape, lane.batch)
        self._emit(Pointwise(new.view, "copy", (lane.view,)))
        return new

    def _batch_of(self, values: Sequence[Any], dims: int, name: str) -> int:
        """Which dimension of a result with so many dimensions is the batch."""
        places = {it.batch + dims - it.layout.dim() for it in values if isinstance(it, Lane)}
        if len(places) != 1:
            raise Unsupported(f"{name} combines samples with one another")
        return places.pop()

    def _operand(self, value: Any, shape: Sequence[int], batch: int) -> Operand:
        """A value as an operand of one sample, broadcast to a result of this shape."""
        own = [size for d, size in enumerate(shape) if d != batch]
        if isinstance(value, Lane):
            return value.view.expand(own)
        if isinstance(value, Fill):
            return value.value
        if isinstance(value, Shared):
            return self._shared(value.node, batch - len(shape) + example(value.node).dim()).expand(own)
        if isinstance(value, (bool, int, float)):
            return float(value)
        raise Unsupported(f"an operand of type {type(value).__name__}")

    def _shared(self, node: fx.Node, batch: int) -> View:
        """A shared tensor without the dimension that lies at the place of the batch, if it has it."""
        seen, drop = example(node), batch if batch >= 0 else None
        if (
            drop is not None
            and seen.shape[drop] != 1
            and seen.stride(drop) != 0
            and not self._has_equal_rows(node, drop)
        ):
            raise Unsupported(
                f"a captured tensor of shape {tuple(seen.shape)} has one row per sample: pass it as theta"
            )
        shape = [size for d, size in enumerate(seen.shape) if d != drop]
        if (node, drop) not in self.shared:
            self.shared[node, drop] = Buffer(f"{self.name}{len(self.shared)}", math.prod(shape), shared=True)
        return View.whole(self.shared[node, drop], shape)

    def _has_equal_rows(self, node: fx.Node, dim: int | None) -> bool:
        value = self._constants.get(node)
        return value is not None and dim is not None and bool((value == value.narrow(dim, 0, 1)).all())

    def _pointwise(self, node: fx.Node, name: str, args: Any, kwargs: Any = {}) -> Lane | Fill:  # noqa: B006
        shape = example(node).shape
        op, args = POINTWISE[name](args, kwargs) if name in POINTWISE else (name, args)
        known = simplified(op, args, shape) if self.graph.is_step else None
        if known is not None:
            return known
        batch = self._batch_of(args, len(shape), name)
        new = self._new(shape, batch)
        operands = tuple(self._operand(it, shape, batch) for it in args)
        self._emit(Pointwise(new.view, op, operands))
        if op == "mul" and all(isinstance(it, View) and not it.buffer.shared for it in operands):
            self._products[new.buffer] = operands  # pyright: ignore[reportArgumentType]
        return new

    def _reduction(self, node: fx.Node, name: str, args: Any, kwargs: Any) -> Lane | Summed | Mixed:
        lane, rank = args[0], args[0].layout.dim()
        dims = args[1] if len(args) > 1 else kwargs.get("dim")
        dims = range(rank) if dims is None or dims == [] else [dims] if isinstance(dims, int) else dims
        dims = sorted({d % rank for d in dims})
        keep = args[2] if len(args) > 2 else kwargs.get("keepdim", False)
        mean = name == "mean"
        own = [d for d in dims if d != lane.batch]
        found = self._reduce(lane, own, keep or lane.batch in dims, "sum" if mean else name)
        if mean and own:
            count = math.prod(lane.layout.shape[d] for d in own)
            scaled = self._new(found.layout.shape, found.batch)
            self._emit(Pointwise(scaled.view, "div", (found.view, float(count))))
            found = scaled
        if lane.batch not in dims:
            return found
        if name != "sum":
            return Mixed(f"{name} over samples: they may not interact")
        return self._sum(node, self._term(found.view))

    def _reduce(self, lane: Lane, dims: Sequence[int], keep: bool, op: str) -> Lane:
        if not dims:
            return lane
        shape = [1 if d in dims else size for d, size in enumerate(lane.layout.shape)]
        order = [d for d in range(lane.layout.dim()) if d not in dims]
        source = Lane(lane.buffer, lane.layout.permute(*order, *dims)).view
        new = self._new([shape[d] for d in order], order.index(lane.batch))
        self._emit(Reduce(new.view, op, (source,)))
        if not keep:
            return new
        layout = new.layout
        for d in dims:
            layout = layout.unsqueeze(d)
        return Lane(new.buffer, layout)

    def _term(self, view: View) -> Term:
        """A view as a term, or the two views whose product it is."""
        factors = self._products.get(view.buffer)
        if factors is None or view != View.whole(view.buffer, factors[0].shape):
            return Term((view,))
        return Term(factors, view)

    def _sum(self, node: fx.Node, term: Term) -> Summed | Mixed:
        if not any(it.buffer in self._adjoint for it in term.factors):
            return Mixed("a sum over samples: they may not interact")
        self.sums.append(node)
        self.program.shared_terms.append(term)
        return Summed(node)

    def _product(self, node: fx.Node, left: str, right: str, out: str, a: Any, b: Any) -> Lane | Summed | Mixed:
        """A product of matrices, its indices named by letters; k is summed over."""
        a, b = (self._filled(it) if isinstance(it, Fill) else it for it in (a, b))
        pairs = [(a, left), (b, right)]
        places = {letters[it.batch] for it, letters in pairs if isinstance(it, Lane)}
        if len(places) != 1:
            raise Unsupported(f"{name_of(node)} combines samples with one another")
        sample = places.pop()
        shapes = [example(it).shape for it in node.args[-2:]]  # pyright: ignore[reportArgumentType]
        sizes = dict(zip(left, shapes[0], strict=True)) | dict(zip(right, shapes[1], strict=True))
        space = [it for it in (*out, "k") if it != sample]
        views = [self._factor(it, letters, sample, space, sizes) for it, letters in pairs]
        if sample == "k":
            if isinstance(a, Lane) and isinstance(b, Lane):
                return self._sum(node, Term(tuple(views)))
            raise Unsupported(f"{name_of(node)} sums over samples: they may not interact")
        new = self._new([sizes[it] for it in out], out.index(sample))
        if sizes["k"] == 1:
            views = [View(it.buffer, it.shape[:-1], it.strides[:-1], it.offset) for it in views]
            self._emit(Pointwise(new.view, "mul", tuple(views)))
            if not any(it.buffer.shared for it in views):
                self._products[new.buffer] = (views[0], views[1])
        else:
            self._emit(Contract(new.view, (views[0], views[1])))
        return new

    def _factor(self, value: Any, letters: str, sample: str, space: Sequence[str], sizes: dict[str, int]) -> View:
        """An operand of a product as a view over the indices in `space`."""
        if isinstance(value, Lane):
            view = value.view
        elif isinstance(value, Shared):
            view = self._shared(value.node, letters.find(sample))
        else:
            raise Unsupported("a product with a constant matrix")
        own = dict(zip([it for it in letters if it != sample], view.strides, strict=True))
        strides = tuple(own.get(it, 0) for it in space)
        return View(view.buffer, tuple(sizes[it] for it in space), strides, view.offset)

    def _cat(self, node: fx.Node, parts: Sequence[Any], dim: int) -> Lane:
        shape = example(node).shape
        batch, dim = self._batch_of(parts, len(shape), "cat"), dim % len(shape)
        if dim == batch:
            raise Unsupported("cat joins samples")
        new, start = self._new(shape, batch), 0
        for part, source in zip(parts, node.args[0], strict=True):  # pyright: ignore[reportArgumentType]
            size = example(source).shape[dim]  # pyright: ignore[reportArgumentType]
            place = Lane(new.buffer, new.layout.narrow(dim, start, size))
            if isinstance(part, Lane) and any(it.buffer in self._adjoint for it in (part.view,)):
                self._adjoint.add(new.buffer)
            start += size
            self._emit_into(place, part)
        return new

    def _emit_into(self, place: Lane, value: Any) -> None:
        if place.view.size:
            operand = self._operand(value, place.layout.shape, place.batch)
            self._emit(Pointwise(place.view, "copy", (operand,)))

    def _scatter(self, node: fx.Node, name: str, args: Any) -> Lane:
        """The gradient of a part, as a gradient of the whole: zeros elsewhere."""
        grad, shape, dim, *where = args
        shape, dim = list(shape), args[2] % len(args[1])
        batch = grad.batch + (name == "select_backward" and grad.batch >= dim)
        if dim == batch:
            raise Unsupported("a part of the samples")
        new = self._new(shape, batch)
        if grad.buffer in self._adjoint:
            self._adjoint.add(new.buffer)
        self._emit(Pointwise(new.view, "copy", (0.0,)))
        if name == "select_backward":
            layout = new.layout.select(dim, where[0])
        else:
            layout = torch.ops.aten.slice.Tensor(new.layout, dim, *where)
        self._emit_into(Lane(new.buffer, layout), grad)
        return new

    # Results

    def _output(self, results: Sequence[fx.Node | None]) -> None:
        graph, program = self.graph, self.program
        rest = iter(results)
        states = range(graph.states)
        if graph.wanted is None or not graph.is_step:
            program.slopes = [self._row(next(rest)) for _ in states]
        if graph.wanted is None:
            if graph.is_step:
                *errors, singular = rest
                program.errors, program.singular = [self._row(it) for it in errors], self._row(singular)
            return
        program.state_gradients = [self._row(next(rest)) for _ in states]
        if graph.wanted.time:
            program.time_gradient = self._row(next(rest))
            program.size_gradient = self._row(next(rest)) if graph.is_step else 0.0
        for number, want in enumerate(graph.wanted.theta):
            if want:
                self._own_gradient(number, next(rest))
        self.capture_gradients = [self._capture_gradient(node) for node in rest]

    def _row(self, node: fx.Node | None) -> Operand:
        """A result with one row per sample."""
        if node is None:
            return 0.0
        value, shape = self._env[node], example(node).shape
        if isinstance(value, Mixed):
            raise Unsupported(value.reason)
        if isinstance(value, Lane) and value.batch != 0:
            raise Unsupported("a result whose first dimension is not the batch")
        return self._operand(value, shape, 0)

    def _own_gradient(self, number: int, node: fx.Node | None) -> None:
        row = self._row(node)
        if isinstance(row, View):
            self.program.own_terms[number] = self._term(row)
        elif row:
            raise Unsupported("a constant gradient")

    def _capture_gradient(self, node: fx.Node | None) -> fx.Node | None:
        value = None if node is None else self._env[node]
        if value is None or (isinstance(value, Fill) and not value.value):
            return None
        if not isinstance(value, Summed):
            raise Unsupported("a gradient of a captured tensor that is not a sum over samples")
        return node


_FACTORIES = frozenset(["zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"])
_PRODUCTS = {"mm": ("mk", "kn", "mn"), "bmm": ("pmk", "pkn", "pmn"), "mv": ("mk", "k", "m")}
