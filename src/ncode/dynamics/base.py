"""What every controlled vector field is: f(t, x, theta), with the shapes of the control that it wants to be given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from .structure import Structure

Shape = tuple[int | None, ...]  # None: any size
Shapes = Mapping[str, Shape]
Theta = Mapping[str, Tensor]


class Dynamics(nn.Module, ABC):
    """A controlled vector field dx/dt = f(t, x, theta).

    Abstract: for a field of your own take `Function`, or subclass `VectorField`.

    >>> import ncode
    >>> f = ncode.dynamics.MLP(2, hidden=3)
    >>> isinstance(f, ncode.dynamics.Dynamics), f.state_shape, dict(f.control_shapes)["weight 1"]
    (True, (2,), (3, 2))
    """

    shared_control: bool = False
    """Whether `forward` also takes a control without its batch dimension, where all samples share it."""

    @property
    @abstractmethod
    def control_shapes(self) -> Shapes:
        """The control that f wants to be given: for each name the shape of one sample's tensor. May be empty."""

    @property
    @abstractmethod
    def state_shape(self) -> Shape | None:
        """The shape of one sample's state, None for a size that may be any; None where any shape will do."""

    @property
    @abstractmethod
    def structure(self) -> Structure:
        """The form of f, where a solver may use it."""

    @abstractmethod
    def lift(self, x: Tensor) -> Tensor:
        """The state at t0, made of what the block is given."""

    @abstractmethod
    def forward(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        """dx/dt, (batch, ...), at times t (batch,), with a control theta[name] of shape (batch, ...)."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The arguments that build this object again."""

    def extra_repr(self) -> str:
        """The arguments that are neither modules nor functions, as they show in `print(block)`."""
        return ", ".join(f"{name}={value!r}" for name, value in self.config().items() if not callable(value))


class VectorField(Dynamics, ABC):
    """A vector field whose state is what the block is given, and of whose form nothing is told.

    Abstract: a subclass says which control it wants, and what it does with it.

    >>> import torch, ncode
    >>> class Pull(ncode.dynamics.VectorField):
    ...     control_shapes = {"goal": (2,)}
    ...     state_shape = (2,)
    ...     def forward(self, t, x, theta):
    ...         return theta["goal"] - x
    ...     def config(self):
    ...         return {}
    >>> block = ncode.NCODE(Pull(), ncode.Static())
    >>> block(torch.zeros(3, 2)).shape
    torch.Size([3, 2])
    """

    @property
    def structure(self) -> Structure:
        """Nothing is told."""
        return None

    def lift(self, x: Tensor) -> Tensor:
        """The state is what the block is given."""
        return x
