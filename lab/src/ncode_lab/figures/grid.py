"""Images side by side."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.axes import Axes
from torch import Tensor


def tile(images: Tensor, columns: int, gap: int = 1) -> Any:
    """Images (n, C, H, W), bytes, as one array (height, width, 3), row by row, on white.

    >>> tile(torch.zeros(6, 1, 8, 8, dtype=torch.uint8), columns=3).shape
    (17, 26, 3)
    """
    count, _, height, width = images.shape
    rows = -(-count // columns)
    sheet = torch.full((3, rows * (height + gap) - gap, columns * (width + gap) - gap), 255, dtype=torch.uint8)
    for number, image in enumerate(images):
        top, left = (number // columns) * (height + gap), (number % columns) * (width + gap)
        sheet[:, top : top + height, left : left + width] = image
    return sheet.movedim(0, -1).numpy()


def show(panel: Axes, images: Tensor, columns: int, gap: int = 1) -> None:
    """Draw images into a panel, without a frame."""
    panel.imshow(tile(images, columns, gap), interpolation="nearest", aspect="equal")
    panel.set(xticks=[], yticks=[])
    panel.spines[:].set_visible(False)
