"""Presentations one after another: the state starts anew, the control is carried on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Episode:
    """What an episode leaves: the states at the ends of its presentations, and the control after the last.

    >>> import torch, ncode
    >>> block = ncode.NCODE(ncode.dynamics.Recurrent(4), ncode.Hebbian(), method="rk4", dt=0.5)
    >>> left = block.episode(torch.ones(2, 3, 4))
    >>> torch.equal(left.x, left.xs[:, -1]), left.theta()["weight"].shape
    (True, torch.Size([2, 4, 4]))
    """

    x: Tensor  # at the end of the last presentation, (batch, ...)
    xs: Tensor  # at the end of each, (batch, P, ...)
    make: Callable[[], dict[str, Tensor]]

    def theta(self) -> dict[str, Tensor]:
        """The control after the last presentation, by name. Hebbian control is made of its outer products only now."""
        return self.make()
