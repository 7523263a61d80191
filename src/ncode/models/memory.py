"""`PlasticMemory`: plastic N-CODE as an associative memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._modules import Configurable
from ..block import NCODE, Settings
from ..block.pretrained import Pretrained
from ..block.wiring import check_settings
from ..control import Hebbian
from ..dynamics import Recurrent
from ..errors import InputError, check_count, check_number, check_tensor
from ..ode import SolveOptions


class PlasticMemory(Configurable, Pretrained):
    """Closed-loop N-CODE (equation 7 of the paper): dx/dt = tanh(theta x), dtheta/dt = mu * x x^T.

    For each stored pattern x starts from the pattern and evolves for 0.5 s, while theta, which starts at theta_0, is
    carried on from pattern to pattern. Then x starts from the query; its value after 0.5 s is the recalled pattern.
    mu and theta_0, both n x n, are learned.

    theta_0 starts near `hold` times the identity: a neuron keeps its sign. Without it, the patterns already stored
    would distort the one that is shown, and so what is stored next.

    Args:
        n: Bits of a pattern.
        scale: Size of the random part of mu and theta_0 at first.
        hold: The diagonal of theta_0 at first.
        solver_steps: Steps of RK4 per presentation.
        solver: Other settings of the block that is solved, as for `NCODE`.

    >>> PlasticMemory(10)(torch.ones(2, 6, 10), torch.ones(2, 10)).shape
    torch.Size([2, 10])
    """

    presentation_time: ClassVar[float] = 0.5
    """Duration of a presentation in seconds, as in the paper."""

    def __init__(
        self,
        n: int,
        scale: float = 1e-3,
        hold: float = 2.0,
        solver_steps: int = 1,
        solver: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        self.n, self.scale, self.hold = n, scale, check_number("hold", hold, low=-math.inf)
        self.solver_steps = check_count("solver_steps", solver_steps)
        plastic = Hebbian(scale)
        self.block = NCODE(Recurrent(n), plastic, **self._settings.changed(check_settings(solver)).as_dict())
        with torch.no_grad():
            plastic.theta.diagonal().add_(self.hold)

    @property
    def _settings(self) -> Settings:
        """How a presentation is solved, unless `solver` says otherwise."""
        duration = self.presentation_time
        return Settings(t1=duration, options=SolveOptions(method="rk4", dt=duration / self.solver_steps))

    @property
    def solver(self) -> dict[str, Any]:
        """The settings that differ from those of the constructor."""
        return self.block.settings.changes_from(self._settings)

    def card_lines(self) -> dict[str, str]:
        """Lines of the model card: what goes in and what comes out."""
        return {"Input": f"patterns to store (batch, P, {self.n}) and queries (batch, {self.n})", "Output": "patterns"}

    def forward(self, stimuli: Tensor, query: Tensor) -> Tensor:
        """x at the end of the query, for stimuli (batch, P, n) and query (batch, n)."""
        if check_tensor("stimuli", stimuli).dim() != 3 or check_tensor("query", query).shape != stimuli[:, 0].shape:
            raise InputError(
                "stimuli must be (batch, P, n), and query (batch, n); given"
                f" {tuple(stimuli.shape)} and {tuple(query.shape)}"
            )
        return self.block.episode(torch.cat([stimuli, query[:, None]], 1)).x
