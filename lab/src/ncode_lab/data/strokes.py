"""The ten digits as strokes."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

Point = tuple[float, float]


def _arc(x: float, y: float, width: float, height: float, start: float, stop: float, pieces: int) -> list[Point]:
    """Points on an ellipse around (x, y), from an angle to another, clockwise from the right; y points down."""
    angles = (math.radians(start + (stop - start) * k / pieces) for k in range(pieces + 1))
    return [(x + width * math.cos(angle), y + height * math.sin(angle)) for angle in angles]


_LINES: list[list[list[Point]]] = [
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
    """Ends of pieces, (count, 2, 2). The last is repeated to fill up, which draws nothing new."""
    pairs = [[a, b] for line in lines for a, b in itertools.pairwise(line)]
    return torch.tensor(pairs + pairs[-1:] * (count - len(pairs)))


_MOST = max(sum(len(line) - 1 for line in lines) for lines in _LINES)
GLYPHS = torch.stack([_segments(lines, _MOST) for lines in _LINES])  # (10, segments, 2 ends, 2)
