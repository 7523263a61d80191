"""The system that is integrated, dz/dt = (f, g, l) for z = (x, theta, cost), and trees of tensors.

A state z is a tuple of tensors, each (batch, ...): the leaves of x, then those of theta where feedback drives them,
then the running cost where there is one. A control without feedback is a constant of the flow and never part of z.

What travels through a solve (the loop's state, a step's inputs and gradients) is a tree: nested (named) tuples whose
leaves are tensors, None, or plain values, so that one function can flatten, select or copy all of it. Named tuples need
no registration, and torch's own pytrees know them too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from .._torch_private import pytree, without_function_modes
from ..errors import InputError, format_value
from .jumps import Piece, find_piece, time_bounds
from .unknown import refuse_unknown

State = tuple[Tensor, ...]
Tree = TypeVar("Tree")
Slope = Callable[[Tensor, State], State]
Control = Any  # None, a tensor, or a nested tuple, list or dict of tensors
Dynamics = Callable[[Tensor, Any, Any], Any]
Feedback = Callable[[Tensor, Any, Any], Any]
Cost = Callable[[Tensor, Any, Any], Tensor]

CHANGES_ARGUMENT = (
    "the dynamics, the feedback or the cost changed t, x or theta in place: return a new tensor instead (nn.ReLU()"
    " for nn.ReLU(inplace=True), x + 1 for x.add_(1)), or work on x.clone()"
)
EVENT_CHANGES_ARGUMENT = (
    "the function of an Event changed t, x or theta in place: return a new tensor instead (x - 1 for x.sub_(1)), or"
    " work on x.clone()"
)
REUSES_OUTPUT = (
    "the dynamics, the feedback or the cost wrote into a tensor that they had returned before (out=..., or a buffer"
    " that is filled anew): a step needs the slopes of several evaluations, so return a new tensor each time"
)

NUMPY = (
    "the dynamics, the feedback or the cost hand a tensor that requires a gradient to NumPy, which autograd cannot"
    " follow: write them in operations of torch; or read x.detach().numpy(), a constant without a gradient; or solve"
    " under torch.no_grad() by an explicit method"
)
EVENT_WITHOUT_DERIVATIVE = (
    "the function of an Event is differentiated, to locate events and to tell on which side of them a sample is, and"
    " autograd cannot follow it through out= or NumPy: return a new tensor, by operations of torch"
)


JUMPS, EARLIEST, LATEST, T0 = -4, -3, -2, -1
"""Places of times among the constants of a `System`: T0 if it is shifted, the others if it is bounded."""


class RightHandSide(Protocol):
    """What the loop needs to know of a system."""

    @property
    def dtype(self) -> torch.dtype:
        """The real dtype of the time that the system receives."""
        ...

    @property
    def shown(self) -> int:
        """Number of leaves of z that saved times and dense output show: x and the driven control."""
        ...

    @property
    def parts(self) -> tuple[slice, ...]:
        """The parts of z whose errors have norms of their own."""
        ...

    @property
    def time_constants(self) -> int:
        """Number of constants that are no controls, the last ones."""
        ...

    @property
    def bounded(self) -> bool:
        """Whether steps must end at jumps of the dynamics."""
        ...

    def clock(self, theta: Sequence[Tensor], t: Tensor) -> Tensor:
        """The times that the system receives, for times `t` (..., batch) of the loop."""
        ...

    def enter(self, theta: Sequence[Tensor], t: Tensor, t1: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        """The constants for a step from t towards t1, and where it ends at the latest: at a jump, or t1."""
        ...

    def jacobian(self, theta: Sequence[Tensor]) -> Callable[[Tensor, State], Any] | None:
        """The Jacobian of the shown leaves' slope as a function of (time of the clock, z), where it is known."""
        ...

    def bind(self, theta: Sequence[Tensor]) -> Slope:
        """dz/dt as a function of (time of the clock, z), with the constants theta."""
        ...


