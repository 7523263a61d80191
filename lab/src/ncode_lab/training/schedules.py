"""Learning-rate schedules that are stepped once per training step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler


def cosine(optimiser: Optimizer, steps: int, warmup: int = 0) -> LRScheduler:
    """Half a cosine wave from 1 to 0, multiplied by a linear rise over the first `warmup` steps."""
    return LambdaLR(optimiser, lambda step: min(1.0, (step + 1) / max(1, warmup)) * _half_wave(step / steps))


def one_cycle(optimiser: Optimizer, steps: int, warmup: float = 0.2) -> LRScheduler:
    """A linear rise from 0.04 to 1 over a fraction `warmup` of the steps, then half a cosine wave down to 0.

    >>> optimiser, rates = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0), []
    >>> schedule = one_cycle(optimiser, steps=100)
    >>> for _ in range(101):
    ...     rates += schedule.get_last_lr()
    ...     optimiser.step(); schedule.step()
    >>> [round(rates[step], 2) for step in (0, 20, 60, 100)]
    [0.04, 1.0, 0.5, 0.0]
    """
    peak = max(1.0, warmup * steps)

    def factor(step: int) -> float:
        rise = 0.04 + 0.96 * step / peak
        return rise if step < peak else _half_wave((step - peak) / max(1.0, steps - peak))

    return LambdaLR(optimiser, factor)


def _half_wave(fraction: float) -> float:
    return 0.5 + 0.5 * math.cos(math.pi * min(1.0, fraction))


class HalveOnPlateau(LRScheduler):
    """Halves the learning rate when the error has not fallen for more than `patience` evaluations.

    Args:
        optimiser: The optimiser whose learning rates are set.
        patience: Evaluations without improvement that are tolerated.
        every: Training steps between two evaluations.
        min_improvement: Relative decrease of the error that counts as an improvement.

    >>> optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    >>> schedule = HalveOnPlateau(optimiser, patience=1, every=1)
    >>> for error in (1.0, 0.5, 0.5, 0.5):
    ...     optimiser.step(); schedule.observe(error); schedule.step()
    >>> schedule.get_last_lr()
    [0.5]
    """

    def __init__(self, optimiser: Optimizer, patience: int, every: int, min_improvement: float = 1e-4):
        # Checkpoints hold these attributes by name.
        self.patience, self.every, self.least = patience, every, min_improvement
        self.factor, self.best, self.waited = 1.0, float("inf"), 0
        super().__init__(optimiser)

    def observe(self, error: float) -> None:
        """Record the error of an evaluation."""
        if error < self.best * (1 - self.least):
            self.best, self.waited = error, 0
            return
        self.waited += 1
        if self.waited > self.patience:
            self.factor, self.waited = self.factor / 2, 0

    def get_lr(self) -> list[Any]:
        """Learning rate of each parameter group."""
        # Only one process evaluates: it sends the factor to the others in the following step.
        if torch.distributed.is_initialized() and self.last_epoch % self.every == 1 % self.every:
            shared = [self.factor]
            torch.distributed.broadcast_object_list(shared, src=0)
            self.factor = shared[0]
        return [self.factor * base for base in self.base_lrs]
