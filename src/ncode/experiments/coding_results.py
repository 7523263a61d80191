"""Results of autoencoders, brought into order for pictures that are drawn of results alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ..models.autoencoder_family import KINDS
from ..training.result import Result
from .base import Picture


def by_dataset(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Results of each data set, under a name for files, with the models in their usual order.

    >>> about = ("celeba (first 10k)", "paper", 0, {}, {}, 1, 1.0, "", {}, "", "")
    >>> found = by_dataset([Result("generate", model, *about) for model in ("ae", "auton-code")])
    >>> {name: [result.model for result in some] for name, some in found.items()}
    {'celeba-first-10k': ['auton-code', 'ae']}
    """
    found: dict[str, list[Result]] = {}
    known: list[str] = list(KINDS)
    for result in sorted(results, key=lambda each: [*known, each.model].index(each.model)):
        name = re.sub(r"[^\w.]+", "-", result.dataset).strip("-")
        found.setdefault(name, []).append(result)
    return found


def each_dataset(results: Sequence[Result], draw: Callable[[list[Result]], list[Picture]]) -> list[Picture]:
    """What is drawn of the results of each data set, with its name in those of the pictures and in their captions."""
    return [
        picture._replace(name=f"{picture.name}-{name}", caption=f"{some[0].dataset}: {picture.caption}")
        for name, some in by_dataset(results).items()
        for picture in draw(some)
    ]
