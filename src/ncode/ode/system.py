"""The system that is integrated, dz/dt = (f, g, l) for z = (x, theta, cost), and trees of tensors.

A state z is a tuple of tensors, each (batch, ...): x, then the leaves of theta where feedback drives them, then the
running cost where there is one. A control without feedback is a constant of the flow and never part of z.

What travels through a solve (the loop's state, a step's inputs and gradients) is a tree: nested (named) tuples whose
leaves are tensors, None, or plain values, so that one function can flatten, select or copy all of it. Named tuples need
no registration, and torch's own pytrees know them too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from .._torch_private import pytree
from ..errors import InputError

State = tuple[Tensor, ...]
Tree = TypeVar("Tree")
Slope = Callable[[Tensor, State], State]
Control = Any  # None, a tensor, or a nested tuple, list or dict of tensors
Dynamics = Callable[[Tensor, Tensor, Any], Tensor]
Feedback = Callable[[Tensor, Tensor, Any], Any]
Cost = Callable[[Tensor, Tensor, Any], Tensor]


class RightHandSide(Protocol):
    """What the loop needs to know of a system."""

    @property
    def dtype(self) -> torch.dtype:
        """The real dtype of the time that the system receives."""
        ...

    @property
    def driven(self) -> int:
        """Number of leaves of theta that are part of z."""
        ...

    @property
    def parts(self) -> tuple[slice, ...]:
        """The parts of z whose errors have norms of their own."""
        ...

    def bind(self, theta: Sequence[Tensor]) -> Slope:
        """dz/dt as a function of (t, z), with the constants theta."""
        ...


@dataclass(frozen=True, eq=False)
class System:
    """dz/dt of the whole system, and where each part lies in z."""

    dynamics: Dynamics
    feedback: Feedback | None
    cost: Cost | None
    spec: pytree.TreeSpec | None  # how theta's leaves nest; None without a control
    dtype: torch.dtype

    @property
    def functions(self) -> tuple[Callable[..., Any] | None, ...]:
        """The user's functions."""
        return self.dynamics, self.feedback, self.cost

    @property
    def driven(self) -> int:
        return self.spec.num_leaves if self.feedback is not None and self.spec is not None else 0

    @property
    def shown(self) -> int:
        """Number of leaves of z that saved times and dense output show: x and the driven control."""
        return 1 + self.driven

    @property
    def parts(self) -> tuple[slice, ...]:
        """x, theta and the cost have norms of their own, so that a large control cannot hide an error of x."""
        theta = (slice(1, self.shown),) if self.driven else ()
        cost = (slice(self.shown, self.shown + 1),) if self.cost is not None else ()
        return (slice(0, 1), *theta, *cost)

    def nest(self, leaves: Sequence[Tensor]) -> Control:
        """Leaves of theta, nested as the user nested them."""
        return None if self.spec is None else pytree.tree_unflatten(leaves, self.spec)

    def flatten(self, control: Control) -> list[Any]:
        """Leaves of what the feedback returned, which must be nested as theta is."""
        assert self.spec is not None
        try:
            return self.spec.flatten_up_to(control)
        except ValueError as error:
            given = pytree.tree_map(type, control)
            raise InputError(
                f"the feedback returned {given}: it must return tensors nested as theta is, {self.spec} ({error})"
            ) from None

    def bind(self, theta: Sequence[Tensor]) -> Slope:
        """dz/dt as a function of (t, z); `theta` holds the control's leaves where nothing drives it."""
        constant = None if self.driven else self.nest(theta)

        def slope(t: Tensor, z: State) -> State:
            x, control = z[0], self.nest(z[1 : self.shown]) if self.driven else constant
            slopes = [self.dynamics(t, x, control)]
            if self.feedback is not None:
                slopes.extend(self.flatten(self.feedback(t, x, control)))
            if self.cost is not None:
                slopes.append(self.cost(t, x, control))
            return tuple(slopes)

        return slope

    def check_slope(self, z: State, slope: Sequence[Any]) -> None:
        """Check what the dynamics, the feedback and the cost returned."""
        names = ["the dynamics"] + ["the feedback"] * self.driven + ["the cost"] * (self.cost is not None)
        if len(slope) != len(z):
            raise InputError(
                f"the feedback returned {len(slope) - len(z) + self.driven} tensors for a control of {self.driven}:"
                " it must return tensors nested as theta is"
            )
        for name, leaf, k in zip(names, z, slope, strict=True):
            if not isinstance(k, Tensor):
                raise InputError(f"{name} must return a tensor; returned {type(k).__name__}")
            if k.shape != leaf.shape:
                what = "one number per sample" if name == "the cost" else "the shape of what it drives"
                raise InputError(f"{name} returned shape {tuple(k.shape)}; expected {what}, {tuple(leaf.shape)}")
            if k.dtype != leaf.dtype:
                raise InputError(f"{name} returned {k.dtype}; expected {leaf.dtype}: convert it with .to(x.dtype)")
            if k.device != leaf.device:
                raise InputError(f"{name} returned a tensor on {k.device}; expected {leaf.device}")


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
