"""A feedback that does not look at the state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from ..errors import InputError


class Drift(nn.Module):
    """q(t, theta) as a feedback: with `ClosedLoop` the control has an ODE of its own, blind to x.

    This is the coupled system of ANODEV2 (Zhang et al., 2019), a control that varies with time alone.

    Args:
        q: A function or module q(t, theta) -> dtheta/dt; theta and the result are dicts by name of the control,
            (batch, ...) each.

    >>> import torch, ncode
    >>> fade = ncode.control.Drift(lambda t, theta: {name: -value for name, value in theta.items()})
    >>> ncode.NCODE(ncode.dynamics.MLP(2), ncode.ClosedLoop(fade))(torch.zeros(5, 2)).shape
    torch.Size([5, 2])
    """

    def __init__(self, q: Callable[[Tensor, dict[str, Tensor]], Mapping[str, Tensor]]):
        super().__init__()
        if not callable(q):
            raise InputError(f"q must be a function of (t, theta); given {type(q).__name__}")
        self.q = q

    def forward(self, t: Tensor, x: Tensor, theta: dict[str, Tensor]) -> Mapping[str, Tensor]:
        """q(t, theta)."""
        return self.q(t, theta)

    def config(self) -> dict[str, Any]:
        """q."""
        return {"q": self.q}
