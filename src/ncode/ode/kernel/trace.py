"""The user's functions as graphs of tensor operations: an evaluation of the system, or a step, and its pullback.

Both are traced with the batch of the solve, so that they are what an eager solve would do with it.
"""

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from ..._torch_private import TorchDispatchMode, core_decompositions, trace
from ..backends.graph import NoNumPy
from ..captures import Captures
from ..gradients.function import ForwardContext
from ..implicit import RosenbrockStep
from ..linear_solver import factorise
from ..linearise import linearise
from ..system import State, System
from ..unknown import refuse_unknown

_aten = torch.ops.aten


class Unsupported(Exception):
    """Something that a kernel cannot do; the message is a clause that says what."""


class Wanted(NamedTuple):
    """Which inputs need a gradient, apart from the state."""

    time: bool
    theta: tuple[bool, ...]  # the control's leaves


class Graph(NamedTuple):
    """A traced function of (t, z, theta): an evaluation, whose result is the slope; or of (t, h, z, theta): a step.

    A pullback is also a function of the gradient of the slope, or of the end of the step. Its results are, in this
    order: the slope (of an evaluation), the gradients of z, of t (and of h, of a step), of theta and of captures. A
    step results in its end, its error unless its size is fixed, and whether it met a singular matrix.
    """

    module: fx.GraphModule
    states: int  # leaves of z
    controls: int  # leaves of theta
    wanted: Wanted | None  # of a pullback: the gradients after those of z
    captures: int = 0  # of a pullback: the gradients of captures, last
    is_step: bool = False

    @property
    def clocks(self) -> int:
        """How many of the inputs are times."""
        return 2 if self.is_step else 1


class _RefuseReads(TorchDispatchMode):
    """Refuses dynamics that read a tensor's value: a trace would keep the value of this one time."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (_aten._local_scalar_dense.default, _aten.equal.default, _aten.nonzero.default):
            raise Unsupported(f"the dynamics read the values of a tensor ({func})")
        return func(*args, **(kwargs or {}))


def trace_slope(system: System, t: Tensor, z: State, theta: Sequence[Tensor]) -> Graph:
    """One evaluation of the system, at t of its clock."""
    control, rest = _split(system, theta)

    def slope(*inputs: Tensor) -> list[Tensor]:
        time, at, leaves = inputs[0], inputs[1 : 1 + len(z)], inputs[1 + len(z) :]
        return list(system.bind((*leaves, *rest))(time, tuple(at)))

    with torch.no_grad():
        return Graph(_trace(slope, (t, *z, *control)), len(z), len(control), None)


def trace_pullback(
    system: System,
    t: Tensor,
    z: State,
    theta: Sequence[Tensor],
    wanted: Wanted,
    captures: Captures,
    context: ForwardContext,
) -> Graph:
    """The slope, and the products of its gradient with its derivatives."""
    control, rest = _split(system, theta)
    states, controls = len(z), len(control)

    def pullback(*inputs: Tensor) -> list[Tensor | None]:
        flags = [wanted.time, *[True] * states, *wanted.theta]
        given = inputs[: 1 + states + controls]
        leaves = [leaf.detach().requires_grad_(flag) for leaf, flag in zip(given, flags, strict=True)]
        with torch.enable_grad(), context:
            slope = system.bind((*leaves[1 + states :], *rest))(leaves[0], tuple(leaves[1 : 1 + states]))
        pairs = zip(slope, inputs[1 + states + controls :], strict=True)
        linked = [(k, grad) for k, grad in pairs if k.requires_grad]
        sought = [leaf for leaf in (*leaves[1 : 1 + states], *leaves[:1], *leaves[1 + states :]) if leaf.requires_grad]
        found: Sequence[Tensor | None] = [None] * (len(sought) + len(captures.trained))
        if linked:
            refuse_unknown([k for k, _ in linked], (*sought, *captures.trained))
            outputs, grads = zip(*linked, strict=True)
            found = torch.autograd.grad(outputs, (*sought, *captures.trained), grads, allow_unused=True)
        return [*(k.detach() for k in slope), *found]

    with torch.no_grad():
        module = _trace(pullback, (t, *z, *control, *z))
    return Graph(module, states, controls, wanted, len(captures.trained))


def trace_step(step: RosenbrockStep, t: Tensor, h: Tensor, z: State, control: Sequence[Tensor]) -> Graph:
    """One step of a Rosenbrock method; its system has no constants besides the control."""
    states = len(z)

    def advance(*inputs: Tensor) -> list[Tensor]:
        time, size, at, leaves = inputs[0], inputs[1], inputs[2 : 2 + states], inputs[2 + states :]
        result = step(time, size, at, leaves)
        # The same matrix once more, which costs nothing: equal operations are merged.
        rows = linearise(step.system, leaves, time, at).rows
        singular = factorise(rows, size * step.tableau.gamma).singular
        return [*result.z, *(leaf for error in result.errors for leaf in error), singular]

    with torch.no_grad():
        return Graph(_trace(advance, (t, h, *z, *control)), states, len(control), None, is_step=True)


def trace_step_pullback(
    step: RosenbrockStep,
    t: Tensor,
    h: Tensor,
    z: State,
    control: Sequence[Tensor],
    wanted: Wanted,
    captures: Captures,
    context: ForwardContext,
) -> Graph:
    """The products of the gradient of a step's end with its derivatives."""
    states, controls = len(z), len(control)

    def pullback(*inputs: Tensor) -> list[Tensor | None]:
        flags = [wanted.time, wanted.time, *[True] * states, *wanted.theta]
        leaves = [leaf.detach().requires_grad_(flag) for leaf, flag in zip(inputs, flags, strict=False)]
        time, size, at, own = leaves[0], leaves[1], tuple(leaves[2 : 2 + states]), leaves[2 + states :]
        with torch.enable_grad(), context:
            end = step(time, size, at, own).z
        sought = [*at, *([time, size] if wanted.time else []), *(leaf for leaf in own if leaf.requires_grad)]
        refuse_unknown(end, (*leaves, *captures.trained))
        return list(
            torch.autograd.grad(end, (*sought, *captures.trained), inputs[2 + states + controls :], allow_unused=True)
        )

    with torch.no_grad():
        module = _trace(pullback, (t, h, *z, *control, *z))
    return Graph(module, states, controls, wanted, len(captures.trained), is_step=True)


