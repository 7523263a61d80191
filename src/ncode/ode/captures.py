"""Captures: the tensors that the dynamics use besides their arguments, and stand-ins for them.

The solver's own backward must pass gradients to all parameters, buffers and closure tensors that the dynamics use, and
nobody should have to list them. `find_captures` evaluates the system once under a function mode that sees every tensor
which enters a torch function from outside; a walk over the autograd graph adds what such a mode cannot see (scripted or
compiled code) and tells where the system's own graph ends; what functions hold (held_values.py) adds what is used at
later times only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .._torch_private import pytree
from ..errors import InputError
from .held_values import children, held_by
from .system import CHANGES_ARGUMENT, REUSES_OUTPUT, State, version_of

_OF_SHAPE = frozenset({"size", "dim", "ndimension", "numel", "stride", "data_ptr", "is_inference", "__len__"})


class Probe(NamedTuple):
    """The evaluation at t0 with its graph: its arguments, which are leaves, and the slope."""

    t: Tensor
    z: State
    theta: tuple[Tensor, ...]
    slope: State


class Captures(NamedTuple):
    """The tensors that were found, and the slope that the evaluation returned."""

    slope: State
    trained: tuple[Tensor, ...]  # those that require a gradient
    others: tuple[Tensor, ...]
    outside: tuple[Tensor, ...]  # both, in the order in which the system uses them
    versions: tuple[int, ...]  # of `others`, after the evaluation
    uses_time: bool
    probe: Probe | None = None  # the evaluation, where it was made with autograd
    late: tuple[tuple[Tensor, int], ...] = ()  # what functions hold besides, and could read later, with versions
    rewrites: bool = False  # whether the slope is an outside tensor that the evaluation has changed (out=...)


class _OutsideTensors(TorchFunctionMode):
    """Remembers tensors that enter a torch function without having come out of one."""

    def __init__(self, known: Iterable[Tensor]):
        super().__init__()
        self.inside = {id(tensor): tensor for tensor in known}  # holding them keeps their ids unique
        self.outside: dict[int, Tensor] = {}
        self.versions: dict[int, int] = {}  # of these, when they were met
        self.used: set[int] = set()  # ids of arguments, apart from reads of attributes such as shapes

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        reads_value = func is not Tensor.is_inference and getattr(func, "__name__", "") != "__get__"
        for value in _tensors_in((*args, *kwargs.values())):
            if reads_value:
                self.used.add(id(value))
            if id(value) not in self.inside:
                if not torch.compiler.is_compiling():  # the user's torch.compile follows this mode, too
                    self.versions.setdefault(id(value), version_of(value))
                self.outside[id(value)] = value
        result = func(*args, **kwargs)
        for value in _tensors_in((result,)):
            if id(value) not in self.outside:
                self.inside[id(value)] = value
        return result

    def changed(self, tensor: Tensor) -> bool:
        """Whether this is an outside tensor that was changed since it was met."""
        return id(tensor) in self.versions and version_of(tensor) != self.versions[id(tensor)]


def _tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif not (value is None or isinstance(value, (int, float, str))):  # most are; flattening them takes time
            yield from (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor))


def find_captures(
    evaluate: Callable[[Tensor, State, Sequence[Tensor]], State],
    functions: Sequence[Callable[..., Any] | None],
    t: Tensor,
    z: State,
    theta: Sequence[Tensor],
    *,
    train: bool,
) -> Captures:
    """Evaluate a system once and find its captures; `train` also finds those that require a gradient."""
    if not train:
        # Copies, so that dynamics that work in place do not change what belongs to the caller.
        copies = tuple(leaf.clone() for leaf in (t, *z, *theta))
        mode = _OutsideTensors(copies)
        with mode:
            slope = evaluate(copies[0], copies[1 : 1 + len(z)], copies[1 + len(z) :])
        if torch.is_inference_mode_enabled() or t.device.type == "cpu":
            _check_unchanged(copies, (t, *z, *theta))
        others, uses_time = tuple(mode.outside.values()), id(copies[0]) in mode.used
        versions = tuple(map(version_of, others))
        return Captures(slope, (), others, others, versions, uses_time, rewrites=any(map(mode.changed, slope)))

    kept = [leaf.detach().clone() for leaf in (t, *z, *theta)] if t.device.type == "cpu" else ()
    # Stand-ins for the arguments: what leads to them is not outside.
    z = tuple(leaf.detach().requires_grad_() for leaf in z)
    theta = tuple(leaf.detach().requires_grad_(leaf.is_floating_point() or leaf.is_complex()) for leaf in theta)
    t = t.detach().requires_grad_()
    mode = _OutsideTensors((t, *z, *theta))
    # Sequence numbers tell what was computed before: each thread counts for itself, so that gradients inside of the
    # dynamics have to be computed in this one.
    with torch.enable_grad(), torch.autograd.set_multithreading_enabled(False):
        start: Any = torch.zeros((), requires_grad=True).exp().grad_fn
        with mode:
            slope = evaluate(t, z, theta)
    _check_unchanged((t, *z, *theta), kept)

    trained = [tensor for tensor in mode.outside.values() if tensor.requires_grad]
    known = {id(tensor) for tensor in (*trained, t, *z, *theta)}
    reachable, late = _reachable(functions, mode.outside)
    for tensor in (*_graph_leaves(slope, trained, start), *reachable):
        made_here = tensor.grad_fn is not None and tensor.grad_fn._sequence_nr() >= start._sequence_nr()
        if id(tensor) not in known and not made_here:  # a result that the functions remember is no capture
            known.add(id(tensor))
            trained.append(tensor)
    others = [tensor for tensor in mode.outside.values() if not tensor.requires_grad]
    outside = (*mode.outside.values(), *(tensor for tensor in trained if id(tensor) not in mode.outside))
    versions = tuple(map(version_of, others))
    found = tuple(leaf.detach() for leaf in slope)
    probe = Probe(t, z, theta, slope)
    rewrites, uses_time = any(map(mode.changed, slope)), id(t) in mode.used
    return Captures(found, tuple(trained), tuple(others), outside, versions, uses_time, probe, late, rewrites)


def _check_unchanged(given: Sequence[Tensor], kept: Sequence[Tensor]) -> None:
    """Refuse changes that tensors do not count: under inference mode, of `x.data`, through NumPy. They are undone.

    On a GPU looking at values would wait for it, so that they are compared there under inference mode only.
    """
    changed = False
    for now, before in zip(given, kept, strict=bool(kept)):
        if not has_values(now, before):
            now.data.copy_(before)
            changed = True
    if changed:
        raise InputError(CHANGES_ARGUMENT)


def has_values(now: Tensor, before: Tensor) -> bool:
    """Whether a tensor has the values of another one, nan included."""
    return torch.equal(now, before) or bool(((now == before) | (now.isnan() & before.isnan())).all())


class FirstSlope:
    """A recorder that refuses dynamics which, in the first step, write over what they returned at t0.

    Version counters show this, too, but not if it is written through NumPy. Not on a GPU, which would have to wait.
    """

    def __init__(self, slope: State):
        self.pairs = [(leaf, leaf.clone()) for leaf in slope]

    def add(self, record: object) -> None:
        pairs, self.pairs = self.pairs, []
        if not all(has_values(leaf, before) for leaf, before in pairs):
            raise InputError(REUSES_OUTPUT)


def evaluate_with_time_use(function: Callable[..., Any], t: Tensor, *more: Any) -> tuple[Any, bool]:
    """What a function returns, and whether it uses the values of its first argument."""
    mode = _OutsideTensors((t,))
    with mode:
        value = function(t, *more)
    return value, id(t) in mode.used


def _graph_leaves(slope: State, trained: Sequence[Tensor], start: Any) -> Iterator[Tensor]:
    """Leaf tensors that the slope's graph leads to, stopping at tensors that are known."""
    ends = {(tensor.grad_fn, tensor.output_nr) for tensor in trained if tensor.grad_fn is not None}
    born = start._sequence_nr()
    stack: list[tuple[Any, int]] = [(leaf.grad_fn, leaf.output_nr) for leaf in slope if leaf.grad_fn is not None]
    visited = set()
    while stack:
        node, index = stack.pop()
        if node is None or (node, index) in ends or node in visited:
            continue
        visited.add(node)
        if node.name().endswith("AccumulateGrad"):
            yield node.variable  # pyright: ignore[reportAttributeAccessIssue]
        elif node._sequence_nr() < born and not _is_autocast_copy(node, trained):
            raise InputError(
                f"the dynamics use a tensor that was computed outside of them ({node.name()}) in a way that solve"
                ' cannot follow: pass it as theta, or use gradient="autograd"'
            )
        else:
            stack.extend(node.next_functions)


