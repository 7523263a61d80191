"""Data control: gamma is the identity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..errors import InputError
from .base import Shapes, State, StillController
from .bound import describe


class DataControl(StillController):
    """theta = x(0): the dynamics see the initial value beside the state (Massaroli et al., 2020).

    Made for the `context` of `MLP` and `ConvBlock`, which the first layer sees beside x. Gradients reach x(0) by this
    way too.

    >>> import torch, ncode
    >>> f = ncode.dynamics.MLP(2, hidden=16, controlled=(), context=2)
    >>> ncode.NCODE(f, ncode.DataControl())(torch.zeros(5, 2)).shape
    torch.Size([5, 2])
    """

    equation = "theta = x0"

    def __init__(self) -> None:
        super().__init__()
        self.name: str | None = None

    def bind(self, shapes: Shapes, initial: Mapping[str, Tensor]) -> None:
        """One control, to be the initial value."""
        if len(shapes) != 1:
            raise InputError(
                f"DataControl sets one control, the initial value; the dynamics want {describe(shapes)}."
                " Give them a context and let them learn the rest (controlled=(), context=...), or drive the rest by"
                " Parts"
            )
        (self.name,) = shapes

    def start(self, context: Tensor) -> State:
        """What the block is given."""
        return State({self.name: context} if self.name is not None else {}, {})

    def control(self, t: Tensor, state: State) -> dict[str, Tensor]:
        """As it was at t0."""
        return dict(state.fixed)

    def config(self) -> dict[str, Any]:
        """No arguments."""
        return {}
