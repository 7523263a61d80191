"""Trunks of gamma for images: what turns an image into the few numbers that set its control."""

from __future__ import annotations

from typing import Literal, get_args

from torch import nn

from ..checks import check_choice, check_count, check_number
from ..ode import InputError

Gamma = Literal["linear", "perceptron", "conv", "conv-norm", "conv-pool"]
GAMMAS: tuple[Gamma, ...] = get_args(Gamma)


def gamma(kind: str, shape: tuple[int, int, int], hidden: int = 10, dropout: float = 0.0) -> nn.Sequential:
    """A trunk for `OpenLoop` that sees images (C, H, W) and returns `hidden` features.

    With the heads, which the block adds, it is the paper's "two-layer perceptron with 10 hidden units".

    Args:
        kind: "linear", as the paper's appendix has it: a linear map of all pixels. "perceptron": a tanh behind it, as
            the paper's text may be read. "conv": conv 16 and conv 32, both of stride 2, a mean over 2x2 fields, linear,
            tanh. "conv-norm": conv 32, 64 and 128 of stride 2 with batch norm, and the same end. "conv-pool": the same
            with stride 1 and a maximum over 2x2 fields behind each. The last three are ours: they see shapes where the
            first two must learn by heart.
        shape: Of an image.
        hidden: Features.
        dropout: How often an input of the last layer is left out in training. Drawn once a solve, outside of it.

    >>> import torch
    >>> gamma("conv", (3, 32, 32))(torch.zeros(5, 3, 32, 32)).shape
    torch.Size([5, 10])
    """
    check_choice("gamma", kind, GAMMAS)
    hidden = check_count("hidden", hidden)
    if check_number("dropout", dropout, low=0.0) >= 1.0:
        raise InputError(f"dropout must be below 1; given {dropout}: nothing would be left")
    channels, height, width = shape
    layers: list[nn.Module] = []
    features = channels * height * width
    if kind.startswith("conv"):
        layers, features = _convolutions(kind, channels)
    layers.append(nn.Flatten())
    if dropout:
        layers.append(nn.Dropout(dropout))
    layers.append(nn.Linear(features, hidden))
    return nn.Sequential(*layers) if kind == "linear" else nn.Sequential(*layers, nn.Tanh())


def _convolutions(kind: str, channels: int) -> tuple[list[nn.Module], int]:
    """Convolutions that halve an image each, then a mean over its quarters; and how many numbers that leaves."""
    widths, norm, pool = (16, 32) if kind == "conv" else (32, 64, 128), kind != "conv", kind == "conv-pool"
    layers: list[nn.Module] = []
    for before, after in zip((channels, *widths), widths, strict=False):
        layers.append(nn.Conv2d(before, after, 3, stride=1 if pool else 2, padding=1, bias=not norm))
        layers += [nn.BatchNorm2d(after), nn.ReLU()] if norm else [nn.ReLU()]
        layers += [nn.MaxPool2d(2, ceil_mode=True)] if pool else []
    return [*layers, nn.AdaptiveAvgPool2d(2)], 4 * widths[-1]
