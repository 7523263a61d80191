"""Figures 6 and A.3 of the paper: error against episodes; and one episode."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ...figures.style import colour, draw_band, new_figure, new_panels, shared_legend
from ...wording import model_name, per_cent
from .models import MODELS, PAPER_MODELS

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
SHOWN = 0.5  # seconds
MOST = 100  # bits in the image of an episode
COPIED, ONE = "query copied", "1 %"  # lines of reference
BINS = 24  # of a curve: single steps would be too noisy to read


class Line(NamedTuple):
    """The error rate of one model with one seed, in training."""

    model: str
    n: int
    patterns: int
    degradation: float
    episodes: tuple[float, ...]
    errors: tuple[float, ...]


def draw_rivals(lines: Sequence[Line]) -> Figure:
    """One panel per setting at which models are compared, one row per n. Settings of ncode alone are left out.

    If there are models of the paper, the others are left out too.
    """
    lines = [line for line in lines if line.model in PAPER_MODELS] or lines
    settings = _settings(line for line in lines if line.model != "ncode") or _settings(lines)
    rows = sorted({n for n, _, _ in settings})
    columns = max(sum(n == row for n, _, _ in settings) for row in rows)
    width, height = (2.4, 2.7) if columns > 1 else (6.6, 3.6)
    figure, panels = new_panels(len(rows), columns, width, height, sharey=True)
    for row, n in enumerate(rows):
        here = [setting for setting in settings if setting[0] == n]
        for panel, setting in zip(panels[row], here, strict=False):
            for model in dict.fromkeys([*MODELS, *(line.model for line in lines)]):
                same = [line for line in lines if line[:4] == (model, *setting)]
                _draw(panel, same, colour(model), model_name(model, "memory"))
            _dress(panel, setting)
        for panel in panels[row][len(here) :]:
            panel.set_axis_off()
        panels[row][0].set_ylabel("error, %")
    shared_legend(figure, panels.flat, columns=4, last=(COPIED, ONE))
    return figure


def draw_plastic(lines: Sequence[Line]) -> Figure:
    """ncode alone: one row per n, one panel per degradation, one line per number of patterns."""
    lines = [line for line in lines if line.model == "ncode"]
    rows, counts = sorted({line.n for line in lines}), sorted({line.patterns for line in lines})
    columns = sorted({line.degradation for line in lines})
    figure, panels = new_panels(len(rows), len(columns), width=3.2, height=2.7, sharey=True)
    shades = colormaps["viridis"](torch.linspace(0.85, 0.0, len(counts)).numpy())
    for row, n in enumerate(rows):
        for panel, degradation in zip(panels[row], columns, strict=True):
            for shade, count in zip(shades, counts, strict=True):
                here = [line for line in lines if line[1:4] == (n, count, degradation)]
                _draw(panel, here, tuple(shade), f"{count} patterns")
            panel.set_title(f"n = {n:,}, {per_cent(degradation, 0)} lost", fontsize="medium")
            _frame(panel)
        panels[row][0].set_ylabel("error, %")
    shared_legend(figure, panels.flat, columns=int(figure.get_figwidth() // 1.7))
    return figure


class Point(NamedTuple):
    """The error rate of one model with one seed, for a number of patterns."""

    model: str
    n: int
    degradation: float
    patterns: int
    seed: int
    error: float


def draw_capacity(points: Sequence[Point]) -> Figure:
    """Error against the number of patterns: one row per n, one panel per degradation, one line per model."""
    rows, columns = sorted({point.n for point in points}), sorted({point.degradation for point in points})
    figure, panels = new_panels(len(rows), len(columns), width=3.2, height=2.9, sharey=True)
    for row, n in enumerate(rows):
        for panel, degradation in zip(panels[row], columns, strict=True):
            here = [point for point in points if (point.n, point.degradation) == (n, degradation)]
            for model in sorted({point.model for point in here}, key=MODELS.index):
                counts, errors = _by_seed([point for point in here if point.model == model])
                draw_band(panel, counts, errors, colour(model), model_name(model, "memory"))
            panel.set_title(f"n = {n:,}, {per_cent(degradation, 0)} of bits lost", fontsize="medium")
            panel.axhline(1, color="0.4", linewidth=0.9, linestyle="--")
            panel.set(xlabel="patterns", ylim=(0, 40))
            panel.spines[["top", "right"]].set_visible(False)
        panels[row][0].set_ylabel("error, %")
    shared_legend(figure, panels.flat, columns=3)  # full rows: matplotlib fills columns first
    return figure


def _by_seed(points: Sequence[Point]) -> tuple[Tensor, Tensor]:
    """The numbers of patterns that all seeds have, and the error in per cent, one row per seed."""
    seeds = sorted({point.seed for point in points})
    errors = {(point.seed, point.patterns): 100 * point.error for point in points}
    counts = [p for p in sorted({point.patterns for point in points}) if all((seed, p) in errors for seed in seeds)]
    return torch.tensor(counts), torch.tensor([[errors[seed, count] for count in counts] for seed in seeds])


def draw_episode(ts: Tensor, xs: Tensor, query: Tensor, target: Tensor, order: Tensor, asked: Tensor) -> Figure:
    """x(t) through an episode as an image, one row per bit; next to it the recalled pattern, the truth and the errors.

    States xs (T, n) at times ts (T,); the query and the whole pattern, target, (n,); the numbers of the patterns in
    order of presentation, and of the one to recall, `asked`.
    """
    rows = torch.arange(len(target))[:MOST]
    rows = rows[torch.argsort(2.0 * (query[rows] != 0) + (target[rows] < 0), stable=True)]
    figure = new_figure(1, 1, width=10.0, height=4.4)
    episode, result = figure.subplots(1, 2, width_ratios=(6, 1), sharey=True)
    look = {"cmap": "RdBu", "vmin": -1.2, "vmax": 1.2, "aspect": "auto", "interpolation": "nearest"}
    picture = episode.imshow(xs.T[rows].numpy(), extent=(0, (len(order) + 1) * SHOWN, len(rows), 0), **look)
    _name_presentations(episode, order.tolist(), int(asked))
    _name_bits(episode, int((query[rows] == 0).sum()), len(rows))
    recalled, truth = xs[-1, rows].sign(), target[rows]
    result.imshow(torch.stack([recalled, truth], 1).numpy(), extent=(0, 2, len(rows), 0), **look)
    result.axvline(1, color="white", linewidth=2)
    wrong = (recalled != truth).nonzero()[:, 0] + 0.5
    result.plot([2.2] * len(wrong), wrong.tolist(), "k<", markersize=4, clip_on=False, in_layout=False)
    result.set(xlim=(0, 2), xticks=[0.5, 1.5], xticklabels=["recalled", "truth"])
    result.tick_params(left=False, labelleft=False)
    result.set_xlabel(f"{len(wrong)} of {len(rows)} wrong")
    figure.colorbar(picture, ax=result, label="x(t)", ticks=[-1, 0, 1], extend="both", fraction=0.1, pad=0.1)
    return figure


def _name_presentations(panel: Axes, order: Sequence[int], asked: int) -> None:
    """Write A, B, ... below the image, at the time of their presentation."""
    names = [LETTERS[pattern % len(LETTERS)] for pattern in (*order, asked)]
    middles = [(place + 0.5) * SHOWN for place in range(len(names))]
    panel.set_xticks(middles, [*names[:-1], f"{names[-1]} ?"])
    panel.get_xticklabels()[-1].set_fontweight("bold")
    panel.tick_params(axis="x", length=0)
    for place in range(1, len(names)):
        panel.axvline(place * SHOWN, color="black", linewidth=2.4 if place == len(order) else 0.6)
    panel.set_xlabel(f"what is shown, for {SHOWN} s each; last, what is left of one of them")


def _name_bits(panel: Axes, lost: int, rows: int) -> None:
    parts = [(low, high, name) for low, high, name in ((0, lost, "lost"), (lost, rows, "given")) if low < high]
    panel.set_yticks(
        [(low + high) / 2 for low, high, _ in parts], [name for *_, name in parts], rotation=90, va="center"
    )
    panel.tick_params(axis="y", length=0)
    panel.set_ylabel("bits")
    if len(parts) > 1:
        panel.axhline(lost, color="black", linewidth=1, linestyle=":")


def _settings(lines: Iterable[Line]) -> list[tuple[int, int, float]]:
    return sorted({line[1:4] for line in lines})


def _dress(panel: Axes, setting: tuple[int, int, float]) -> None:
    n, patterns, degradation = setting
    panel.set_title(f"n = {n:,}, {patterns} patterns,\n{per_cent(degradation, 0)} lost", fontsize="medium")
    panel.axhline(50 * degradation, color="0.4", linewidth=0.9, linestyle=":", label=COPIED)
    _frame(panel)


def _frame(panel: Axes) -> None:
    panel.axhline(1, color="0.4", linewidth=0.9, linestyle="--", label=ONE)
    panel.set(xscale="log", xlabel="episodes", ylim=(0, 52))
    panel.spines[["top", "right"]].set_visible(False)


def _draw(panel: Axes, lines: Sequence[Line], shade: str | tuple[float, ...], label: str) -> None:
    if lines:
        draw_band(panel, *_binned(lines), shade, label)


def _binned(lines: Sequence[Line]) -> tuple[Tensor, Tensor]:
    """Means over bins of equal width on a logarithmic axis, one row per line, in per cent, without empty bins."""
    first, last = min(min(line.episodes) for line in lines), max(max(line.episodes) for line in lines)
    edges = torch.logspace(math.log10(first), math.log10(last), BINS + 1)
    means = torch.stack([_means(line, edges) for line in lines])
    full = ~means.isnan().any(2).any(0)
    return means[0, full, 0], 100 * means[:, full, 1]


def _means(line: Line, edges: Tensor) -> Tensor:
    """Mean episode and error of each bin, (bins, 2); nan if a bin is empty."""
    both = torch.tensor([line.episodes, line.errors], dtype=torch.float32).T
    bins = torch.bucketize(both[:, 0].contiguous(), edges[1:-1])
    return torch.stack([both[bins == number].mean(0) for number in range(len(edges) - 1)])
