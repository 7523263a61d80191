"""Samples, their scores, and their nearest neighbours (the figures of appendix C.6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ...figures.style import colour, legend_entry, new_figure, new_panels, show_images
from ..coding.figures import title

Line = Mapping[float, float]  # a score at each value of the axis


class Neighbours(NamedTuple):
    """Samples (n, C, H, W), and the test images (n, k, C, H, W) nearest to each.

    `nearer` is the fraction of samples that are nearer to a test image than to any of as many training images.
    """

    samples: Tensor
    nearest: Tensor
    nearer: float


def draw_samples(samples: Mapping[str, Mapping[str, Tensor]], columns: int = 6) -> Figure:
    """One row of panels per model, one panel per density: samples (n, C, H, W), bytes."""
    wide = len(next(iter(samples.values())))
    figure, panels = new_panels(len(samples), wide, width=2.1, height=2.2)
    for panel, name in zip(panels[0], next(iter(samples.values())), strict=True):
        panel.set_title(name, fontsize="small")
    for row, (model, each) in zip(panels, samples.items(), strict=True):
        for panel, images in zip(row, each.values(), strict=True):
            show_images(panel, images, columns)
        row[0].set_ylabel(title(model), fontsize="medium")
    return figure


def draw_scores(
    scores: Mapping[str, Mapping[str, Line]],
    floors: Mapping[str, float],
    axis: str,
    score: str,
    paper: Mapping[str, Line] | None = None,
) -> Figure:
    """A score against components or widths: one colour per model, solid for the paper's protocol, dashed for honest.

    Args:
        scores: Scores of each model and protocol, "paper" and "honest".
        floors: The score of images that were only coded and decoded, by model.
        axis: Label of the horizontal axis.
        score: Label of the vertical axis.
        paper: The paper's own numbers, by model.
    """
    figure = new_figure(1, 1, width=6.4, height=3.9)
    panel = figure.subplots()
    for model, protocols in scores.items():
        for protocol, line in protocols.items():
            style = "-o" if protocol == "paper" else "--s"
            panel.plot(list(line), list(line.values()), style, color=colour(model), markersize=4, linewidth=1.3)
        if model in floors:
            panel.axhline(floors[model], color=colour(model), linestyle=":", linewidth=1)
    places = sorted({place for protocols in scores.values() for line in protocols.values() for place in line})
    for model, line in (paper or {}).items():
        panel.plot(list(line), list(line.values()), "*", color=colour(model), markersize=11, markeredgecolor="black")
    panel.set(xscale="log", xlabel=axis, ylabel=score)
    panel.set_xticks(places, [f"{place:,g}" for place in places], minor=False)
    panel.minorticks_off()
    _legend(panel, list(scores), bool(paper))
    return figure


def draw_neighbours(found: Mapping[str, Neighbours]) -> Figure:
    """One panel per density: in each row a sample and, to its right, the test images nearest to it."""
    count = len(next(iter(found.values())).samples)
    near = next(iter(found.values())).nearest.shape[1]
    figure = new_figure(1, len(found), width=0.55 * (near + 1) + 0.5, height=0.5 * count + 0.8)
    # The gap between densities is wider than that between a sample and its neighbours.
    widths = ([1, near, 0.5] * len(found))[:-1]
    panels = figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0]
    for gap in panels[2::3]:
        gap.set_axis_off()
    for number, (name, each) in enumerate(found.items()):
        sample, nearest = panels[3 * number : 3 * number + 2]
        show_images(sample, each.samples, columns=1)
        show_images(nearest, each.nearest.flatten(0, 1), columns=near)
        sample.set_title("sample", fontsize="x-small")
        nearest.set_title("nearest test images", fontsize="x-small")
        nearest.set_xlabel(f"{name}\n{100 * each.nearer:.0f}% nearer to test", fontsize="small")
    return figure


def _legend(panel: Axes, models: Sequence[str], paper: bool) -> None:
    """Next to the panel, where it hides no line."""
    lines = [legend_entry(title(model), color=colour(model)) for model in models]
    grey = {"color": "0.3", "markersize": 4}
    lines.append(legend_entry("fitted to test codes (paper)", linestyle="-", marker="o", **grey))
    lines.append(legend_entry("to training codes (honest)", linestyle="--", marker="s", **grey))
    lines.append(legend_entry("coded and decoded test images", linestyle=":", **grey))
    if paper:
        star = {"marker": "*", "markersize": 11, "markeredgecolor": "black", "linestyle": "none"}
        lines.append(legend_entry("the paper's numbers", color="white", **star))
    panel.legend(handles=lines, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize="small")
