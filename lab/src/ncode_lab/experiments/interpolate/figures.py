"""Images between images (the figure of appendix C.8)."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure
from torch import Tensor

from ...figures.style import new_panels, show_images
from ..coding.figures import title


def draw_lines(lines: Mapping[str, Tensor]) -> Figure:
    """One panel per model: in each row the images between two test images (rows, steps, C, H, W), bytes."""
    rows, steps = next(iter(lines.values())).shape[:2]
    figure, (panels,) = new_panels(1, len(lines), width=0.46 * steps + 0.2, height=0.46 * rows + 0.4)
    for panel, (model, images) in zip(panels, lines.items(), strict=True):
        show_images(panel, images.flatten(0, 1), columns=steps)
        panel.set_title(title(model), fontsize="medium")
    return figure


def draw_squares(squares: Mapping[str, Tensor]) -> Figure:
    """One square per model (steps, steps, C, H, W), bytes: three of its corners are reconstructed test images."""
    figure = draw_lines(squares)
    for panel in figure.axes:
        for name, x, y, ha in (("A", -0.01, 1.0, "right"), ("B", 1.01, 1.0, "left"), ("C", -0.01, 0.0, "right")):
            va = "top" if y else "bottom"
            panel.text(x, y, name, ha=ha, va=va, transform=panel.transAxes, weight="bold")
    return figure
