"""Training curves: the mean over seeds, and how far they spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .style import colour, new_figure

Curves = Mapping[str, Sequence[float]]  # as `Result.curves` has them


class Quantity(NamedTuple):
    """A logged quantity, and how a panel shows it.

    Attributes:
        kind: "train" or "evaluation".
        name: Its name in the log, such as "loss".
        label: Label of the axis, with its unit.
        scale: Factor of the values: 100 for per cent.
        log: Whether the axis is logarithmic.
    """

    kind: str
    name: str
    label: str
    scale: float = 1.0
    log: bool = False


class Spread(NamedTuple):
    """Steps (T,), and the mean, minimum and maximum over seeds at each."""

    steps: torch.Tensor
    mean: torch.Tensor
    low: torch.Tensor
    high: torch.Tensor


def draw_curves(
    curves: Mapping[str, Sequence[Curves]],
    quantities: Sequence[Quantity],
    *,
    shades: Mapping[str, str] | None = None,
    titles: Mapping[str, str] | None = None,
) -> Figure:
    """One panel per quantity, one line per model: the mean over its seeds, with a band from minimum to maximum.

    Args:
        curves: Curves of the seeds of each model, as in `Result.curves`.
        quantities: The quantities to show.
        shades: Colours of models. Default: `style.colour`.
        titles: Names of models in the legend. Default: their own.

    >>> seen = {"train step": [1, 5, 10], "train loss": [0.9, 0.4, 0.1]}
    >>> len(draw_curves({"node": [seen, seen]}, [Quantity("train", "loss", "loss", log=True)]).axes)
    1
    """
    figure = new_figure(1, len(quantities), width=4.2, height=3.3)
    panels = figure.subplots(1, len(quantities), squeeze=False)[0]
    for panel, quantity in zip(panels, quantities, strict=True):
        for model, seeds in curves.items():
            shade, title = (shades or {}).get(model) or colour(model), (titles or {}).get(model, model)
            draw_curve(panel, seeds, quantity, color=shade, label=title)
        panel.set(xlabel="training steps", ylabel=quantity.label)
        if quantity.log:
            panel.set_yscale("log")
        panel.spines[["top", "right"]].set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(5, max(1, len(labels))), frameon=False)
    return figure


def draw_curve(panel: Axes, seeds: Sequence[Curves], quantity: Quantity, *, color: str, label: str = "") -> None:
    """The line and band of one model; nothing if no seed has logged the quantity."""
    spread = spread_of(seeds, quantity)
    if spread is None:
        return
    steps, mean, low, high = (each.numpy() for each in spread)
    # A single point needs a marker to be visible.
    mark: dict[str, Any] = {"marker": "o", "markersize": 4} if len(steps) == 1 else {}
    panel.plot(steps, mean, color=color, linewidth=1.6, label=label, **mark)
    if len(seeds) > 1:
        panel.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)


def spread_of(seeds: Sequence[Curves], quantity: Quantity) -> Spread | None:
    """Mean and range over seeds at the steps of the first, up to the end of the shortest.

    Seeds may be logged at different steps, depending on the speed of the machine: values are interpolated linearly.
    """
    step, name = f"{quantity.kind} step", f"{quantity.kind} {quantity.name}"
    known = [_pair(seed[step], seed[name]) for seed in seeds if step in seed and name in seed]
    known = [pair for pair in known if len(pair[0])]
    if not known:
        return None
    first, last = max(float(at[0]) for at, _ in known), min(float(at[-1]) for at, _ in known)
    steps = known[0][0]
    steps = steps[(steps >= first) & (steps <= last)]
    rows = quantity.scale * torch.stack([_between(steps, *pair) for pair in known])
    return Spread(steps, rows.mean(0), rows.amin(0), rows.amax(0))


def _pair(steps: Sequence[float], values: Sequence[float]) -> tuple[torch.Tensor, torch.Tensor]:
    at, seen = torch.tensor(list(steps), dtype=torch.float64), torch.tensor(list(values), dtype=torch.float64)
    return at[~seen.isnan()], seen[~seen.isnan()]


def _between(steps: torch.Tensor, at: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    if len(at) == 1:
        return values.expand(len(steps))
    right = torch.searchsorted(at, steps).clamp(1, len(at) - 1)
    share = (steps - at[right - 1]) / (at[right] - at[right - 1])
    return torch.lerp(values[right - 1], values[right], share)
