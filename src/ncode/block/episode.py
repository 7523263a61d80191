"""Presentations one after another: the state starts anew, the control is carried on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Episode:
    """What an episode leaves: the states at the ends of its presentations, and the control after the last."""

    x: Tensor  # at the end of the last presentation, (batch, ...)
    xs: Tensor  # at the end of each, (batch, P, ...)
    make: Callable[[], dict[str, Tensor]]

    def theta(self) -> dict[str, Tensor]:
        """The control after the last presentation, by name. Hebbian control is made of its outer products only now."""
        return self.make()