def _is_autocast_copy(node: Any, trained: Sequence[Tensor]) -> bool:
    """Whether a node is autocast's copy of a known tensor, cached by an earlier evaluation."""
    ends = [after for after, _ in node.next_functions if after is not None]
    return node.name() == "ToCopyBackward0" and all(
        end.name().endswith("AccumulateGrad") and any(end.variable is tensor for tensor in trained) for end in ends
    )


def _reachable(
    functions: Sequence[Callable[..., Any] | None], seen: Mapping[int, Tensor]
) -> tuple[list[Tensor], tuple[tuple[Tensor, int], ...]]:
    """Parameters that functions could use: some are used at later times only, and one evaluation does not show them.

    Also the other tensors that they hold, apart from those that were seen, with their versions.
    """
    parameters: list[Tensor] = []
    others: dict[int, tuple[Tensor, int]] = {}
    for function in functions:
        nearest = {id(value) for _, value in children(function)}
        for value in held_by(function):
            if not isinstance(value, Tensor):
                continue
            if not value.requires_grad:
                if id(value) not in seen:
                    others[id(value)] = value, version_of(value)
            elif value.is_leaf or id(value) in nearest:  # another one may belong to a graph that is gone
                parameters.append(value)
    return parameters, tuple(others.values())


class RefuseReads(TorchFunctionMode):
    """Raises an error where one of some tensors is read; shapes and the like may be."""

    def __init__(self, tensors: Sequence[Tensor], error: Callable[[Tensor], Exception]):
        super().__init__()
        self.tensors, self.error = {id(tensor): tensor for tensor in tensors}, error

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in _OF_SHAPE or (name == "__get__" and not isinstance(result, Tensor)):
            return result
        for value in _tensors_in((*args, *(kwargs or {}).values())):
            if id(value) in self.tensors:
                raise self.error(value)
        return result


