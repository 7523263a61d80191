"""Figures of scores from result files; and the nearest neighbours of samples."""

from __future__ import annotations

import re
from collections.abc import Sequence
from statistics import fmean

import torch
from torch import Tensor

from ...data import Images, ImageSets
from ...training import Reported, Result
from ..base import Picture
from ..coding.scoring import FID, OTHER, Names

Line = dict[float, float]  # a score at each number of components, or width

WIDTHS_AXIS = "width of the kernels / deviation of the codes"
CAPTION = (
    "{score} of images drawn from {densities} against {axis}, averaged over the seeds that have all of them. Dotted:"
    " test images that were only coded and decoded."
)


def score_pictures(results: Sequence[Result], paper: Sequence[Reported]) -> list[Picture]:
    """Scores of mixtures and of kernel densities, of results on one data set."""
    from .figures import draw_scores

    # As the results have it: the weights of the FID network may have been found or lost since.
    names = FID if "fid floor" in results[0].metrics else OTHER
    stars, pictures = _stars(results[0].dataset, paper) if names == FID else {}, []
    for name, prefix, axis, densities, against in (
        ("components", "", "components of the mixture", "mixtures", "their number of components"),
        ("widths", "width ", WIDTHS_AXIS, "kernel densities", "the width of the kernels"),
    ):
        lines, floors = _lines(results, names, prefix)
        if lines:
            figure = draw_scores(lines, floors, axis, names.title, {} if prefix else stars)
            caption = CAPTION.format(score=names.title, densities=densities, axis=against)
            pictures.append(Picture(name, figure, caption))
    return pictures


def neighbours_of(images: Tensor, sets: ImageSets, count: int = 4) -> tuple[Tensor, float]:
    """The nearest test images (n, count, C, H, W), and how often one is nearer than any of as many training images."""
    same = min(len(sets.test), len(sets.train))
    of_test, index = _nearest(images, sets.test.take(slice(0, same)), min(count, same))
    of_train, _ = _nearest(images, sets.train.take(slice(0, same)), 1)
    return sets.test.images[index], float((of_test[:, 0] < of_train[:, 0]).double().mean())


def _nearest(images: Tensor, among: Images, count: int) -> tuple[Tensor, Tensor]:
    """Pixel distances to the nearest images, and their indices."""
    x = images.flatten(1).float()
    parts = [torch.cdist(x, part.flatten(1).float()) for part in among.images.split(5000)]
    found = torch.cat(parts, 1).topk(count, largest=False)
    return found.values, found.indices


def _lines(results: Sequence[Result], names: Names, kind: str) -> tuple[dict[str, dict[str, Line]], dict[str, float]]:
    """A line for each model and protocol over the scored components or widths, and the floors.

    Of each model only the seeds with the most scores are used: a line is an average over the same seeds throughout.
    """
    pattern = re.compile(rf"{names.frechet} (paper|honest) {kind}([0-9.e-]+)")
    scored: dict[str, dict[frozenset[str], list[Result]]] = {}
    for result in results:
        if metrics := frozenset(filter(pattern.fullmatch, result.metrics)):
            scored.setdefault(result.model, {}).setdefault(metrics, []).append(result)
    lines: dict[str, dict[str, Line]] = {}
    floors: dict[str, float] = {}
    for model, by_metrics in scored.items():
        metrics = max(by_metrics, key=len)
        seeds = by_metrics[metrics]
        floors[model] = fmean(seed.metrics[f"{names.frechet} floor"] for seed in seeds)
        found: dict[str, Line] = {}
        for metric in metrics:
            match = pattern.fullmatch(metric)
            assert match
            found.setdefault(match[1], {})[float(match[2])] = fmean(seed.metrics[metric] for seed in seeds)
        # The paper's protocol first.
        lines[model] = {each: dict(sorted(found[each].items())) for each in sorted(found, reverse=True)}
    return lines, floors


def _stars(dataset: str, paper: Sequence[Reported]) -> dict[str, Line]:
    """The paper's numbers for mixtures, by model."""
    found: dict[str, Line] = {}
    for each in paper:
        count = each.metric.removeprefix("fid paper ")
        if each.dataset == dataset and count.isdigit():
            found.setdefault(each.model, {})[float(count)] = each.value
    return found
