"""The right-hand side that is integrated: h = (f, g, l) on z = (x, theta, cost).

A state z is a tuple of tensors, each (batch, ...): x, then the leaves of theta where feedback drives them, then the
running cost where there is one. A control without feedback is a constant of the flow and never part of z.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from .._torch_private import pytree
from ..errors import InputError

State = tuple[Tensor, ...]
Slope = Callable[[Tensor, State], State]
Control = Any  # None, a tensor, or a nested tuple, list or dict of tensors
Dynamics = Callable[[Tensor, Tensor, Any], Tensor]
Feedback = Callable[[Tensor, Tensor, Any], Any]
Cost = Callable[[Tensor, Tensor, Any], Tensor]


class RightHandSide(Protocol):
    """What the solver needs to know of a system."""

    @property
    def dtype(self) -> torch.dtype:
        """The real dtype in which the system is told the time."""
        ...

    @property
    def driven(self) -> int:
        """How many leaves of theta are part of z."""
        ...

    @property
    def parts(self) -> tuple[slice, ...]:
        """The parts of z whose errors are judged apart."""
        ...

    def bind(self, theta: Sequence[Tensor]) -> Slope:
        """dz/dt as a function of (t, z), under these constants."""
        ...


@dataclass(frozen=True, eq=False)
class Field:
    """dz/dt of the whole system, and where each part lies in z."""

    dynamics: Dynamics
    feedback: Feedback | None
    cost: Cost | None
    spec: pytree.TreeSpec | None  # how theta's leaves nest; None where there is no control
    dtype: torch.dtype  # the real dtype in which the dynamics are told the time

    @property
    def driven(self) -> int:
        """How many leaves of theta are part of z."""
        return self.spec.num_leaves if self.feedback is not None and self.spec is not None else 0

    @property
    def parts(self) -> tuple[slice, ...]:
        """The parts of z whose errors are judged apart, so that a large control cannot hide an error of x."""
        theta = (slice(1, 1 + self.driven),) if self.driven else ()
        cost = (slice(1 + self.driven, 2 + self.driven),) if self.cost is not None else ()
        return (slice(0, 1), *theta, *cost)

    def nest(self, leaves: Sequence[Tensor]) -> Control:
        """Leaves of theta, nested as the user nested them."""
        return None if self.spec is None else pytree.tree_unflatten(leaves, self.spec)

    def unnest(self, control: Control) -> list[Any]:
        """Leaves of something that must be nested as theta is."""
        assert self.spec is not None
        try:
            return self.spec.flatten_up_to(control)
        except ValueError as error:
            given = pytree.tree_map(type, control)
            raise InputError(
                f"the feedback returned {given}: it must return tensors nested as theta is, {self.spec} ({error})"
            ) from None

    def bind(self, theta: Sequence[Tensor]) -> Slope:
        """dz/dt as a function of (t, z); theta holds the control's leaves where nothing drives it."""
        constant = None if self.driven else self.nest(theta)

        def slope(t: Tensor, z: State) -> State:
            x, control = z[0], self.nest(z[1 : 1 + self.driven]) if self.driven else constant
            slopes = [self.dynamics(t, x, control)]
            if self.feedback is not None:
                slopes.extend(self.unnest(self.feedback(t, x, control)))
            if self.cost is not None:
                slopes.append(self.cost(t, x, control))
            return tuple(slopes)

        return slope
