"""Figure 3 of the paper: an oscillation, and what a constant and a dynamic control make of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ...figures.style import new_figure, shared_legend, whole_ticks
from ...wording import format_number, model_name

# As in the paper: the degenerate solution in red, the other one in black.
SHADES = {"constant": "#D55E00", "dynamic": "#000000"}
TARGET = {"color": "#56B4E9", "linewidth": 4.5, "alpha": 0.75, "solid_capstyle": "round", "label": "oscillation"}


class Fit(NamedTuple):
    """The fit of one model in one regime."""

    ts: Tensor  # times (T,)
    target: Tensor  # the oscillation, (T,)
    x: Tensor  # the model's state (T,)
    theta: Tensor  # and control (T,)
    seen: float  # end of the fitted time
    mu: float  # learnt


def draw_vanderpol(regimes: Mapping[float, Mapping[str, Fit]]) -> Figure:
    """One row per regime: x against time for both controls, and the plane of x and theta."""
    rows = max(1, len(regimes))
    figure = new_figure(rows, 1, width=9.6, height=2.0)
    figure.set_figheight(2.0 * rows + 0.6)
    panels = figure.subplots(rows, 2, squeeze=False, width_ratios=[3.2, 1])
    for (course, plane), (mu, fits) in zip(panels, regimes.items(), strict=True):
        _course(course, fits, mu)
        _plane(plane, fits)
    panels[-1][0].set_xlabel("t")
    panels[-1][1].set_xlabel("x")
    shared_legend(figure, panels[:, 0], columns=4)
    return figure


def draw_learning(curves: Mapping[float, Sequence[Mapping[str, Sequence[float]]]]) -> Figure:
    """The mu of the dynamic control during training: one colour per regime, one line per seed; dashed: the true mu."""
    figure = new_figure(1, 1, width=5.6, height=3.3)
    panel = figure.subplots()
    for place, (mu, seeds) in enumerate(curves.items()):
        shade = colormaps["viridis"](0.85 * place / max(1, len(curves) - 1))
        panel.axhline(mu, color=shade, linestyle="--", linewidth=1)
        for number, seed in enumerate(seeds):
            label = f"$\\mu$ = {mu:g}" if number == 0 else None
            panel.plot(seed["train step"], seed["train mu"], color=shade, linewidth=1.5, label=label)
    whole_ticks(panel.xaxis)
    panel.set(xlabel="training steps", ylabel=r"learnt $\mu$", yscale="log")
    ticks = list(curves)
    panel.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    panel.minorticks_off()
    panel.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False)
    return figure


def _course(panel: Axes, fits: Mapping[str, Fit], mu: float) -> None:
    shown = [f"{model_name(model)}: {format_number(fit.mu, 3)}" for model, fit in fits.items()]
    panel.set_title(rf"$\mu$ = {mu:g}; learnt: {', '.join(shown)}", fontsize="medium", loc="left")
    for number, (model, fit) in enumerate(fits.items()):
        ts = fit.ts.numpy()
        if number == 0:
            panel.plot(ts, fit.target.numpy(), **TARGET)
            if fit.seen < float(fit.ts[-1]):
                panel.axvspan(fit.seen, float(fit.ts[-1]), color="0.93", zorder=0, label="not fitted to")
            panel.set_xlim(0, float(fit.ts[-1]))
        panel.plot(ts, fit.x.numpy(), color=SHADES.get(model, "0.3"), linewidth=1.6, label=model_name(model))
    panel.set(ylabel="x(t)", ylim=(-2.7, 2.7))


def _plane(panel: Axes, fits: Mapping[str, Fit]) -> None:
    for model, fit in fits.items():
        shade = SHADES.get(model, "0.3")
        panel.plot(fit.x.numpy(), fit.theta.numpy(), color=shade, linewidth=1.4)
        panel.plot(fit.x[:1].numpy(), fit.theta[:1].numpy(), "o", color=shade, markersize=5, markerfacecolor="white")
    panel.set(ylabel=r"$\theta$", xlim=(-2.7, 2.7))
