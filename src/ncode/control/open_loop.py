"""Open loop: the control is computed from the initial value, once per solve."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from .._modules import Shapes, Theta, accept_old_names, format_shapes
from ..errors import InputError, check_count, check_number
from .base import Controller, check_closed


class OpenLoop(Controller):
    """theta = gamma(x0): each sample follows a flow of its own, chosen by its initial value.

    gamma is a trunk with one linear head per control. The block, which knows the shapes, makes the heads.

    Args:
        trunk: A module that maps what the block is given (or its `context`) to (batch, width) features, best of
            size 1 (a tanh at the end).
        width: Number of features that the trunk returns. Default: that of the last linear layer in it.
        scale: The size of the part of theta that depends on the data, relative to that of a static weight. The other
            part, the bias of the heads, starts as a static weight does.

    >>> import torch, ncode
    >>> trunk = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh())
    >>> block = ncode.NCODE(ncode.dynamics.MLP(2, hidden=16), ncode.OpenLoop(trunk))
    >>> block(torch.zeros(5, 2)).shape
    torch.Size([5, 2])
    """

    equation = "theta = gamma(x0)"

    def __init__(self, trunk: nn.Module, width: int | None = None, scale: float = 0.1):
        super().__init__()
        self.width, self.scale = trunk_width(trunk, width), check_number("scale", scale, low=0.0)
        self.trunk = trunk
        self.heads = Heads(self.width, {}, self.scale)

    def build(self, shapes: Shapes, defaults: Theta) -> None:
        check_closed("OpenLoop", shapes, defaults)
        self.heads = Heads(self.width, defaults, self.scale)

    def initial_theta(self, context: Tensor) -> Theta:
        return self.heads(features_of("OpenLoop", self.trunk, context, self.width))


class DataControl(Controller):
    """theta = x0: the dynamics see the initial value in addition to the state (Massaroli et al., 2020).

    For the `context` of `MLP` and `ConvBlock`, an additional input of their first layer.

    >>> import torch, ncode
    >>> f = ncode.dynamics.MLP(2, hidden=16, controlled=(), context=2)
    >>> ncode.NCODE(f, ncode.DataControl())(torch.zeros(5, 2)).shape
    torch.Size([5, 2])
    """

    equation = "theta = x0"

    def build(self, shapes: Shapes, defaults: Theta) -> None:
        if len(shapes) != 1:
            raise InputError(
                f"DataControl sets one control, the initial value; the dynamics take {format_shapes(shapes)}."
                " Name one in the control_shapes of dynamics of your own, let MLP and ConvBlock learn their weights"
                " (controlled=(), context=...), or set the other controls by Parts"
            )

    def initial_theta(self, context: Tensor) -> Tensor:
        return context


class Heads(nn.ModuleDict):
    """One linear map per control, from features (batch, width) to (batch, *shape).

    The bias starts as a static weight would, and the part that depends on the data is `scale` times as large, for
    features of size 1. Training then begins near a plain NODE. With a part of full size, training was seen to overfit
    and to diverge.
    """

    def __init__(self, width: int, defaults: Theta, scale: float):
        super().__init__({name: nn.Linear(width, value.numel()) for name, value in defaults.items()})
        self.shapes = {name: tuple(value.shape) for name, value in defaults.items()}
        accept_old_names(self)
        with torch.no_grad():
            for name, value in defaults.items():
                head = self[name]
                assert isinstance(head, nn.Linear)
                size = float(value.square().mean().sqrt()) if value.numel() else 0.0
                head.weight.normal_(0.0, scale * size / math.sqrt(width))
                head.bias.copy_(value.flatten())

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        return {name: head(features).reshape(-1, *self.shapes[name]) for name, head in self.items()}


def trunk_width(trunk: Any, width: int | None) -> int:
    """The number of features of a trunk: `width`, or that of its last linear layer."""
    if not isinstance(trunk, nn.Module):
        raise InputError(f"a trunk must be a module; given {type(trunk).__name__}")
    if width is not None:
        return check_count("width", width)
    found = [module.out_features for module in trunk.modules() if isinstance(module, nn.Linear)]
    if not found:
        raise InputError("the trunk has no linear layer to read its number of features from: give width=...")
    return found[-1]


def features_of(owner: str, trunk: nn.Module, x: Tensor, width: int) -> Tensor:
    """Return the features of x that a trunk computes, if they fit the heads."""
    first = next(iter(trunk), None) if isinstance(trunk, nn.Sequential) else trunk
    if type(first) is nn.Linear and x.shape[-1] != first.in_features:
        raise InputError(
            f"the trunk of {owner} begins with a linear layer of {first.in_features} inputs; given an input of shape"
            f" {tuple(x.shape)}: build it for {x.shape[-1]}, or flatten the input first"
        )
    if type(first) is nn.Linear and x.dtype != first.weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise InputError(f"the trunk of {owner} is {first.weight.dtype}, and its input {x.dtype}: convert one of them")
    features, batch = trunk(x), x.shape[0]
    if not isinstance(features, Tensor) or features.shape != (batch, width):
        shown = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise InputError(
            f"the trunk of {owner} returned {shown}; expected ({batch}, {width}), {width} features per sample: flatten"
            " them, or give width=..."
        )
    return features
