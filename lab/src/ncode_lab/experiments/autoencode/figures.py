"""Reconstructions and decoded trajectories (figures 6 and A.4 to A.6 of the paper), and training curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from torch import Tensor

from ...figures.curves import Curves
from ...figures.style import colour, new_figure, new_panels, show_images
from ..coding.figures import title


def draw_reconstructions(truth: Tensor, back: Mapping[str, Tensor]) -> Figure:
    """A row of test images (n, C, H, W), bytes, and below it the reconstructions, one row per model."""
    rows = {"test images": truth, **{title(model): images for model, images in back.items()}}
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

    Args:
        curves: Curves of each model, one per seed.
        principal: Errors of principal components, drawn as horizontal lines, by name.
    """
    figure = new_figure(1, 1, width=5.2, height=3.4)
    panel = figure.subplots()
    for model, seeds in curves.items():
        for number, seed in enumerate(seeds):
            style = {"color": colour(model), "linewidth": 1.3}
            label = title(model) if number == 0 else None
            mark = {"marker": "o", "markersize": 3} if len(seed["evaluation step"]) < 12 else {}
            panel.plot(seed["evaluation step"], seed["evaluation error"], label=label, **style, **mark)
            panel.plot(seed["train step"], seed["train error"], "--", alpha=0.5, **{**style, "linewidth": 0.8})
    for (name, error), style in zip(principal.items(), (":", "-."), strict=False):
        panel.axhline(error, color="0.4", linestyle=style, linewidth=1.2, label=name)
    panel.set(xlabel="training steps", yscale="log")
    panel.set_ylabel("mean squared error (dashed: training batches)", fontsize="small")
    panel.legend(frameon=False, fontsize="small")
    return figure
