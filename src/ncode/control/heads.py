"""Linear heads on a trunk: one a control tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from .base import Shapes


class Heads(nn.ModuleDict):
    """One linear map a control tensor, from the trunk's output (batch, width) to (batch, *shape).

    They start as those of a hypernetwork should. The bias is where a static weight would start, and the part that
    depends on the data is `scale` times as large, for a trunk's output of size 1: training begins near a plain NODE
    and becomes adaptive from there. A part of full size was seen to overfit and to blow up.
    """

    def __init__(self, width: int, initial: Mapping[str, Tensor], scale: float):
        super().__init__({name: nn.Linear(width, start.numel()) for name, start in initial.items()})
        self.shapes = {name: tuple(start.shape) for name, start in initial.items()}
        with torch.no_grad():
            for name, start in initial.items():
                head = self[name]
                assert isinstance(head, nn.Linear)
                size = float(start.square().mean().sqrt()) if start.numel() else 0.0
                head.weight.normal_(0.0, scale * size / math.sqrt(width))
                head.bias.copy_(start.flatten())

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        """The tensors that the features ask for."""
        return {name: head(features).reshape(-1, *self.shapes[name]) for name, head in self.items()}


def check_closed(who: str, shapes: Shapes, initial: Mapping[str, Tensor]) -> None:
    """Refuse shapes that are left open: there is nothing to size a head by."""
    for name, shape in shapes.items():
        if name not in initial:
            raise InputError(
                f"{who} cannot set control {name!r}, whose shape {shape} is left open: drive it by DataControl, and the"
                " others by Parts"
            )
    if not shapes:
        raise InputError(
            f"{who} has nothing to control: the dynamics want no control. Give them some (controlled=..., context=...),"
            " or use Static()"
        )


def width_of(trunk: Any, width: int | None) -> int:
    """How many features a trunk returns: as told, or those of its last layer that says so."""
    if not isinstance(trunk, nn.Module):
        raise InputError(f"a trunk must be a module; given {type(trunk).__name__}")
    if width is not None:
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise InputError(f"width must be a whole number of at least 1; given {width!r}")
        return width
    found = [module.out_features for module in trunk.modules() if isinstance(module, nn.Linear)]
    if not found:
        raise InputError(
            "cannot see how many features the trunk returns, since no layer in it is linear: say so with width=..."
        )
    return found[-1]


def check_features(who: str, features: Any, width: int, batch: int) -> Tensor:
    """What the trunk returned must fit the heads."""
    if not isinstance(features, Tensor) or features.shape != (batch, width):
        shown = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise InputError(
            f"the trunk of {who} returned {shown}; expected ({batch}, {width}), {width} features a sample: flatten"
            " them, or give width=..."
        )
    return features
