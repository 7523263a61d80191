"""One look for all figures: sizes, colours of models, and a figure to draw on."""

from __future__ import annotations

from matplotlib.figure import Figure

# A colour says who it is, in every figure: static models are grey, rivals muted, ours blue and red. Told apart by the
# colour-blind too (Okabe and Ito's palette).
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
