"""One look for all figures: sizes, colours of models, legends, bands over seeds, and grids of images."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from torch import Tensor

# The same in every figure, and distinct within each, also for the colour-blind (Okabe and Ito's palette): static models
# are grey, baselines muted, ours blue and red.
COLOURS = {
    "node": "#7f7f7f",
    "anode": "#E69F00",
    "anode-wide": "#8C564B",
    "data-control": "#009E73",
    "open-loop": "#0072B2",
    "closed-loop": "#D55E00",
    # Classification: single blocks, and networks of them.
    "ncode": "#0072B2",
    "ncode-3x3": "#56B4E9",
    "ncode-closed": "#D55E00",
    "gamma-alone": "#CC79A7",
    "late-fusion": "#000000",
    "gamma-channels": "#9467BD",
    "ncode-net": "#0072B2",
    "static-net": "#7f7f7f",
    "static-net-wide": "#8C564B",
    # Memory.
    "ode-rnn": "#E69F00",
    "lstm": "#CC79A7",
    "lstm-miconi": "#8C564B",
    "delta": "#56B4E9",
    "hebb-held": "#E69F00",
    "oja-held": "#009E73",
    "delta-held": "#D55E00",
    "nearest": "#000000",
    # Tracking.
    "skew": "#0072B2",
    "skew-blocks": "#56B4E9",
    "skew-planes": "#009E73",
    "dense": "#D55E00",
    "diagonal": "#7f7f7f",
    "diagonal-wide": "#000000",
    "lstm-wide": "#8C564B",
    # Autoencoders.
    "auton-code": "#0072B2",
    "ae": "#E69F00",
    "ae-wide": "#8C564B",
    "vae": "#009E73",
    "sparse": "#CC79A7",
    "denoising": "#7f7f7f",
    "sphere": "#56B4E9",
    "sphere-exp": "#000000",
    "rotation": "#D55E00",
}


def colour(model: str) -> str:
    """The colour of a model, the same in every figure; black for others."""
    return COLOURS.get(model, "black")


def new_figure(rows: int = 1, columns: int = 1, width: float = 3.2, height: float = 3.0) -> Figure:
    """An empty figure for rows x columns panels of the given size in inches."""
    return Figure(figsize=(columns * width, rows * height), layout="constrained")


def new_panels(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Figure, Any]:
    """A figure and its panels, an array (rows, columns); `options` are those of `Figure.subplots`."""
    figure = new_figure(rows, columns, width, height)
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def whole_ticks(*axes: Axis, most: int = 5) -> None:
    """Few ticks at whole numbers on each axis, all in one format; labels of neighbouring panels must not touch."""
    for axis in axes:
        axis.set_major_locator(MaxNLocator(nbins=most, steps=[1, 2, 5, 10], integer=True))


def shared_legend(figure: Figure, panels: Iterable[Axes], columns: int, last: Iterable[str] = ()) -> None:
    """One legend above all panels, each name once; names in `last` follow the others."""
    known = {}
    for panel in panels:
        handles, labels = panel.get_legend_handles_labels()
        known |= dict(zip(labels, handles, strict=True))
    for name in last:
        if name in known:
            known[name] = known.pop(name)
    columns = max(1, min(len(known), columns))
    figure.legend(list(known.values()), list(known), loc="outside upper center", ncols=columns, frameon=False)


def legend_entry(label: str, **style: Any) -> Line2D:
    """A line or marker that stands for a name in a legend."""
    return Line2D([], [], label=label, **style)


def draw_band(panel: Axes, x: Tensor, rows: Tensor, color: Any, label: str = "", **style: Any) -> None:
    """The mean of rows (seeds, points), with a band from minimum to maximum if there are several."""
    panel.plot(x, rows.mean(0), color=color, label=label or None, **{"linewidth": 1.5, **style})
    if len(rows) > 1:
        panel.fill_between(x, rows.amin(0), rows.amax(0), color=color, alpha=0.2, linewidth=0)


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
