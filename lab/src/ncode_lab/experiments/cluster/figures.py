"""t-SNE maps of codes (the figure of appendix C.7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ...figures.style import legend_entry, new_panels
from ..coding.figures import title


class Map(NamedTuple):
    """Codes in the plane (n, 2), the cluster and the label of each, and the fraction that agrees."""

    places: Tensor
    clusters: Tensor
    labels: Tensor
    accuracy: float


def draw_maps(maps: Mapping[str, Map], classes: Sequence[str]) -> Figure:
    """One row per model: its map coloured by mixture components, and by labels."""
    figure, panels = new_panels(len(maps), 2, width=3.9, height=3.7)
    colours = [colormaps["tab10"](number % 10) for number in range(max(10, len(classes)))]
    for (left, right), (model, each) in zip(panels, maps.items(), strict=True):
        _scatter(left, each.places, each.clusters, colours)
        _scatter(right, each.places, each.labels, colours)
        left.set_title(f"mixture: {100 * each.accuracy:.1f}% agree with labels", fontsize="medium")
        right.set_title("labels", fontsize="medium")
        left.set_ylabel(title(model))
    pairs = zip(classes, colours, strict=False)
    dots = [legend_entry(name, marker="o", linestyle="none", color=colour) for name, colour in pairs]
    figure.legend(handles=dots, loc="outside right center", frameon=False, title="labels", fontsize="small")
    return figure


def _scatter(panel: Axes, places: Tensor, groups: Tensor, colours: Sequence[tuple[float, ...]]) -> None:
    size = max(1.0, min(12.0, 12000 / len(places)))
    chosen = [colours[int(group) % len(colours)] for group in groups]
    # Rasterised: ten thousand dots would make a large SVG.
    panel.scatter(places[:, 0], places[:, 1], s=size, c=chosen, linewidths=0, rasterized=True)
    # A few outliers would leave little room for the rest: they may lie outside.
    low, high = places.float().quantile(torch.tensor([0.005, 0.995]), dim=0)
    margin = 0.15 * (high - low).clamp(min=1e-6)
    across, down = torch.stack([low - margin, high + margin], 1).tolist()
    panel.set(xticks=[], yticks=[], xlim=across, ylim=down)
