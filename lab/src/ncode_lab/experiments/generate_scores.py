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
    mixtures, floors = _lines(results, names, "")
    caption = (
        f"{names.title} of images drawn from mixtures against their number of components, mean over the seeds that"
        " have all of them. Dotted: test images that were only coded and decoded."
    )
    if mixtures:
        stars = _stars(results[0].dataset, paper) if names == FID else {}
        figure = draw_scores(mixtures, floors, "components of the mixture", names.title, stars)
        pictures.append(Picture("components", figure, caption))
    kernels, floors = _lines(results, names, "width ")
    if kernels:
        caption = (
            f"{names.title} of images drawn from kernel densities against the width of the kernels, mean over the seeds"
            " that have all of them. Dotted: test images that were only coded and decoded."
        )
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


def _lines(results: Sequence[Result], names: Names, kind: str) -> tuple[dict[str, dict[str, Scores]], dict[str, float]]:
    """A line of each model and protocol over the places that were scored, components or widths; and the floors.

    Of each model those seeds are taken that were scored at the most places: a line is of the same seeds all along.
    """
    from ..figures.generate import Scores

    pattern = re.compile(rf"{names.frechet} (paper|honest) {kind}([0-9.e-]+)")
    scored: dict[str, dict[frozenset[str], list[Result]]] = {}
    for result in results:
        if places := frozenset(filter(pattern.fullmatch, result.metrics)):
            scored.setdefault(result.model, {}).setdefault(places, []).append(result)
    lines: dict[str, dict[str, Scores]] = {}
    floors: dict[str, float] = {}
    for model, by_places in scored.items():
        places = max(by_places, key=len)
        floors |= means(by_places[places], f"{names.frechet} floor")
        found: dict[str, dict[float, float]] = {}
        for metric in places:
            match = pattern.fullmatch(metric)
            assert match
            found.setdefault(match[1], {})[float(match[2])] = means(by_places[places], metric)[model]
        for protocol in sorted(found, reverse=True):  # the paper's first
            line = dict(sorted(found[protocol].items()))
            lines.setdefault(model, {})[protocol] = Scores(tuple(line), tuple(line.values()))
    return lines, floors


def _stars(dataset: str, paper: Sequence[Reported]) -> dict[str, Scores]:
    """What the paper reports for mixtures, a model."""
    from ..figures.generate import Scores

    found: dict[str, dict[float, float]] = {}
    for each in paper:
        count = each.metric.removeprefix("fid paper ")
        if each.dataset == dataset and count.isdigit():
            found.setdefault(each.model, {})[float(count)] = each.value
    return {model: Scores(tuple(values), tuple(values.values())) for model, values in found.items()}
