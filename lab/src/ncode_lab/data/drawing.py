"""Images drawn by this package, for runs without downloads: digits of strokes, and coloured shapes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from ncode import InputError
from ncode.errors import check_count

from .images import Images
from .sampling import Randomness, as_generator

_CHUNK = 100  # images drawn at once, which bounds the memory

Point = tuple[float, float]


def draw_digits(count: int, *, generator: Randomness, side: int = 28, split: str = "train") -> Images:
    """Draw grey digits of strokes that are bent, turned and moved, with stray strokes and noise; 10 classes.

    Args:
        count: Number of images; classes are as even as possible.
        generator: A torch.Generator on the CPU, or a seed.
        side: Height and width.
        split: The split that the set stands for.

    >>> from ncode_lab.data import draw_digits
    >>> draw_digits(20, generator=0)
    Images(digits-like (generated), train, 20 of 1 x 28 x 28, on cpu)
    """
    images, labels = _draw(_digits, count, side, generator)
    return Images(images, labels, "digits-like (generated)", tuple("0123456789"), split, True)


def draw_shapes(count: int, *, generator: Randomness, side: int = 32, split: str = "train") -> Images:
    """Draw shapes of random colour, place, size and angle on a background of another colour, with noise; 10 classes.

    See `draw_digits` for the arguments.

    >>> from ncode_lab.data import draw_shapes
    >>> draw_shapes(20, generator=0).classes[:4]
    ('disk', 'ring', 'square', 'frame')
    """
    images, labels = _draw(_shapes, count, side, generator)
    return Images(images, labels, "shapes-like (generated)", tuple(SHAPES), split, True)


def _draw(draw: Callable[..., Tensor], count: int, side: int, given: Randomness) -> tuple[Tensor, Tensor]:
    count, side, generator = check_count("count", count), check_count("side", side), as_generator(given)
    if generator.device.type != "cpu":
        raise InputError(f"images are drawn on the CPU: use a CPU generator; given one on {generator.device}")
    labels = torch.randperm(count, generator=generator) % 10
    images = torch.cat([draw(part, side, generator) for part in labels.split(_CHUNK)])
    return (images.clamp(0, 1) * 255).round().to(torch.uint8), labels


def _between(low: float, high: float, generator: torch.Generator, *shape: int) -> Tensor:
    return low + (high - low) * torch.rand(shape, generator=generator)


def _grid(side: int) -> Tensor:
    """Return the centres of pixels, (side, side, 2), from -1 to 1."""
    middle = (torch.arange(side) + 0.5) / side * 2 - 1
    return torch.stack(torch.meshgrid(middle, middle, indexing="xy"), -1)


def _turn(angle: Tensor) -> Tensor:
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([cos, -sin, sin, cos], -1).view(-1, 2, 2)


def _arc(x: float, y: float, width: float, height: float, start: float, stop: float, pieces: int) -> list[Point]:
    """Return points on an ellipse around (x, y), between two angles, clockwise from the right; y points down."""
    angles = (math.radians(start + (stop - start) * k / pieces) for k in range(pieces + 1))
    return [(x + width * math.cos(angle), y + height * math.sin(angle)) for angle in angles]


_STROKES: list[list[list[Point]]] = [
    [_arc(0.0, 0.0, 0.6, 1.0, 0, 360, 14)],
    [[(-0.35, -0.6), (0.05, -1.0), (0.05, 1.0)]],
    [[*_arc(0.0, -0.5, 0.55, 0.5, 190, 390, 8), (-0.6, 1.0), (0.65, 1.0)]],
    [_arc(-0.05, -0.52, 0.55, 0.48, 200, 450, 7), _arc(-0.05, 0.48, 0.62, 0.52, 270, 520, 7)],
    [[(0.3, 1.0), (0.3, -1.0), (-0.65, 0.35), (0.7, 0.35)]],
    [[(0.55, -1.0), (-0.45, -1.0), (-0.5, -0.1), *_arc(0.0, 0.38, 0.6, 0.6, 230, 510, 8)]],
    [[(0.4, -1.0), (-0.2, -0.55), (-0.58, 0.3), *_arc(0.0, 0.45, 0.58, 0.55, 180, 530, 10)]],
    [[(-0.6, -1.0), (0.6, -1.0), (-0.1, 1.0)]],
    [_arc(0.0, -0.5, 0.48, 0.48, 90, 450, 8), _arc(0.0, 0.5, 0.58, 0.5, 270, 630, 8)],
    [[*_arc(0.0, -0.45, 0.55, 0.52, 0, 360, 10), (0.5, 0.2), (0.3, 1.0)]],
]


def _segments(lines: list[list[Point]], count: int) -> Tensor:
    """Return the ends of segments, (count, 2, 2); the last one is repeated as padding, which draws nothing new."""
    pairs = [[a, b] for line in lines for a, b in itertools.pairwise(line)]
    return torch.tensor(pairs + pairs[-1:] * (count - len(pairs)))


_MOST_SEGMENTS = max(sum(len(line) - 1 for line in lines) for lines in _STROKES)
GLYPHS = torch.stack([_segments(lines, _MOST_SEGMENTS) for lines in _STROKES])  # (10, segments, 2 ends, 2)


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
    return (ink * _between(0.6, 1.0, generator, batch, 1, 1) + noise)[:, None]


def _stretch(batch: int, generator: torch.Generator) -> Tensor:
    """Draw matrices of a size, an aspect ratio and a slant."""
    size, ratio = _between(0.5, 0.8, generator, batch), _between(0.75, 1.15, generator, batch)
    slant, zero = _between(-0.35, 0.35, generator, batch), torch.zeros(batch)
    return torch.stack([size * ratio, size * slant, zero, size], -1).view(-1, 2, 2)


def _bend(ends: Tensor, generator: torch.Generator) -> Tensor:
    """Move all ends by a smooth wave, so that strokes stay joined."""
    batch = len(ends)
    wave = _between(-1.5, 1.5, generator, batch, 2, 2)
    phase = _between(0, 2 * math.pi, generator, batch, 1, 1, 2)
    return ends + 0.18 * torch.sin(torch.einsum("bij,bskj->bski", wave, ends) * math.pi + phase)


def _ink(ends: Tensor, side: int, thickness: Tensor) -> Tensor:
    """Draw segments (batch, S, 2 ends, 2) with soft edges of about one pixel: (batch, side, side)."""
    pixels, start, along = _grid(side).view(-1, 2), ends[:, :, 0], ends[:, :, 1] - ends[:, :, 0]
    forward = along @ pixels.T - (along * start).sum(-1, keepdim=True)
    length = (along**2).sum(-1, keepdim=True).clamp(min=1e-9)
    share = (forward / length).clamp(0, 1)  # position of the point nearest to the pixel, from 0 to 1 along the segment
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
    """Draw two colours per image that differ clearly."""
    first = torch.rand(batch, 3, 1, 1, generator=generator)
    second = (first + _between(0.35, 0.65, generator, batch, 3, 1, 1)) % 1.0
    return 0.1 + 0.9 * first, 0.1 + 0.9 * second


def _shade(batch: int, side: int, generator: torch.Generator) -> Tensor:
    """Draw a brightness that changes slowly over the image."""
    slope = _between(-0.3, 0.3, generator, batch, 2)
    return 1 + torch.einsum("hwj,bj->bhw", _grid(side), slope)[:, None]


def _square(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(x.abs(), y.abs())


def _cross(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(_square(x, y) - 1.0, torch.minimum(x.abs(), y.abs()) - 0.28)


def _star(x: Tensor, y: Tensor) -> Tensor:
    nearest = (torch.atan2(x, -y) * 5 / (2 * math.pi) + 0.5) % 1.0 - 0.5  # of five points, one up
    return torch.hypot(x, y) - (1.1 - 1.3 * nearest.abs())


def _stripes(x: Tensor, y: Tensor) -> Tensor:
    bar = ((y * 1.5 + 0.5) % 1.0 - 0.5).abs() / 1.5 - 0.18
    return torch.maximum(bar, torch.maximum(x.abs() - 0.9, y.abs() - 0.9))


# Signed distances of (x, y) from each shape: negative inside, approximate except near the edge.
SHAPES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "disk": lambda x, y: torch.hypot(x, y) - 0.9,
    "ring": lambda x, y: (torch.hypot(x, y) - 0.75).abs() - 0.2,
    "square": lambda x, y: _square(x, y) - 0.8,
    "frame": lambda x, y: (_square(x, y) - 0.7).abs() - 0.18,
    "triangle": lambda x, y: torch.maximum(0.866 * x.abs() - 0.5 * y, y) - 0.5,
    "cross": _cross,
    "star": _star,
    "crescent": lambda x, y: torch.maximum(torch.hypot(x, y) - 0.95, 0.75 - torch.hypot(x - 0.5, y)),
    "stripes": _stripes,
    "two disks": lambda x, y: torch.hypot(x.abs() - 0.55, y) - 0.42,
}
