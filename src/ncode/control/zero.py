"""A control of zeros."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .base import Shapes, State, StillController
from .bound import check_unbound
from .heads import check_closed


class Zero(StillController):
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

    def control(self, t: Tensor, state: State) -> dict[str, Tensor]:
        """Zeros."""
        return dict(state.fixed)

    def config(self) -> dict[str, Any]:
        """No arguments."""
        return {}
