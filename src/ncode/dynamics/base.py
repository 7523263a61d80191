"""The interface of dynamics: a controlled vector field f(t, x, theta), with the shapes of the control that it takes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .._modules import Configurable, Shape, Theta

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "softplus": F.softplus,
    "silu": F.silu,
    "gelu": F.gelu,
    "elu": F.elu,
    "sin": torch.sin,
}


@dataclass(frozen=True, eq=False)
class Product:
    """The structure f(t, x, theta) = rho(W x), where W is one of the controls. Closed forms are selected by it.

    Args:
        control: The name of the control.
        rho: The name of the activation.
        columns: None if the control is the matrix (m, m) itself. Otherwise W is sparse: the control (m, k) holds the k
            values of each row, and `columns` (m, k) their positions.

    >>> import ncode
    >>> ncode.dynamics.Recurrent(8).structure.rho
    'tanh'
    """

    control: str
    rho: str = "identity"
    columns: Tensor | None = None


Structure = Product | None


class Dynamics(Configurable, ABC):
    """A controlled vector field dx/dt = f(t, x, theta).

    Abstract. A subclass defines `forward`, and `control_shapes` if it takes a control. It may also set

    - `state_shape`, to have the shape of x checked.
    - `shared_control = True`, if `forward` also takes a control without a batch dimension.

    For a plain function, `Function` is shorter.

    >>> import torch, ncode
    >>> class Attraction(ncode.dynamics.Dynamics):
    ...     control_shapes = {"goal": (2,)}
    ...     def forward(self, t, x, theta):
    ...         return theta["goal"] - x
    >>> ncode.NCODE(Attraction(), ncode.DataControl())(torch.ones(3, 2)).shape
    torch.Size([3, 2])
    """

    control_shapes: Mapping[str, tuple[int | None, ...]] = {}
    """The shape of one sample's tensor for each control that f takes; None stands for any size."""

    state_shape: Shape | None = None
    """The shape of one sample's state; None stands for any size, or for any shape."""

    shared_control: bool = False
    """Whether `forward` also takes a control without its batch dimension, if all samples share it."""

    @abstractmethod
    def forward(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        """Return dx/dt (batch, ...) at times t (batch,), with a control theta[name] of shape (batch, ...)."""

    def lift(self, x: Tensor) -> Tensor:
        """Return the state at t0, computed from what the block is given. Default: x itself."""
        return x

    @property
    def structure(self) -> Structure:
        """The form of f, for closed forms of the solution. Default: None, unknown."""
        return None
