"""Images drawn by us, for runs without any download: handwriting-like digits, and coloured shapes."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ncode import InputError
from ncode.checks import check_count

from .images import Images
from .streams import Randomness, as_generator
from .strokes import GLYPHS

_CHUNK = 100  # images drawn at once, which bounds the memory

SHAPES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {}


def draw_digits(count: int, *, generator: Randomness, side: int = 28, split: str = "train") -> Images:
    """Digits of strokes, bent, turned, moved, of any thickness, with stray strokes and noise; grey, 10 classes.

    Args:
        count: How many; as many of each class as can be.
        generator: A torch.Generator on the CPU, or a seed.
        side: Their height and width.
        split: What the set is for.

    >>> from ncode_lab.data import draw_digits
    >>> draw_digits(20, generator=0)
    Images(digits-like (generated), train, 20 of 1 x 28 x 28, on cpu)
    """
    count, side, generator = check_count("count", count), check_count("side", side), _on_cpu(generator)
    labels = torch.randperm(count, generator=generator) % 10
    images = torch.cat([_digits(part, side, generator) for part in labels.split(_CHUNK)])
    return Images(_bytes(images)[:, None], labels, "digits-like (generated)", tuple("0123456789"), split, True)


def draw_shapes(count: int, *, generator: Randomness, side: int = 32, split: str = "train") -> Images:
    """Shapes of any colour, place, size and turn on a background of others, with noise; 10 classes.

    Args:
        count: How many; as many of each class as can be.
        generator: A torch.Generator on the CPU, or a seed.
        side: Their height and width.
        split: What the set is for.

    >>> from ncode_lab.data import draw_shapes
    >>> draw_shapes(20, generator=0).classes[:4]
    ('disk', 'ring', 'square', 'frame')
    """
    count, side, generator = check_count("count", count), check_count("side", side), _on_cpu(generator)
    labels = torch.randperm(count, generator=generator) % 10
    images = torch.cat([_shapes(part, side, generator) for part in labels.split(_CHUNK)])
    return Images(_bytes(images), labels, "shapes-like (generated)", tuple(SHAPES), split, True)


def _on_cpu(given: Randomness) -> torch.Generator:
    generator = as_generator(given)
    if generator.device.type != "cpu":
        raise InputError(f"images are drawn on the CPU: give a generator of the CPU, and not of {generator.device}")
    return generator


def _bytes(images: Tensor) -> Tensor:
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)


def _between(low: float, high: float, generator: torch.Generator, *shape: int) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=generator)


def _grid(side: int) -> Tensor:
    """The middles of pixels, (side, side, 2), from -1 to 1."""
    middle = (torch.arange(side) + 0.5) / side * 2 - 1
    return torch.stack(torch.meshgrid(middle, middle, indexing="xy"), -1)


def _turn(angle: Tensor) -> Tensor:
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([cos, -sin, sin, cos], -1).view(-1, 2, 2)


def _digits(labels: Tensor, side: int, generator: torch.Generator) -> Tensor:
    batch = len(labels)
    ends = _bend(GLYPHS[labels], generator)
    matrix = _turn(_between(-0.35, 0.35, generator, batch)) @ _stretch(batch, generator)
    ends = torch.einsum("bij,bskj->bski", matrix, ends) + _between(-0.25, 0.25, generator, batch, 1, 1, 2)
    ink = _ink(ends, side, _between(0.06, 0.14, generator, batch))
    start = _between(-1, 1, generator, batch, 1, 1, 2)
    stray = torch.cat([start, start + _between(-0.6, 0.6, generator, batch, 1, 1, 2)], 2)
    ink = torch.maximum(ink, 0.6 * _ink(stray, side, _between(0.04, 0.1, generator, batch)))
    noise = torch.randn(ink.shape, generator=generator) * _between(0.02, 0.12, generator, batch, 1, 1)
    return ink * _between(0.6, 1.0, generator, batch, 1, 1) + noise


def _stretch(batch: int, generator: torch.Generator) -> Tensor:
    """A size, a width for the height, and a slant."""
    size, ratio = _between(0.5, 0.8, generator, batch), _between(0.75, 1.15, generator, batch)
    slant, zero = _between(-0.35, 0.35, generator, batch), torch.zeros(batch)
    return torch.stack([size * ratio, size * slant, zero, size], -1).view(-1, 2, 2)


def _bend(ends: Tensor, generator: torch.Generator) -> Tensor:
    """Move all ends along a smooth wave, so that strokes stay joined."""
    batch = len(ends)
    wave = _between(-1.5, 1.5, generator, batch, 2, 2)
    phase = _between(0, 2 * math.pi, generator, batch, 1, 1, 2)
    return ends + 0.18 * torch.sin(torch.einsum("bij,bskj->bski", wave, ends) * math.pi + phase)


def _ink(ends: Tensor, side: int, thickness: Tensor) -> Tensor:
    """Strokes from segments (batch, S, 2 ends, 2), with soft edges of about a pixel: (batch, side, side)."""
    pixels, start, along = _grid(side).view(-1, 2), ends[:, :, 0], ends[:, :, 1] - ends[:, :, 0]
    forward = along @ pixels.T - (along * start).sum(-1, keepdim=True)
    length = (along**2).sum(-1, keepdim=True).clamp(min=1e-9)
    share = (forward / length).clamp(0, 1)  # how far along the segment its point nearest to the pixel lies
    to_start = (pixels**2).sum(-1) - 2 * start @ pixels.T + (start**2).sum(-1, keepdim=True)
    squared = to_start - 2 * share * forward + share**2 * length
    distance = squared.amin(1).clamp(min=0).sqrt()
    return torch.sigmoid((thickness[:, None] - distance) * side).view(-1, side, side)


def _shapes(labels: Tensor, side: int, generator: torch.Generator) -> Tensor:
    batch = len(labels)
    place = _grid(side).view(1, -1, 2) - _between(-0.35, 0.35, generator, batch, 1, 2)
    size = _between(0.4, 0.7, generator, batch, 1, 1)
    local = torch.einsum("bij,bpj->bpi", _turn(_between(-0.6, 0.6, generator, batch)), place) / size
    outside = torch.stack([shape(*local.unbind(-1)) for shape in SHAPES.values()])
    outside = outside[labels, torch.arange(batch)] * size[..., 0]
    cover = torch.sigmoid(-outside * side).view(batch, 1, side, side)
    front, back = _colours(batch, generator)
    images = back * (1 - cover) * _shade(batch, side, generator) + front * cover * _shade(batch, side, generator)
    return images + torch.randn(images.shape, generator=generator) * _between(0.01, 0.06, generator, batch, 1, 1, 1)


def _colours(batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two colours for each image, never too near to each other."""
    first = torch.rand(batch, 3, 1, 1, generator=generator)
    away = _between(0.35, 0.65, generator, batch, 3, 1, 1)
    second = (first + away) % 1.0
    return 0.1 + 0.9 * first, 0.1 + 0.9 * second


