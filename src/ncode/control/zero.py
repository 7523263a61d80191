"""A control of zeros."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .base import Controller, Shapes, State, Theta
from .bound import check_unbound
from .heads import check_closed
from .motion import Motion, Still


class Zero(Controller):
    """theta = 0: where a closed loop may start.

    >>> import torch, ncode
    >>> still = ncode.NCODE(ncode.dynamics.Linear(2), ncode.control.Zero())
    >>> still(torch.ones(1, 2))
    tensor([[1., 1.]])
    """

    equation = "theta = 0"

    def __init__(self) -> None:
        super().__init__()
        self.shapes: dict[str, tuple[int, ...]] = {}

    def bind(self, shapes: Shapes, initial: Mapping[str, Tensor]) -> None:
        """Remember the shapes."""
        check_unbound(self, self.shapes)
        check_closed("Zero", shapes, initial)
        self.shapes = {name: tuple(start.shape) for name, start in initial.items()}

    def start(self, context: Tensor) -> State:
        """Zeros."""
        return State({name: context.new_zeros(context.shape[0], *shape) for name, shape in self.shapes.items()}, {})

    def given(self, theta: Theta) -> State:
        """Another control in place of zeros."""
        return State(theta, {})

    def control(self, t: Tensor, state: State) -> dict[str, Tensor]:
        """Zeros."""
        return dict(state.fixed)

    def speed(self, t: Tensor, x: Tensor, state: State) -> dict[str, Tensor]:
        """None."""
        return {}

    @property
    def motion(self) -> Motion:
        """None."""
        return Still()

    def config(self) -> dict[str, Any]:
        """No arguments."""
        return {}
