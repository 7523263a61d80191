"""What is asked of a block in one solve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..control import State
from .settings import Settings


@dataclass(frozen=True, eq=False)
class Request:
    """What is to be solved, checked and ready, and what is to be told about it."""

    x0: Tensor  # the state at t0
    state: State  # the controller's
    given: bool  # whether the control came from outside
    settings: Settings
    cost: Any = None
    save_at: Tensor | None = None
    dense: bool = False
    throw: bool = True
    whole: bool = True  # whether more is wanted than x at t1

    @property
    def batch(self) -> int:
        """How many samples."""
        return self.x0.shape[0]
