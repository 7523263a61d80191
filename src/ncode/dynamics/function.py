"""Any function as a dynamics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ..errors import InputError
from .base import Shape, Shapes, Theta, VectorField

SINGLE = "theta"


class Function(VectorField):
    """Any function or module f(t, x, theta) as a dynamics, with the shapes of the control that it wants.

    Args:
        f: f(t, x, theta) -> dx/dt, with t (batch,) and x (batch, ...).
        control_shapes: For each name the shape of one sample's tensor, and f is given a dict of them; or one shape
            alone, and f is given a tensor. Nothing, and f is given an empty dict.
        state_shape: The shape of one sample's x, where it should be checked.

    >>> import torch, ncode
    >>> f = ncode.dynamics.Function(lambda t, x, theta: theta * x, (1,))
    >>> ncode.NCODE(f, ncode.OpenLoop(torch.nn.Linear(1, 8)))(torch.ones(3, 1)).shape
    torch.Size([3, 1])
    """

    def __init__(
        self,
        f: Callable[[Tensor, Tensor, Any], Tensor],
        control_shapes: Shapes | tuple[int, ...] | None = None,
        state_shape: Shape | None = None,
    ):
        super().__init__()
        if not callable(f):
            raise InputError(f"f must be a function of (t, x, theta); given {type(f).__name__}")
        self.f = f
        self.single = control_shapes is not None and not isinstance(control_shapes, Mapping)
        given = control_shapes if isinstance(control_shapes, Mapping) else {}
        if control_shapes is not None and not isinstance(control_shapes, Mapping):
            given = {SINGLE: control_shapes}
        self._shapes: dict[str, Shape] = {name: _shape(name, shape) for name, shape in given.items()}
        self._state = None if state_shape is None else tuple(state_shape)

    @property
    def control_shapes(self) -> Shapes:
        """As declared; a single one is called "theta"."""
        return self._shapes

    @property
    def state_shape(self) -> Shape | None:
        """As declared."""
        return self._state

    def forward(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        """f(t, x, theta)."""
        return self.f(t, x, theta[SINGLE] if self.single else dict(theta))

    def config(self) -> dict[str, Any]:
        """f, control_shapes, state_shape."""
        shapes = self._shapes[SINGLE] if self.single else self._shapes
        return {"f": self.f, "control_shapes": shapes, "state_shape": self._state}


def _shape(name: str, shape: Any) -> Shape:
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else None
    if sizes is None or not all(size is None or (isinstance(size, int) and size > 0) for size in sizes):
        raise InputError(f"the shape of control {name!r} must be a tuple of sizes; given {shape!r}")
    return sizes
