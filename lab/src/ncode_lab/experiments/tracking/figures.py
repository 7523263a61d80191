"""Accuracy against the length of words."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...data import products
from ...figures.style import colour, draw_band, new_panels, shared_legend
from ...training import Result
from ...wording import model_name
from .models import MODELS

TITLES = {
    "a5": "A5: even permutations of five",
    "s5": "S5: permutations of five",
    "parity": "parity",
    "mod7": "sums modulo 7",
}
DASHED = ("lstm", "lstm-wide")
WIDTHS = {"skew": 4.0}  # below other lines that are right everywhere too


def draw_lengths(results: Sequence[Result]) -> Figure:
    """One panel per group, or setting of one; one line per model."""
    names = [*TITLES, *(result.dataset for result in results)]
    datasets = sorted({result.dataset for result in results}, key=names.index)
    columns = min(2, len(datasets))
    figure, panels = new_panels(-(-len(datasets) // columns), columns, width=4.4, height=3.1)
    for panel, dataset in zip(panels.flat, datasets, strict=False):
        _draw(panel, [result for result in results if result.dataset == dataset])
        group, _, rest = dataset.partition(",")
        panel.set_title(TITLES.get(group, group) + (f",{rest}" if rest else ""), fontsize="medium")
    for panel in panels.flat[len(datasets) :]:
        panel.set_axis_off()
    for row in panels:
        row[0].set_ylabel("right answers, %")
    shared_legend(figure, panels.flat, columns=int(figure.get_figwidth() // 2.1))
    return figure


def _draw(panel: Axes, results: Sequence[Result]) -> None:
    trained = results[0].settings["length"]
    panel.axvspan(1, trained, color="0.93", linewidth=0)
    group = results[0].about["group"]
    panel.axhline(100 / len(products(group)), color="0.4", linewidth=0.9, linestyle=":")
    for model in dict.fromkeys([*MODELS, *(result.model for result in results)]):
        same = [_points(result) for result in results if result.model == model]
        if same:
            shared = sorted(set.intersection(*(set(points) for points in same)))
            rows = torch.tensor([[100 * points[length] for length in shared] for points in same])
            style = {"linestyle": "--" if model in DASHED else "-", "linewidth": WIDTHS.get(model, 1.5)}
            draw_band(panel, torch.tensor(shared), rows, colour(model), model_name(model, "tracking"), **style)
    panel.set(xscale="log", xlabel="letters", ylim=(0, 104), xlim=(10, None))
    panel.spines[["top", "right"]].set_visible(False)


def _points(result: Result) -> dict[int, float]:
    """Accuracy by length."""
    found = {}
    for name, value in result.metrics.items():
        head, _, length = name.partition(" ")
        if head == "accuracy" and length.isdigit():
            found[int(length)] = value
    return found