def _shade(batch: int, side: int, generator: torch.Generator) -> Tensor:
    """Light that changes slowly over the image."""
    slope = _between(-0.3, 0.3, generator, batch, 2)
    return 1 + torch.einsum("hwj,bj->bhw", _grid(side), slope)[:, None]


def _shape(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    SHAPES[function.__name__.strip("_").replace("_", " ")] = function
    return function


# Each says how far (x, y) is outside of the shape: negative inside, and about right near the edge.


@_shape
def _disk(x: Tensor, y: Tensor) -> Tensor:
    return torch.hypot(x, y) - 0.9


@_shape
def _ring(x: Tensor, y: Tensor) -> Tensor:
    return (torch.hypot(x, y) - 0.75).abs() - 0.2


@_shape
def _square(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(x.abs(), y.abs()) - 0.8


@_shape
def _frame(x: Tensor, y: Tensor) -> Tensor:
    return (torch.maximum(x.abs(), y.abs()) - 0.7).abs() - 0.18


@_shape
def _triangle(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(0.866 * x.abs() - 0.5 * y, y) - 0.5


@_shape
def _cross(x: Tensor, y: Tensor) -> Tensor:
    long, short = torch.maximum(x.abs(), y.abs()), torch.minimum(x.abs(), y.abs())
    return torch.maximum(long - 1.0, short - 0.28)


@_shape
def _star(x: Tensor, y: Tensor) -> Tensor:
    angle = torch.atan2(x, -y)
    nearest = (angle * 5 / (2 * math.pi) + 0.5) % 1.0 - 0.5  # of five points, one up
    return torch.hypot(x, y) - (1.1 - 1.3 * nearest.abs())


@_shape
def _crescent(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(torch.hypot(x, y) - 0.95, 0.75 - torch.hypot(x - 0.5, y))


@_shape
def _stripes(x: Tensor, y: Tensor) -> Tensor:
    bar = ((y * 1.5 + 0.5) % 1.0 - 0.5).abs() / 1.5 - 0.18
    return torch.maximum(bar, torch.maximum(x.abs() - 0.9, y.abs() - 0.9))


@_shape
def _two_disks(x: Tensor, y: Tensor) -> Tensor:
    return torch.hypot(x.abs() - 0.55, y) - 0.42
