"""The numbers of a step, read from the device rarely and all at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ncode import InputError

from .errors import RunError
from .task import Loss

if TYPE_CHECKING:
    from lightning_fabric import Fabric

RESERVED = ("step", "kind", "fit", "loss")


class Reading(NamedTuple):
    """What was read: the loss and report of the last step, and whether any process was asked to stop."""

    values: dict[str, float]
    stop: bool


class Readings:
    """Losses that wait on the device, so that a step need not wait for the one before.

    >>> readings = Readings()
    >>> readings.add(Loss(torch.tensor(0.5), {"nfe": 12}))
    >>> readings.read(1)
    Reading(values={'loss': 0.5, 'nfe': 12.0}, stop=False)
    """

    def __init__(self) -> None:
        self._losses: list[Tensor] = []
        self._report: dict[str, Tensor | float] = {}

    def add(self, loss: Loss) -> None:
        """Note a step's loss and report."""
        self._losses.append(loss.value.detach())
        self._report = loss.report

    def check(self, step: int, last: int = 0) -> None:
        """Raise where a loss up to `step` is not finite, of all that wait or only of the last few."""
        if self._losses:
            _check_finite(torch.stack(self._losses[-last:]).tolist(), step)

    def read(self, step: int, stop: bool = False, fabric: Fabric | None = None) -> Reading:
        """The numbers of `step`, the mean over all devices; raise where a loss since the last reading is not finite."""
        report = [_scalar(name, value, self._losses[-1]) for name, value in self._report.items()]
        asked = self._losses[-1].new_tensor(float(stop))
        together = torch.stack([*self._losses, *report, asked])
        if fabric is not None and fabric.world_size > 1:
            together = fabric.all_reduce(together, reduce_op="mean")
        assert isinstance(together, Tensor)
        numbers = together.tolist()
        losses = numbers[: len(self._losses)]
        self._losses = []
        _check_finite(losses, step)
        return Reading(
            {"loss": losses[-1], **dict(zip(self._report, numbers[len(losses) : -1], strict=True))}, numbers[-1] > 0
        )


def _scalar(name: str, value: Tensor | float, like: Tensor) -> Tensor:
    if name in RESERVED:
        raise InputError(f"a report may not use the names {', '.join(RESERVED)}; given {name!r}")
    if isinstance(value, Tensor) and value.numel() != 1:
        raise InputError(
            f"a report holds one number a name; {name!r} has the shape {tuple(value.shape)}: take its mean"
        )
    return torch.as_tensor(value, device=like.device).detach().to(like.dtype).reshape(())


def _check_finite(losses: list[float], step: int) -> None:
    bad = [step - len(losses) + 1 + place for place, loss in enumerate(losses) if not math.isfinite(loss)]
    if bad:
        raise RunError(
            f"the loss is not finite at step {bad[0]}: "
            "try a smaller learning rate, more precision, or a tighter tolerance"
        )
