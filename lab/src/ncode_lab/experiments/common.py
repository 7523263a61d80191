"""Checks, clocks and groupings that several experiments share."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import Any, Protocol

import torch
from torch import Tensor

from ncode import InputError, Solution
from ncode.errors import check_choice

from ..data import DATASETS, ImageSets, load, load_own
from ..training import Result
from ..wording import problem_name
from .base import Finished, Picture

Curves = dict[str, list[float]]


def check_positive(settings: object, *names: str) -> None:
    """Check that settings, each a number or a tuple of numbers, are above zero."""
    for name in names:
        value = getattr(settings, name)
        if not all(each > 0 for each in (value if isinstance(value, tuple) else (value,))):
            raise InputError(f"{name} must be above 0; given {value!r}")
        _check_size(name, value)


def check_not_negative(settings: object, *names: str) -> None:
    """Check that settings are at least zero."""
    for name in names:
        if not getattr(settings, name) >= 0:
            raise InputError(f"{name} must be at least 0; given {getattr(settings, name)!r}")
        _check_size(name, getattr(settings, name))


def _check_size(name: str, value: object) -> None:
    """Check that torch can hold a number, or each number of a tuple: its integers have 64 bits."""
    for each in value if isinstance(value, tuple) else (value,):
        if isinstance(each, int) and each >= 2**63:
            raise InputError(f"{name} must be below 2**63; given {each}")


def check_choices(name: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Check that at least one of the known names is given, and each at most once."""
    if not given:
        raise InputError(f"{name}s must name at least one of: {', '.join(known)}")
    for value in given:
        check_choice(name, value, known)
    if len(set(given)) < len(given):
        raise InputError(f"{name}s must be named once each; given {', '.join(given)}")


class ImageSettings(Protocol):
    """Settings that name a data set of images."""

    @property
    def dataset(self) -> str: ...
    @property
    def data_dir(self) -> str: ...
    @property
    def fallback(self) -> bool: ...
    @property
    def image_size(self) -> int: ...
    @property
    def channels(self) -> int: ...


def load_images(settings: ImageSettings) -> ImageSets:
    """The images of a data set. Those of published ones are loaded once; your own, again if their files change."""
    if settings.dataset not in DATASETS:
        return load(settings.dataset, image_size=settings.image_size, channels=settings.channels)
    return _load(settings.dataset, settings.data_dir, settings.fallback)


@functools.lru_cache(maxsize=1)
def _load(dataset: str, data_dir: str, fallback: bool) -> ImageSets:
    return load(dataset, data_dir or None, fallback=fallback)


def describe_own_data(settings: ImageSettings) -> dict[str, Any]:
    """What a run records about data of your own; nothing for published data, which are loaded or found missing."""
    if settings.dataset in DATASETS:
        load_images(settings)
        return {}
    return load_own(settings.dataset, settings.image_size, settings.channels).about


def first_seeds(finished: Iterable[Finished]) -> dict[str, Finished]:
    """The first finished trial of each model."""
    found: dict[str, Finished] = {}
    for done in finished:
        found.setdefault(done.trial.model, done)
    return found


def curves_by_model(results: Iterable[Result]) -> dict[str, list[Curves]]:
    """The training curves of each model, one per seed."""
    found: dict[str, list[Curves]] = {}
    for result in results:
        found.setdefault(result.model, []).append(result.curves)
    return found


def draw_per_dataset(results: Iterable[Result], draw: Callable[[list[Result]], list[Picture]]) -> list[Picture]:
    """Draw the results of each data set, with its name in the file names and captions."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.dataset, []).append(result)
    return [
        picture._replace(name=f"{picture.name}-{file_name(name)}", caption=f"{problem_name(name)}: {picture.caption}")
        for name, some in found.items()
        for picture in draw(some)
    ]


def file_name(label: str) -> str:
    """A label as a part of a file name."""
    return re.sub(r"[^\w.]+", "-", label).strip("-")


def mean_control_norm(solution: Solution) -> Tensor:
    """The norm of the final control, averaged over samples."""
    return torch.cat([part.detach().flatten(1) for part in solution.theta.values()], 1).norm(dim=1).mean()


class StepClock:
    """Measures the time per training step, without evaluations and the first steps, which compile and warm up."""

    def __init__(self, warm_up: int = 5):
        self.warm_up, self.seconds = warm_up, list[float]()
        self._last: tuple[int, float] | None = None

    def tick(self, step: int) -> None:
        """Record that a training step begins."""
        now, last = time.perf_counter(), self._last
        if last is not None and last[0] == step - 1:
            self.seconds.append(now - last[1])
        self._last = step, now

    def pause(self) -> None:
        """Record that something other than a training step begins."""
        self._last = None

    @property
    def mean(self) -> float | None:
        """Seconds per step, or None if too few steps were measured."""
        counted = self.seconds[self.warm_up :]
        return fmean(counted) if counted else None
