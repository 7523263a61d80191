"""`PlasticMemory`: plastic N-CODE as an associative memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._modules import Configurable
from ..block import NCODE, Settings
from ..block.pretrained import Pretrained
from ..block.settings import check_settings
from ..control import Plastic
from ..dynamics import Recurrent
from ..errors import InputError, check_count, check_flag, check_number, check_tensor
from ..ode import SolveOptions


class PlasticMemory(Configurable, Pretrained):
    """Closed-loop N-CODE (equation 7 of the paper): dx/dt = tanh(theta x), dtheta/dt = mu * x x^T.

    For each stored pattern x starts from the pattern and evolves for 0.5 s, while theta, which starts at theta_0, is
    carried on from pattern to pattern. Then x starts from the query; its value after 0.5 s is the recalled pattern.
    mu and theta_0, both n x n, are learned.

    theta_0 starts near `hold` times the identity: with Hebb's rule, a neuron keeps its sign. Without it, the patterns
    already stored would distort the one that is shown, and so what is stored next.

    The options after `solver` go beyond the paper: dx/dt = tanh(gain theta x) - leak x with another rule for theta,
    bits that are held, and a query that is longer or changes no weights.

    Args:
        n: Bits of a pattern.
        scale: Size of the random part of mu and theta_0 at first.
        hold: The diagonal of theta_0 at first.
        solver_steps: Steps of RK4 per presentation of 0.5 s.
        solver: Other settings of the block that is solved, as for `NCODE`.
        rule: "hebb", "oja" or "delta", as for `ncode.control.Plastic`.
        strength: mu is at first strength / n, and its random part.
        gain, leak: Of the neurons, as for `ncode.dynamics.Recurrent`.
        clamp: Whether bits other than 0 are held while they are shown, in patterns and in the query.
        query_time: Duration of the query in seconds.
        frozen_query: Whether theta is constant during the query. With the delta rule it would otherwise learn that lost
            bits are 0.
        shared: Whether all neurons are alike. Six numbers are then learned in place of 2 n^2: gain, leak, and one
            number of mu and of theta_0 for different neurons and one for a neuron with itself.

    >>> PlasticMemory(10)(torch.ones(2, 6, 10), torch.ones(2, 10)).shape
    torch.Size([2, 10])
    >>> memory = PlasticMemory(8, rule="delta", strength=3.0, hold=-1.0, gain=4.0, leak=1.0, clamp=True, shared=True)
    >>> pattern = torch.tensor([[1.0, -1.0, 1.0, 1.0, -1.0, 1.0, -1.0, -1.0]])
    >>> with torch.no_grad():
    ...     recalled = memory(pattern.expand(1, 2, 8), pattern * torch.tensor([1, 1, 1, 1, 1, 0, 0, 0])).sign()
    >>> bool((recalled == pattern).all())
    True
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
        *,
        rule: str = "hebb",
        strength: float = 0.0,
        gain: float = 1.0,
        leak: float = 0.0,
        clamp: bool = False,
        query_time: float = 0.5,
        frozen_query: bool = False,
        shared: bool = False,
    ):
        super().__init__()
        self.n, self.scale, self.hold, self.rule, self.strength = n, scale, hold, rule, strength
        self.gain, self.leak, self.clamp, self.shared = gain, leak, check_flag("clamp", clamp), shared
        self.frozen_query = check_flag("frozen_query", frozen_query)
        self.query_time = check_number("query_time", query_time, low=0.0, strict=True)
        self.solver_steps = check_count("solver_steps", solver_steps)
        neurons = Recurrent(n, gain=gain, leak=leak, learned=shared)
        plastic = Plastic(rule, strength, hold, scale, shared=shared)
        self.block = NCODE(neurons, plastic, **self._settings.changed(check_settings(solver)).as_dict())

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
        shown, more = torch.cat([stimuli, query[:, None]], 1), {}
        if self.query_time != self.presentation_time:
            more["durations"] = [self.presentation_time] * stimuli.shape[1] + [self.query_time]
        if self.frozen_query:
            more["frozen"] = [False] * stimuli.shape[1] + [True]
        if self.clamp:
            more["held"] = shown != 0
        return self.block.episode(shown, **more).x
