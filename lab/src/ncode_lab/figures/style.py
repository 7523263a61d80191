"""One look for all figures: sizes, colours of models, and grids of images."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

# The same in every figure: static models are grey, baselines muted, ours blue and red. Distinct for the colour-blind
# too (Okabe and Ito's palette).
COLOURS = {
    "node": "#7f7f7f",
    "anode": "#E69F00",
    "data-control": "#009E73",
    "open-loop": "#0072B2",
    "closed-loop": "#D55E00",
    "ncode": "#0072B2",
}
OTHERS = ("#CC79A7", "#56B4E9", "#8C564B", "#F0E442", "#000000")


def colour(model: str) -> str:
    """The colour of a model, the same in every figure.

    >>> colour("open-loop")
    '#0072B2'
    """
    if model in COLOURS:
        return COLOURS[model]
    return OTHERS[sum(map(ord, model)) % len(OTHERS)]


def new_figure(rows: int = 1, columns: int = 1, width: float = 3.2, height: float = 3.0) -> Figure:
    """An empty figure for rows x columns panels of the given size in inches.

    >>> new_figure(1, 3, width=3.0).get_size_inches().tolist()
    [9.0, 3.0]
    """
    return Figure(figsize=(columns * width, rows * height), layout="constrained")


def tile(images: Tensor, columns: int, gap: int = 1) -> Any:
    """Images (n, C, H, W), bytes, as one array (height, width, 3), row by row, on white."""
    count, _, height, width = images.shape
    rows = -(-count // columns)
    sheet = torch.full((3, rows * (height + gap) - gap, columns * (width + gap) - gap), 255, dtype=torch.uint8)
    for number, image in enumerate(images):
        top, left = (number // columns) * (height + gap), (number % columns) * (width + gap)
        sheet[:, top : top + height, left : left + width] = image
    return sheet.movedim(0, -1).numpy()


def show_images(panel: Axes, images: Tensor, columns: int, gap: int = 1) -> None:
    """Draw a grid of images into a panel, without a frame."""
    panel.imshow(tile(images, columns, gap), interpolation="nearest", aspect="equal")
    panel.set(xticks=[], yticks=[])
    panel.spines[:].set_visible(False)
