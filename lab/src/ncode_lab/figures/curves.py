"""Training curves: the mean over seeds, and how far they spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..wording import model_name
from .style import colour, draw_band, new_panels, shared_legend, whole_ticks

Curves = Mapping[str, Sequence[float]]  # as `Result.curves` has them


class Quantity(NamedTuple):
    """A logged quantity, and how a panel shows it."""

    kind: str  # "train" or "evaluation"
    name: str  # in the log, such as "loss"
    label: str  # of the axis, with its unit
    scale: float = 1.0  # factor of the values: 100 for per cent
    log: bool = False  # whether the axis is logarithmic


def draw_curves(curves: Mapping[str, Sequence[Curves]], quantities: Sequence[Quantity]) -> Figure:
    """One panel per quantity, one line per model: the mean over its seeds, with a band from minimum to maximum."""
    figure, (panels,) = new_panels(1, len(quantities), width=4.2, height=3.3)
    for panel, quantity in zip(panels, quantities, strict=True):
        for model, seeds in curves.items():
            draw_curve(panel, seeds, quantity, colour(model), model_name(model))
        panel.set(xlabel="training steps", ylabel=quantity.label)
        whole_ticks(panel.xaxis)
        if quantity.log:
            panel.set_yscale("log")
        panel.spines[["top", "right"]].set_visible(False)
    shared_legend(figure, panels, columns=5)
    return figure


def draw_curve(panel: Axes, seeds: Sequence[Curves], quantity: Quantity, color: str, label: str = "") -> None:
    """The line and band of one model; nothing if no seed has logged the quantity."""
    found = align_seeds(seeds, quantity)
    if found is not None:
        # A single point needs a marker to be visible.
        draw_band(panel, *found, color, label, marker="o" if len(found[0]) == 1 else "", markersize=4)


def align_seeds(seeds: Sequence[Curves], quantity: Quantity) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Steps (T,) and values (seeds, T), at the steps of the first seed, up to the end of the shortest.

    Seeds may be logged at different steps, depending on the speed of the machine: values are interpolated linearly.
    None if no seed has logged the quantity.
    """
    step, name = f"{quantity.kind} step", f"{quantity.kind} {quantity.name}"
    known = [_pair(seed[step], seed[name]) for seed in seeds if step in seed and name in seed]
    known = [pair for pair in known if len(pair[0])]
    if not known:
        return None
    first, last = max(float(at[0]) for at, _ in known), min(float(at[-1]) for at, _ in known)
    steps = known[0][0]
    steps = steps[(steps >= first) & (steps <= last)]
    return steps, quantity.scale * torch.stack([_between(steps, *pair) for pair in known])


def _pair(steps: Sequence[float], values: Sequence[float]) -> tuple[torch.Tensor, torch.Tensor]:
    at, seen = torch.tensor(list(steps), dtype=torch.float64), torch.tensor(list(values), dtype=torch.float64)
    return at[~seen.isnan()], seen[~seen.isnan()]


def _between(steps: torch.Tensor, at: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    if len(at) == 1:
        return values.expand(len(steps))
    right = torch.searchsorted(at, steps).clamp(1, len(at) - 1)
    share = (steps - at[right - 1]) / (at[right] - at[right - 1])
    return torch.lerp(values[right - 1], values[right], share)
