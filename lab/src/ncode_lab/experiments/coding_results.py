"""Pictures of autoencoders that are drawn of results alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ..training.result import Result
from .base import Picture


def each_dataset(results: Sequence[Result], draw: Callable[[list[Result]], list[Picture]]) -> list[Picture]:
    """What is drawn of the results of each data set, with its name in those of the pictures and in their captions.

    >>> from matplotlib.figure import Figure
    >>> about = ("celeba (first 10k)", "paper", 0, {}, {}, 1, 1.0, "", {}, "", "")
    >>> results = [Result("generate", model, *about) for model in ("auton-code", "ae")]
    >>> pictures = each_dataset(results, lambda some: [Picture("widths", Figure(), f"{len(some)} models.")])
    >>> [(picture.name, picture.caption) for picture in pictures]
    [('widths-celeba-first-10k', 'celeba (first 10k): 2 models.')]
    """
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.dataset, []).append(result)
    return [
        picture._replace(name=f"{picture.name}-{_for_files(name)}", caption=f"{name}: {picture.caption}")
        for name, some in found.items()
        for picture in draw(some)
    ]


def _for_files(name: str) -> str:
    return re.sub(r"[^\w.]+", "-", name).strip("-")