class _Replace(TorchFunctionMode):
    """Replaces tensors that enter a torch function."""

    def __init__(self, stand_ins: Mapping[int, tuple[Tensor, Tensor]]):
        super().__init__()
        self.stand_ins = stand_ins

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = self.replace((args, kwargs or {}))
        return func(*args, **kwargs)

    def replace(self, tree: Any) -> Any:
        return pytree.tree_map_only(Tensor, lambda it: self.stand_ins.get(id(it), (it, it))[1], tree)


@dataclass(frozen=True, eq=False)
class IsolatedFunction:
    """A function that uses stand-ins for some of its captures."""

    function: Callable[..., Any]
    stand_ins: Mapping[int, tuple[Tensor, Tensor]]  # by id: the tensor, held so that its id stays unique, and another

    def __call__(self, *arguments: Any) -> Any:
        mode = _Replace(self.stand_ins)
        with mode:
            result = self.function(*arguments)
        return mode.replace(result)


def torch_settings(device: torch.device) -> Hashable:
    """Settings under which the same operations compute something else: a traced graph keeps those it was traced in."""
    backends: Any = torch.backends
    products, cudnn, mkldnn = backends.cuda.matmul, backends.cudnn, backends.mkldnn
    kinds = [getattr(backend, kind, None) for backend in (cudnn, mkldnn) for kind in ("matmul", "conv", "rnn")]
    return (
        autocast_modes(device),
        tuple(map(_precision, (backends, products, cudnn, mkldnn, *kinds))),
        (products.allow_fp16_reduced_precision_reduction, products.allow_bf16_reduced_precision_reduction),
        (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, mkldnn.enabled),
        torch.get_deterministic_debug_mode(),
    )


def _precision(backend: Any) -> Hashable:
    # allow_tf32 says the same, but raises where the setting was made by its newer name.
    return getattr(backend, "fp32_precision", None) or getattr(backend, "allow_tf32", None)


def autocast_modes(device: torch.device) -> tuple[tuple[str, torch.dtype, bool], ...]:
    kinds = sorted({device.type, "cpu"})
    return tuple((kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in kinds)
