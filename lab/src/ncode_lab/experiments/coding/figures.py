"""Figures of the experiments with autoencoders (figures 7, 8 and A.4 to A.6, appendix C.6 to C.8 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from torch import Tensor

from ...figures.curves import Curves
from ...figures.style import colour, legend_entry, new_figure, new_panels, show_images, whole_ticks
from ...wording import model_name, per_cent

Line = Mapping[float, float]  # a score at each value of the axis


def draw_reconstructions(truth: Tensor, back: Mapping[str, Tensor]) -> Figure:
    """A row of test images (n, C, H, W), bytes, and below it the reconstructions, one row per model."""
    rows = {"test images": truth, **{model_name(model): images for model, images in back.items()}}
    figure, panels = new_panels(len(rows), 1, width=0.575 * len(truth) + 1.25, height=0.64)
    # "constrained" knows the width of long names only at the second drawing: the first one, an SVG, cut them off.
    figure.set_layout_engine("compressed")
    for (panel,), (name, images) in zip(panels, rows.items(), strict=True):
        show_images(panel, images, columns=len(images))
        panel.set_ylabel(name, rotation=0, ha="right", va="center", fontsize="small")
    return figure


def draw_orbit(orbit: Tensor, truth: Tensor, ts: Tensor) -> Figure:
    """One row per image: the decoded states of its trajectory (rows, T, C, H, W), and the image itself at the end."""
    rows, count = orbit.shape[:2]
    width, height = orbit.shape[-1] + 1, 0.62 * rows
    figure = new_figure(1, 1, width=0.62 * (count + 1.4) + 0.3, height=height + 0.45)
    path, end = figure.subplots(1, 2, width_ratios=[count, 1])
    show_images(path, orbit.flatten(0, 1), columns=count)
    show_images(end, truth, columns=1)
    middle = (orbit.shape[-1] - 1) / 2
    path.set_xticks([middle + width * i for i in range(count)], [f"{float(t):g}" for t in ts], fontsize="small")
    end.set_xticks([middle], ["truth"], fontsize="small")
    path.set_xlabel("t")
    for panel in (path, end):
        panel.tick_params(length=0)
    return figure


def draw_training(curves: Mapping[str, Sequence[Curves]], principal: Mapping[str, float]) -> Figure:
    """The error on held-out images, and that of training batches, dashed, against training steps.

    `principal` are errors of principal components, by name, drawn as horizontal lines.
    """
    figure = new_figure(1, 1, width=5.2, height=3.4)
    panel = figure.subplots()
    for model, seeds in curves.items():
        for number, seed in enumerate(seeds):
            style = {"color": colour(model), "linewidth": 1.3}
            label = model_name(model) if number == 0 else None
            mark = {"marker": "o", "markersize": 3} if len(seed["evaluation step"]) < 12 else {}
            panel.plot(seed["evaluation step"], seed["evaluation error"], label=label, **style, **mark)
            panel.plot(seed["train step"], seed["train error"], "--", alpha=0.5, **{**style, "linewidth": 0.8})
    for (name, error), style in zip(principal.items(), (":", "-."), strict=False):
        panel.axhline(error, color="0.4", linestyle=style, linewidth=1.2, label=name)
    panel.set(xlabel="training steps", yscale="log")
    whole_ticks(panel.xaxis)
    # Plain numbers, as in the tables.
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.yaxis.set_minor_formatter(NullFormatter())
    panel.set_ylabel("mean squared error (dashed: training batches)", fontsize="small")
    panel.legend(frameon=False, fontsize="small")
    return figure


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
        row[0].set_ylabel(model_name(model), fontsize="medium")
    return figure


def draw_scores(
    scores: Mapping[str, Mapping[str, Line]],
    floors: Mapping[str, float],
    axis: str,
    score: str,
    paper: Mapping[str, Line] | None = None,
) -> Figure:
    """A score against components or widths: one colour per model, solid for the paper's protocol, dashed for honest.

    `floors` are scores of images that were only coded and decoded, and `paper` the paper's own numbers, by model; axis
    and score are labels of the axes.
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
    """A part per density, two in a row: on each line a sample and, to its right, the test images nearest to it."""
    count = len(next(iter(found.values())).samples)
    near = next(iter(found.values())).nearest.shape[1]
    wide = min(2, len(found))
    high = -(-len(found) // wide)
    figure = new_figure(high, wide, width=0.55 * (near + 1) + 0.5, height=0.5 * count + 0.8)
    # The gap between densities is wider than that between a sample and its neighbours.
    widths = ([1, near, 0.5] * wide)[:-1]
    panels = figure.subplots(high, len(widths), width_ratios=widths, squeeze=False)
    for panel in panels.flat:
        panel.set_axis_off()
    for number, (name, each) in enumerate(found.items()):
        row, column = divmod(number, wide)
        sample, nearest = panels[row, 3 * column : 3 * column + 2]
        for panel in (sample, nearest):
            panel.set_axis_on()
        show_images(sample, each.samples, columns=1)
        show_images(nearest, each.nearest.flatten(0, 1), columns=near)
        sample.set_title("sample", fontsize="x-small")
        nearest.set_title("nearest test images", fontsize="x-small")
        nearest.set_xlabel(f"{name}\n{per_cent(each.nearer, 0)} nearer to test", fontsize="small")
    return figure


def _legend(panel: Axes, models: Sequence[str], paper: bool) -> None:
    """Next to the panel, where it hides no line."""
    lines = [legend_entry(model_name(model), color=colour(model)) for model in models]
    grey = {"color": "0.3", "markersize": 4}
    lines.append(legend_entry("fitted to test codes (paper)", linestyle="-", marker="o", **grey))
    lines.append(legend_entry("to training codes (honest)", linestyle="--", marker="s", **grey))
    lines.append(legend_entry("coded and decoded test images", linestyle=":", **grey))
    if paper:
        star = {"marker": "*", "markersize": 11, "markeredgecolor": "black", "linestyle": "none"}
        lines.append(legend_entry("the paper's numbers", color="white", **star))
    panel.legend(handles=lines, loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize="small")


class Map(NamedTuple):
    """Codes in the plane (n, 2), the cluster and the label of each, and the fraction that agrees."""

    places: Tensor
    clusters: Tensor
    labels: Tensor
    accuracy: float


def draw_maps(maps: Mapping[str, Map], classes: Sequence[str]) -> Figure:
    """One row per model: its map coloured by mixture components, and by labels."""
    figure, panels = new_panels(len(maps), 2, width=3.9, height=3.7)
    palette = colormaps["tab10" if len(classes) <= 10 else "tab20"]
    colours = [palette(number % palette.N) for number in range(max(10, len(classes)))]
    for (left, right), (model, each) in zip(panels, maps.items(), strict=True):
        _scatter(left, each.places, each.clusters, colours)
        _scatter(right, each.places, each.labels, colours)
        left.set_title(f"mixture: {per_cent(each.accuracy)} agree with labels", fontsize="medium")
        right.set_title("labels", fontsize="medium")
        left.set_ylabel(model_name(model))
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


def draw_lines(lines: Mapping[str, Tensor]) -> Figure:
    """One panel per model: in each row the images between two test images (rows, steps, C, H, W), bytes."""
    rows, steps = next(iter(lines.values())).shape[:2]
    figure, (panels,) = new_panels(1, len(lines), width=0.46 * steps + 0.2, height=0.46 * rows + 0.4)
    for panel, (model, images) in zip(panels, lines.items(), strict=True):
        show_images(panel, images.flatten(0, 1), columns=steps)
        panel.set_title(model_name(model), fontsize="medium")
    return figure


def draw_squares(squares: Mapping[str, Tensor]) -> Figure:
    """One square per model (steps, steps, C, H, W), bytes: three of its corners are reconstructed test images."""
    figure = draw_lines(squares)
    for panel in figure.axes:
        for name, x, y, ha in (("A", -0.01, 1.0, "right"), ("B", 1.01, 1.0, "left"), ("C", -0.01, 0.0, "right")):
            va = "top" if y else "bottom"
            panel.text(x, y, name, ha=ha, va=va, transform=panel.transAxes, weight="bold")
    return figure