def _split(system: System, theta: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """The control's leaves, and the constants behind them that only the clock reads."""
    count = len(theta) - system.time_constants
    return theta[:count], theta[count:]


def _trace(function: Callable[..., Any], inputs: Sequence[Tensor]) -> fx.GraphModule:
    inputs = [leaf.detach().contiguous() for leaf in inputs]
    try:
        with warnings.catch_warnings(), _RefuseReads(), NoNumPy():
            warnings.simplefilter("ignore")
            return trace(function, inputs, _decompositions(), _without_changes)
    except Unsupported:
        raise
    except Exception as error:  # whatever it is, other backends may not mind it
        raise Unsupported(
            f"tracing the dynamics failed: {str(error).splitlines()[0] if str(error) else error!r}"
        ) from error


def _without_changes(graph: fx.Graph) -> None:
    """Replace operations that change a tensor of the graph's own in place; refuse others, and random numbers."""
    order = {node: number for number, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        target: Any = node.target
        if node.op != "call_function" or target is operator.getitem:
            continue
        if not isinstance(target, torch._ops.OpOverload):
            raise Unsupported(f"{target} is not a plain tensor operation")
        if torch.Tag.nondeterministic_seeded in target.tags:
            raise Unsupported(f"{target} draws random numbers")
        if target._schema.is_mutable:
            changed = node.args[0] if node.args else None
            plain = getattr(
                getattr(_aten, target._schema.name.removeprefix("aten::")[:-1], None), target._overloadname, None
            )
            if plain is None or not isinstance(changed, fx.Node) or not _is_own(changed):
                raise Unsupported(f"{target} changes a tensor in place")
            node.target = plain
            changed.replace_all_uses_with(node, delete_user_cb=lambda user, n=order[node]: order[user] > n)


def _is_own(node: fx.Node) -> bool:
    """Whether a tensor is a result of the graph of which there are no views, so that a change is seen nowhere else."""
    target: Any = node.target
    views = [it for it in node.users if it.op == "call_function" and _returns_alias(it.target)]
    return node.op == "call_function" and target is not operator.getitem and not views and not _returns_alias(target)


def _returns_alias(target: Any) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return True
    return not target._schema.is_mutable and any(it.alias_info is not None for it in target._schema.returns)


@functools.cache
def _decompositions() -> dict[Any, Any]:
    """Operations in terms of fewer ones, apart from those that are simpler whole."""
    whole = (_aten.select_backward.default, _aten.slice_backward.default)
    return {key: value for key, value in core_decompositions().items() if key not in whole}
