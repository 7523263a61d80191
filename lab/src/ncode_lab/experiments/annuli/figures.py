"""Figures 1, 5 and A.1 of the paper: concentric annuli."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from ...figures.style import legend_entry, new_panels, whole_ticks
from ...wording import model_name, per_cent

SHADES = ("#3B4CC0", "#C9960C")  # of the classes: unlike the colours of models, and distinct for the colour-blind
SOFT = LinearSegmentedColormap.from_list("soft", ["#9DA8EC", "#FFFFFF", "#F0D284"])
NAMES = ("inner disc", "outer annulus")


class Boundary(NamedTuple):
    """How a model divides the plane."""

    axis: Tensor  # coordinates (G,) along each side of the square
    probability: Tensor  # of the outer class, (G, G), one row per height
    x: Tensor  # held-out points (n, 2)
    y: Tensor  # their classes (n,)
    accuracy: float  # on all held-out points


class Paths(NamedTuple):
    """Trajectories of points."""

    xs: Tensor  # (n, T, 2), in the plane
    y: Tensor  # classes (n,)
    line: Tensor  # (a, b, c) of the read-out's boundary a x + b y + c = 0; empty if it is not a line of this plane
    zeros: int = 0  # dimensions that are not shown


class Flows(NamedTuple):
    """The fields that two points of different classes meet."""

    ts: Tensor  # times (K,) at which the field is known
    axis: Tensor  # coordinates (G,) along each side of the square
    fields: Tensor  # (2, K, G, G, 2): point, time, height, place, direction
    times: Tensor  # (T,), of the trajectories
    xs: Tensor  # the two trajectories (2, T, 2)


def draw_boundaries(boundaries: Mapping[str, Boundary]) -> Figure:
    """One panel per model: the probability of a class over the plane, with held-out points."""
    figure, (panels,) = new_panels(1, len(boundaries), width=2.6, height=3.3)
    for panel, (model, boundary) in zip(panels, boundaries.items(), strict=True):
        low, high = float(boundary.axis[0]), float(boundary.axis[-1])
        probability = boundary.probability.numpy()
        style = {"origin": "lower", "cmap": SOFT, "vmin": 0, "vmax": 1, "zorder": 0}
        panel.imshow(probability, extent=(low, high, low, high), **style)
        if probability.min() < 0.5 < probability.max():
            axis = boundary.axis.numpy()
            panel.contour(axis, axis, probability, levels=[0.5], colors="black", linewidths=1.2)
        for kind, shade in enumerate(SHADES):
            shown = boundary.x[boundary.y == kind].T.numpy()
            panel.scatter(*shown, s=7, color=shade, edgecolors="white", linewidths=0.3, zorder=3)
        panel.set_title(f"{model_name(model)}\n{per_cent(boundary.accuracy)} of held-out points", fontsize="medium")
        _plane(panel, (low, high), (low, high))
    bar = figure.colorbar(panels[0].images[0], ax=list(panels), ticks=[0, 0.5, 1], shrink=0.8, pad=0.02)
    bar.set_label("probability of the outer class")
    figure.legend(handles=_classes(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def draw_trajectories(paths: Mapping[str, Paths]) -> Figure:
    """One panel per model: trajectories of both classes, each panel at its own scale."""
    figure, (panels,) = new_panels(1, len(paths), width=2.6, height=3.3)
    for panel, (model, path) in zip(panels, paths.items(), strict=True):
        # The larger class first, so that the disc is not buried.
        for kind in (1, 0):
            lines = path.xs[path.y == kind].numpy()
            panel.add_collection(LineCollection(list(lines), colors=SHADES[kind], linewidths=0.7, alpha=0.75))
            panel.scatter(*lines[:, 0].T, s=9, color=SHADES[kind], zorder=3, linewidths=0)
            panel.scatter(*lines[:, -1].T, s=12, color="black", zorder=4, linewidths=0)
            panel.scatter(*lines[:, -1].T, s=3, color=SHADES[kind], zorder=5, linewidths=0)
        sides = _square(path.xs)
        if len(path.line):
            _boundary_line(panel, path.line, sides)
        hidden = f"\n(projected: {path.zeros} more dim.)" if path.zeros else "\n"
        panel.set_title(model_name(model) + hidden, fontsize="medium")
        _plane(panel, *sides)
    end = legend_entry("where it ends", linestyle="", marker="o", markersize=4, color="black")
    line = legend_entry("read-out's boundary", color="0.35", linestyle="--")
    figure.legend(handles=[*_classes(), end, line], loc="outside lower center", ncols=4, frameon=False)
    return figure


def draw_flows(flows: Flows, model: str) -> Figure:
    """One row per point, one column per time: the field that the point meets, and its trajectory so far."""
    figure, panels = new_panels(2, len(flows.ts), width=2.0, height=2.15, sharex=True, sharey=True)
    for number, time in enumerate(flows.ts.tolist()):
        for kind in range(2):
            _field(panels[kind][number], flows, kind, number, time)
        panels[0][number].set_title(f"t = {time:.2f}", fontsize="medium")
    _label_points(panels)
    figure.suptitle(f"{model_name(model)}: the field that each of two points meets", fontsize="medium")
    return figure


def draw_fields(flows: Mapping[str, Flows]) -> Figure:
    """One column per model, one row per point: the field that the point meets half-way, and its whole trajectory."""
    figure, panels = new_panels(2, len(flows), width=2.4, height=2.5)
    for column, (model, flow) in enumerate(flows.items()):
        middle = len(flow.ts) // 2
        for kind in range(2):
            _field(panels[kind][column], flow, kind, middle, float(flow.times[-1]))
        panels[0][column].set_title(f"{model_name(model)}\nt = {float(flow.ts[middle]):.2f}", fontsize="medium")
    _label_points(panels)
    return figure


def _label_points(panels: Any) -> None:
    """Axes of a figure with one row for an inner and one for an outer point."""
    for panel in panels[1]:
        panel.set_xlabel("$x_1$")
    for kind, row in zip(("inner", "outer"), panels, strict=True):
        row[0].set_ylabel(f"{kind} point\n$x_2$")


def _field(panel: Axes, flows: Flows, kind: int, number: int, time: float) -> None:
    """Directions of one field, and the trajectory of a point up to a time."""
    axis, field = flows.axis.numpy(), flows.fields[kind, number]
    directions = (field / field.norm(dim=-1, keepdim=True).clamp_min(1e-12)).numpy()
    style = {"pivot": "mid", "units": "width", "scale": 1.15 * len(axis), "width": 0.006, "color": "0.62"}
    panel.quiver(axis, axis, directions[..., 0], directions[..., 1], **style)
    so_far = flows.xs[kind, flows.times <= time + 1e-6].numpy()
    panel.plot(*so_far.T, color=SHADES[kind], linewidth=2)
    _arrowhead(panel, so_far, SHADES[kind])
    panel.plot(*so_far[0], "o", color="white", markeredgecolor=SHADES[kind], markersize=5)
    panel.plot(*so_far[-1], "o", color=SHADES[kind], markeredgecolor="black", markersize=6)
    panel.set_aspect("equal")
    margin = 0.6 * (axis[1] - axis[0])  # half an arrow, so that those at the edge are whole
    sides = float(axis[0] - margin), float(axis[-1] + margin)
    panel.set(xlim=sides, ylim=sides)
    whole_ticks(panel.xaxis, panel.yaxis, most=4)


def _arrowhead(panel: Axes, path: Any, shade: str) -> None:
    """Show the direction of a path (T, 2) half-way along it, if it is long enough to be seen."""
    length = np.concatenate([[0.0], np.linalg.norm(np.diff(path, axis=0), axis=1).cumsum()])
    if length[-1] < 0.1 * np.ptp(panel.dataLim.intervalx):
        return
    middle = int(np.searchsorted(length, length[-1] / 2))
    style = {"arrowstyle": "-|>", "color": shade, "linewidth": 0, "mutation_scale": 14}
    panel.annotate("", xy=tuple(path[middle]), xytext=tuple(path[middle - 1]), arrowprops=style)


def _plane(panel: Axes, width: tuple[float, float], height: tuple[float, float]) -> None:
    panel.set_aspect("equal")
    panel.set(xlim=width, ylim=height, xlabel="$x_1$")
    whole_ticks(panel.xaxis, panel.yaxis)
    if panel.get_subplotspec().is_first_col():  # type: ignore[union-attr]
        panel.set_ylabel("$x_2$")


def _square(xs: Tensor) -> tuple[tuple[float, float], tuple[float, float]]:
    """The smallest square that holds all points, with a margin."""
    low, high = xs.flatten(0, 1).amin(0), xs.flatten(0, 1).amax(0)
    middle, half = (low + high) / 2, 0.54 * float((high - low).max())
    (left, bottom), (right, top) = (middle - half).tolist(), (middle + half).tolist()
    return (left, right), (bottom, top)


def _boundary_line(panel: Axes, line: Tensor, sides: tuple[tuple[float, float], tuple[float, float]]) -> None:
    a, b, c = line.tolist()
    if a == b == 0:
        return
    middle = torch.tensor([sum(side) / 2 for side in sides])
    normal = torch.tensor([a, b])
    foot = middle - (normal @ middle + c) / (normal @ normal) * normal
    along = torch.tensor([-b, a]) / normal.norm() * (sides[0][1] - sides[0][0])
    panel.plot(*torch.stack([foot - 2 * along, foot + 2 * along]).T.numpy(), "--", color="0.35", linewidth=1.1)


def _classes() -> list[Line2D]:
    dot = {"linestyle": "", "marker": "o", "markersize": 5}
    return [legend_entry(name, color=shade, **dot) for shade, name in zip(SHADES, NAMES, strict=True)]
