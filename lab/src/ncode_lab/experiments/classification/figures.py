"""The figure of appendix C.2: accuracy, losses and evaluations while classifiers are trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor

from ...figures.curves import Curves
from ...figures.style import colour, draw_band, new_panels, shared_legend, whole_ticks
from ...wording import model_name


class Course(NamedTuple):
    """Curves of one model, one row per seed: (seeds, evaluations) each; `steps` is (evaluations,)."""

    steps: Tensor
    accuracy: Tensor
    loss: Tensor
    nfe: Tensor
    train: Tensor


def draw_classification(curves: Mapping[str, Sequence[Curves]]) -> Figure:
    """Accuracy, losses and evaluations, from the curves of the seeds of each model."""
    figure, ((accuracy, losses, nfe),) = new_panels(1, 3, width=3.6, height=3.2)
    diverged = _spans_decades(curves, "evaluation loss")
    for model, seeds in curves.items():
        course, shade = course_of(seeds), colour(model)
        draw_band(accuracy, course.steps, 100 * course.accuracy, shade, model_name(model))
        draw_band(losses, course.steps, course.loss, shade)
        draw_band(losses, course.steps, course.train, shade, linestyle="--")
        if not course.nfe.any():  # the model has no flow
            continue
        nfe.plot(course.loss.flatten(), course.nfe.flatten(), ".", color=shade, markersize=3, alpha=0.3, linewidth=0)
        if not diverged:  # else the line would only follow the seed that did
            nfe.plot(course.loss.mean(0), course.nfe.mean(0), color=shade, linewidth=1.2)
    whole_ticks(accuracy.xaxis, losses.xaxis, accuracy.yaxis, nfe.yaxis)
    accuracy.set(xlabel="training steps", ylabel="held-out accuracy, %")
    losses.set(xlabel="training steps", ylabel="loss (dashed: training images)")
    if _spans_decades(curves, "train loss"):
        losses.set_yscale("log")
    if diverged:
        nfe.set_xscale("log")
    else:
        nfe.locator_params(axis="x", nbins=5)
    low, high = nfe.get_ylim()
    nfe.set(xlabel="held-out loss", ylabel="evaluations of the field", ylim=(max(0, low - 2), high + 2))
    rows = -(-len(curves) // 6)
    shared_legend(figure, [accuracy], columns=-(-len(curves) // rows))
    return figure


def course_of(seeds: Sequence[Curves]) -> Course:
    """The curves of a model's seeds, up to the end of the shortest.

    The training loss, which is logged more often, is averaged between evaluations.
    """
    count = min(len(seed["evaluation step"]) for seed in seeds)
    steps = torch.tensor(list(seeds[0]["evaluation step"])[:count], dtype=torch.float64)

    def rows(name: str) -> Tensor:
        return torch.tensor([list(seed[f"evaluation {name}"])[:count] for seed in seeds], dtype=torch.float64)

    train = torch.stack([_binned(seed, steps) for seed in seeds])
    return Course(steps, rows("accuracy"), rows("loss"), rows("nfe"), train)


def _binned(seed: Curves, steps: Tensor) -> Tensor:
    """The mean training loss between two evaluations; nan if none was logged."""
    at, loss = (torch.tensor(list(seed.get(f"train {name}", ())), dtype=torch.float64) for name in ("step", "loss"))
    place = torch.searchsorted(steps, at)
    means = [loss[place == number].mean() for number in range(len(steps))]
    return torch.stack(means) if means else torch.zeros(0, dtype=torch.float64)


def _spans_decades(curves: Mapping[str, Sequence[Curves]], name: str) -> bool:
    """Whether losses of that name need a logarithmic axis."""
    losses = [value for seeds in curves.values() for seed in seeds for value in seed.get(name, ()) if value > 0]
    return bool(losses) and max(losses) / min(losses) > 100
