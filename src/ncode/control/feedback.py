"""A feedback network with a head for each control."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..checks import check_choice
from ..errors import InputError
from .base import Shapes, Theta
from .bound import check_bound, check_unbound
from .heads import Heads, check_closed, check_features, width_of

SEEN = ("x", "theta", "t")


class Feedback(nn.Module):
    """g(t, x, theta) for `ClosedLoop`: a trunk with one linear head a control tensor, made by the block.

    The heads start small and without a bias: at first the control hardly moves, as in a plain NODE.

    Args:
        trunk: A module that turns what it sees into (batch, width) features.
        sees: What the trunk sees: any of "x", "theta" and "t". x alone is given as it is; otherwise all are flattened
            and put side by side, in this order, theta in the order of `dynamics.control_shapes`.
        width: Features that the trunk returns. Found, unless told, from the last linear layer in it.
        scale: The size of dtheta/dt at first, relative to that of a static weight.

    >>> import torch, ncode
    >>> trunk = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh())
    >>> loop = ncode.ClosedLoop(ncode.control.Feedback(trunk))
    >>> ncode.NCODE(ncode.dynamics.MLP(2, hidden=16), loop)(torch.zeros(5, 2)).shape
    torch.Size([5, 2])
    """

    def __init__(self, trunk: nn.Module, sees: tuple[str, ...] = ("x",), width: int | None = None, scale: float = 0.1):
        super().__init__()
        if isinstance(sees, str) or not sees:
            raise InputError(f"sees must be a tuple of names out of {', '.join(SEEN)}; given {sees!r}")
        self.sees = tuple(check_choice("input of a feedback", name, SEEN) for name in sees)
        self.width = width_of(trunk, width)
        if not 0.0 <= scale < float("inf"):
            raise InputError(f"scale must be a number of at least 0; given {scale!r}")
        self.trunk, self.scale = trunk, float(scale)
        self.heads = Heads(self.width, {}, self.scale)

    def bind(self, shapes: Shapes, initial: Mapping[str, Tensor]) -> None:
        """One head a control."""
        check_unbound(self, self.heads)
        check_closed("Feedback", shapes, initial)
        self.heads = Heads(self.width, initial, self.scale)
        for name in initial:
            nn.init.zeros_(self.heads[name].get_parameter("bias"))

    def forward(self, t: Tensor, x: Tensor, theta: Theta) -> dict[str, Tensor]:
        """dtheta/dt."""
        check_bound(self, len(self.heads) > 0)
        features = check_features("Feedback", self.trunk(self._input(t, x, theta)), self.width, x.shape[0])
        return self.heads(features)

    def config(self) -> dict[str, Any]:
        """trunk, sees, width, scale."""
        return {"trunk": self.trunk, "sees": self.sees, "width": self.width, "scale": self.scale}

    def extra_repr(self) -> str:
        """What it sees."""
        return f"sees={self.sees}, width={self.width}, scale={self.scale}"

    def _input(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        if self.sees == ("x",):
            return x
        parts = {"x": [x], "theta": [theta[name] for name in self.heads], "t": [t]}
        seen = [part.reshape(x.shape[0], -1) for name in self.sees for part in parts[name]]
        return torch.cat(seen, 1)