@dataclass(frozen=True, eq=False)
class System:
    """dz/dt of the whole system, and where each part lies in z.

    The loop counts time from t0, so that a late t0 costs no precision. Its constants `theta` are the control's leaves,
    unless feedback drives them; behind them, if `bounded`, the jumps (batch, n) as times of the clock, and the earliest
    and the latest time that the functions may receive in a step; and t0 last, unless it is 0 for all samples.
    """

    dynamics: Dynamics
    feedback: Feedback | None
    cost: Cost | None
    spec: pytree.TreeSpec | None  # how theta's leaves nest; None without a control
    dtype: torch.dtype
    shifted: bool = False  # whether the last constant is t0
    bounded: bool = False  # whether there are jumps: then t0 is a constant, too
    x_spec: pytree.TreeSpec | None = None  # how x's leaves nest; None if x is one tensor
    memo: dict[str, Any] = field(default_factory=dict, repr=False)  # of a backend, for all passes of one solve
    untrained: bool = False  # whether nothing was found to require a gradient, so that nothing may turn up that does

    @property
    def functions(self) -> tuple[Callable[..., Any] | None, ...]:
        """The user's functions."""
        return self.dynamics, self.feedback, self.cost

    @property
    def driven(self) -> int:
        """Number of leaves of a control that feedback drives."""
        return self.spec.num_leaves if self.feedback is not None and self.spec is not None else 0

    @property
    def states(self) -> int:
        """Number of leaves of x."""
        return 1 if self.x_spec is None else self.x_spec.num_leaves

    @property
    def shown(self) -> int:
        """Number of leaves of z that saved times and dense output show: x and the driven control."""
        return self.states + self.driven

    @property
    def parts(self) -> tuple[slice, ...]:
        """x, theta and the cost have norms of their own, so that a large control cannot hide an error of x."""
        theta = (slice(self.states, self.shown),) if self.driven else ()
        cost = (slice(self.shown, self.shown + 1),) if self.cost is not None else ()
        return (slice(0, self.states), *theta, *cost)

    @property
    def time_constants(self) -> int:
        """Number of constants behind those of the control."""
        return self.shifted + 3 * self.bounded

    def arguments(self, z: State, theta: Sequence[Tensor]) -> tuple[Any, Control]:
        """x and the control, as the user's functions receive them."""
        leaves = z[self.states : self.shown] if self.driven else theta[: len(theta) - self.time_constants]
        return self.nest_x(z), self.nest(leaves)

    def nest_x(self, leaves: Sequence[Tensor]) -> Any:
        """x of the first leaves, nested as the user nested x0."""
        return leaves[0] if self.x_spec is None else pytree.tree_unflatten(leaves[: self.states], self.x_spec)

    def flatten_x(self, x: Any, name: str) -> list[Any]:
        """Leaves of what a function returned, which must be nested as x0 is."""
        return [x] if self.x_spec is None else _flatten_as(self.x_spec, x, name, "x0")

    def nest(self, leaves: Sequence[Tensor]) -> Control:
        """Leaves of theta, nested as the user nested them."""
        return None if self.spec is None else pytree.tree_unflatten(leaves, self.spec)

    def flatten(self, control: Control) -> list[Any]:
        """Leaves of what the feedback returned, which must be nested as theta is."""
        assert self.spec is not None
        return _flatten_as(self.spec, control, "the feedback", "theta")

    def clock(self, theta: Sequence[Tensor], t: Tensor) -> Tensor:
        time = (t + theta[T0] if self.shifted else t).to(self.dtype)
        if not self.bounded:
            return time
        low, high = theta[EARLIEST], theta[LATEST]
        # A time moved by one rounding error still has the gradient of the time itself.
        return time + (torch.minimum(torch.maximum(time, low), high) - time).detach()

    def enter(self, theta: Sequence[Tensor], t: Tensor, t1: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        if not self.bounded:
            return theta, t1
        *control, jumps, _, _, t0 = theta
        direction = torch.where(t1.detach() < t, -1.0, 1.0).to(t)
        piece, columns = find_piece(jumps - t0[:, None], t, direction)
        there = jumps.detach().gather(1, columns)  # as they were given, without the rounding of a difference
        edges = (torch.where(edge.isfinite(), at, edge) for edge, at in zip(piece, there.unbind(1), strict=True))
        stop = torch.where((t1 - piece.ahead) * direction > 0, piece.ahead, t1)
        return (*control, jumps, *time_bounds(Piece(*edges), self.dtype), t0), stop

    def moved_step(self, theta: Sequence[Tensor], span: Tensor, t: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """A step (t, h) as a function of span and jumps: it keeps its place in its piece of the interval."""
        begin, end = torch.zeros_like(span), span
        if self.bounded:
            direction = torch.where(span.detach() < 0, -1.0, 1.0).to(t)
            (behind, ahead), _ = find_piece(theta[JUMPS] - theta[T0][:, None], t, direction)
            begin = torch.where(behind * direction > 0, behind, begin)
            end = torch.where((span - ahead) * direction > 0, ahead, end)
        length = (end - begin).detach()
        scale = (end - begin) / torch.where(length == 0, 1.0, length)
        return begin + (t - begin.detach()) * scale, h * scale

    def jacobian(self, theta: Sequence[Tensor]) -> Callable[[Tensor, State], Any] | None:
        supplied = getattr(self.dynamics, "jacobian", None)
        if supplied is None or self.feedback is not None or self.x_spec is not None:
            return None
        control = self.nest(theta[: len(theta) - self.time_constants])
        return lambda t, z: supplied(t, z[0], control)

    def bind(self, theta: Sequence[Tensor]) -> Slope:
        leaves = tuple(theta[: len(theta) - self.time_constants])
        constant = None if self.driven else self.nest(leaves)
        returned: list[Tensor] = []  # by the evaluation before
        versions: list[int] = []

        def slope(t: Tensor, z: State) -> State:
            x, control = self.nest_x(z), self.nest(z[self.states : self.shown]) if self.driven else constant
            given = (t, *z, *leaves, *returned)
            before = versions_of((t, *z, *leaves))
            slopes = self._evaluate(t, x, control)
            self.check_slope(z, slopes)
            if self.untrained and any(k.requires_grad for k in slopes):
                refuse_unknown(slopes, given)
            now = versions_of((*given, *slopes))
            if now[: len(before)] != before:
                raise InputError(CHANGES_ARGUMENT)
            if now[len(before) : len(given)] != versions:
                raise InputError(REUSES_OUTPUT)
            returned[:], versions[:] = slopes, now[len(given) :]
            return tuple(slopes)

        return slope

    def _evaluate(self, t: Tensor, x: Any, control: Control) -> list[Any]:
        """What the user's functions return, as leaves."""
        if self.untrained and not torch.is_grad_enabled():
            with torch.enable_grad():
                return self._evaluate(t, x, control)
        slopes = self.flatten_x(self.dynamics(t, x, control), "the dynamics")
        if self.feedback is not None:
            slopes.extend(self.flatten(self.feedback(t, x, control)))
        if self.cost is not None:
            slopes.append(self.cost(t, x, control))
        return slopes

    def check_slope(self, z: State, slope: Sequence[Any]) -> None:
        """Check what the dynamics, the feedback and the cost returned."""
        if len(slope) != len(z):
            raise InputError(
                f"the feedback returned {len(slope) - len(z) + self.driven} tensors for a control of {self.driven}:"
                " it must return tensors nested as theta is"
            )
        for number, (leaf, k) in enumerate(zip(z, slope, strict=True)):
            if isinstance(k, Tensor) and _is_like(k, leaf):
                continue
            name = "the dynamics" if number < self.states else "the feedback" if number < self.shown else "the cost"
            if not isinstance(k, Tensor):
                raise InputError(f"{name} must return a tensor; returned {type(k).__name__}")
            if k.shape != leaf.shape:
                what = "one number per sample" if name == "the cost" else "the shape of what it drives"
                raise InputError(f"{name} returned shape {tuple(k.shape)}; expected {what}, {tuple(leaf.shape)}")
            if k.dtype != leaf.dtype:
                raise InputError(f"{name} returned {k.dtype}; expected {leaf.dtype}: convert it with .to(x.dtype)")
            if k.device != leaf.device:
                raise InputError(f"{name} returned a tensor on {k.device}; expected {leaf.device}")
            raise InputError(f"{name} returned a tensor stored as {k.layout}: use .to_dense()")


def _flatten_as(spec: pytree.TreeSpec, tree: Any, name: str, like: str) -> list[Any]:
    """The leaves of what a function returned, which must be nested by this spec."""
    try:
        return spec.flatten_up_to(tree)
    except ValueError:
        given = pytree.tree_map(lambda leaf: _Word(type(leaf).__name__), tree)
        wanted = pytree.tree_unflatten([_Word("Tensor")] * spec.num_leaves, spec)
        raise InputError(
            f"{name} returned {format_value(given)}: it must return tensors nested as {like} is, {format_value(wanted)}"
        ) from None


class _Word(str):
    """A word that is shown without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _is_like(k: Tensor, leaf: Tensor) -> bool:
    alike = k.shape == leaf.shape and k.dtype is leaf.dtype and k.layout is leaf.layout
    return alike and k.device == leaf.device


def reads_by_numpy(error: Exception) -> bool:
    """Whether this is torch's error for NumPy on a tensor that requires a gradient."""
    return "numpy() on Tensor that requires grad" in str(error)


def writes_to_output(error: Exception) -> bool:
    """Whether this is torch's error for out= with a tensor that requires a gradient."""
    return "out=... arguments" in str(error)


def versions_of(tensors: Sequence[Tensor]) -> list[int]:
    """How often each of these tensors was changed in place."""
    with without_function_modes():  # the one that looks for captures need not see these reads
        try:
            return [tensor._version for tensor in tensors]
        except RuntimeError:  # inference tensors do not count
            return [version_of(tensor) for tensor in tensors]


def version_of(tensor: Tensor) -> int:
    """How often a tensor was changed in place; 0 for those that do not count it."""
    return 0 if type(tensor) not in (Tensor, nn.Parameter) or tensor.is_inference() else tensor._version


def map_tensors(function: Callable[[Tensor], Any], tree: Tree) -> Tree:
    """The tree with `function` applied to each tensor; other leaves stay as they are."""
    if isinstance(tree, Tensor):
        return function(tree)  # pyright: ignore[reportReturnType]
    if not isinstance(tree, tuple):
        return tree
    # Tensors are handled here and not by another call: trees are mapped in every step of a solve.
    items = [function(it) if isinstance(it, Tensor) else map_tensors(function, it) if it else it for it in tree]
    return tuple(items) if type(tree) is tuple else tree._make(items)  # pyright: ignore


def tensors_of(tree: Any) -> list[Tensor]:
    """All tensors of a tree, in the order of its fields."""
    found: list[Tensor] = []
    _collect(tree if isinstance(tree, tuple) else (tree,), found)
    return found


def _collect(tree: tuple[Any, ...], found: list[Tensor]) -> None:
    for item in tree:
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, tuple):
            _collect(item, found)


def rebuild(tree: Tree, tensors: Sequence[Tensor]) -> Tree:
    """The tree with other tensors in place of its own, in the order of `tensors_of`."""
    rest = iter(tensors)
    return map_tensors(lambda _: next(rest), tree)


def expand_like(values: Tensor, state: Sequence[Tensor]) -> State:
    """A (batch,) tensor with as many dimensions as each tensor of the state, for broadcasting."""
    return tuple(values.reshape(-1, *[1] * (leaf.dim() - 1)) for leaf in state)


def where(mask: Tensor, new: Sequence[Tensor], old: Sequence[Tensor]) -> State:
    """`new` for the samples in the (batch,) mask and `old` for the others, leaf by leaf."""
    return tuple(torch.where(m, a, b) for m, a, b in zip(expand_like(mask, old), new, old, strict=True))


def finite_samples(leaf: Tensor) -> Tensor:
    """Which samples of a leaf are finite, (batch,)."""
    return leaf.isfinite().flatten(1).all(1) if leaf.dim() > 1 else leaf.isfinite()


def first_rows(tensor: Tensor, size: int) -> Tensor:
    """The first rows; the tensor itself where these are all, since a view would cost its gradient a copy."""
    return tensor if size == tensor.shape[0] else tensor[:size]


def take_rows(tensor: Tensor, rows: Tensor) -> Tensor:
    """Some rows, in the memory layout of the tensor: a backend may have chosen it."""
    some = tensor.index_select(0, rows)
    return some if tensor.is_contiguous() else torch.empty_like(without_gaps(tensor[: len(some)])).copy_(some)


def without_gaps(tensor: Tensor) -> Tensor:
    """The tensor without gaps or shared memory, its dimensions in the order that they have in memory."""
    order = sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim))
    inverse = sorted(range(tensor.dim()), key=order.__getitem__)
    return tensor.permute(order).contiguous().permute(inverse)
