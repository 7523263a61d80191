"""Scores of samples against components and widths, as pictures, out of results alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..training import Reported
from ..training.result import Result
from .base import Picture
from .scoring import FID, OTHER, Names

if TYPE_CHECKING:
    from ..figures.generate import Scores


def score_pictures(results: Sequence[Result], paper: Sequence[Reported]) -> list[Picture]:
    """Scores of mixtures and of kernel densities, of results on one data set."""
    from ..figures.generate import draw_scores

    names, pictures = names_of(results), []
    floors = means(results, f"{names.frechet} floor")
    mixtures = _lines(results, names, "")
    caption = (
        f"{names.title} of images drawn from mixtures against their number of components, mean over seeds. Dotted:"
        " test images that were only coded and decoded."
    )
    if mixtures:
        stars = _stars(results[0].dataset, paper) if names == FID else {}
        figure = draw_scores(mixtures, floors, "components of the mixture", names.title, stars)
        pictures.append(Picture("components", figure, caption))
    kernels = _lines(results, names, "width ")
    if kernels:
        caption = f"{names.title} of images drawn from kernel densities against the width of the kernels."
        figure = draw_scores(kernels, floors, "width of the kernels / deviation of the codes", names.title)
        pictures.append(Picture("widths", figure, caption))
    return pictures


def names_of(results: Sequence[Result]) -> Names:
    """What the scores of results are called: the weights may have come or gone since."""
    return FID if "fid floor" in results[0].metrics else OTHER


def means(results: Sequence[Result], metric: str) -> dict[str, float]:
    """The mean of a metric over seeds, a model."""
    found: dict[str, list[float]] = {}
    for result in results:
        if metric in result.metrics:
            found.setdefault(result.model, []).append(result.metrics[metric])
    return {model: sum(values) / len(values) for model, values in found.items()}


def _lines(results: Sequence[Result], names: Names, kind: str) -> dict[str, dict[str, Scores]]:
    """A line of each model and protocol over all places that were scored: components, or widths."""
    from ..figures.generate import Scores

    pattern = re.compile(rf"{names.frechet} (paper|honest) {kind}([0-9.e-]+)")
    seen = dict.fromkeys(match for result in results for match in map(pattern.fullmatch, result.metrics) if match)
    places: dict[str, dict[float, str]] = {}
    for match in seen:
        places.setdefault(match[1], {})[float(match[2])] = match[0]
    lines: dict[str, dict[str, Scores]] = {}
    for protocol, metrics in places.items():
        columns = {place: means(results, metrics[place]) for place in sorted(metrics)}
        for model in dict.fromkeys(result.model for result in results):
            here = {place: column[model] for place, column in columns.items() if model in column}
            if here:
                lines.setdefault(model, {})[protocol] = Scores(tuple(here), tuple(here.values()))
    return lines


def _stars(dataset: str, paper: Sequence[Reported]) -> dict[str, Scores]:
    """What the paper reports for mixtures, a model."""
    from ..figures.generate import Scores

    found: dict[str, dict[float, float]] = {}
    for each in paper:
        count = each.metric.removeprefix("fid paper ")
        if each.dataset == dataset and count.isdigit():
            found.setdefault(each.model, {})[float(count)] = each.value
    return {model: Scores(tuple(values), tuple(values.values())) for model, values in found.items()}
