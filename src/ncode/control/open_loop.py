"""Open loop: theta = gamma(x0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from ..errors import InputError
from .base import Shapes, State, StillController
from .bound import check_bound, check_unbound
from .heads import Heads, check_closed, check_features, width_of


class OpenLoop(StillController):
    """theta = gamma(x0): each sample evolves in a flow of its own, chosen once by its initial value.

    gamma is a trunk with one linear head a control tensor. The heads are made by the block, which knows the shapes, and
    start as a hypernetwork's should: see `scale`.

    Args:
        trunk: A module that turns what the block is given (or its `context`) into (batch, width) features, best of
            size 1 (a tanh at the end).
        width: Features that the trunk returns. Found, unless told, from the last linear layer in it.
        scale: The size of the part that depends on the data, relative to that of a static weight. The other part, the
            heads' bias, starts as a static weight does.

    >>> import torch, ncode
    >>> trunk = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh())
    >>> block = ncode.NCODE(ncode.dynamics.MLP(2, hidden=16), ncode.OpenLoop(trunk))
    >>> block(torch.zeros(5, 2)).shape
    torch.Size([5, 2])
    """

    equation = "theta = gamma(x0)"

    def __init__(self, trunk: nn.Module, width: int | None = None, scale: float = 0.1):
        super().__init__()
        self.width = width_of(trunk, width)
        if not 0.0 <= scale < float("inf"):
            raise InputError(f"scale must be a number of at least 0; given {scale!r}")
        self.trunk, self.scale = trunk, float(scale)
        self.heads = Heads(self.width, {}, self.scale)

    def bind(self, shapes: Shapes, initial: Mapping[str, Tensor]) -> None:
        """One head a control."""
        check_unbound(self, self.heads)
        check_closed("OpenLoop", shapes, initial)
        self.heads = Heads(self.width, initial, self.scale)

    def start(self, context: Tensor) -> State:
        """gamma(x0)."""
        check_bound(self, len(self.heads) > 0)
        features = check_features("OpenLoop", self.trunk(context), self.width, context.shape[0])
        return State(self.heads(features), {})

    def control(self, t: Tensor, state: State) -> dict[str, Tensor]:
        """As it was set at t0."""
        return dict(state.fixed)

    def config(self) -> dict[str, Any]:
        """trunk, width, scale."""
        return {"trunk": self.trunk, "width": self.width, "scale": self.scale}
