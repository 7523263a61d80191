"""The nouns of a benchmark: a workload is a contest of entries, each with variants, each a training step to time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class Settings:
    """What the command line asked for."""

    device: str = "cpu"
    repeats: int = 11
    seed: int = 0
    compile: bool = True
    search: bool = True
    quick: bool = False
    peers: Sequence[str] | None = None
    tf32: bool = True  # of workloads that say so: whole models, which are trained so


class Outcome(NamedTuple):
    """What a training step computes, as float64 on the CPU."""

    loss: float
    gradients: list[Tensor]
    x1: Tensor | None = None


class Nfe(NamedTuple):
    """Evaluations of the dynamics in one training step."""

    forward: float  # of the batch; a mean where samples differ
    most: float | None = None  # of the sample with the most, where samples differ
    backward: float | None = None


@dataclass(frozen=True, eq=False)
class Runner:
    """A training step that is ready to be timed."""

    run: Callable[[], Any]  # one step, finished when it returns
    read: Callable[[Any], Outcome]
    nfe: Callable[[], Nfe | None]
    memory: Callable[[], int | None]  # peak bytes of a step, beyond its inputs


@dataclass(frozen=True, eq=False)
class Entry:
    """A row: one way to use one library. Of its variants, the fastest on this machine is measured."""

    library: str
    label: str
    variants: Mapping[str, Callable[[], Runner]]
    apart: str = ""  # rows of another kind, which aims compare with their like alone


@dataclass(frozen=True)
class Aim:
    """A ratio of times that we want: the best of our rows so labelled over the best of a peer's so labelled."""

    ours: str  # how our row's label begins
    peer: str
    ratio: float
    device: str = "cpu"
    row: str = ""  # how the peer's label begins
    apart: str = ""  # the kind of rows


@dataclass(frozen=True, eq=False)
class Contest:
    """The entries of one workload, what the right answer is, and what we aim at."""

    entries: Sequence[Entry]
    reference: Outcome
    aims: Sequence[Aim] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)  # libraries that cannot take part, and why
    loss_tolerance: float = 1e-2
    gradient_tolerance: float = 0.1
    reported: Sequence[str] = ()  # rows, by label, whose wrong gradient is reported and not refused
    remark: Callable[[Any], str] | None = None  # a remark on a row (`measure.Row`) of ours
    columns: Mapping[str, Callable[[Any, Sequence[Any]], float | None]] = field(default_factory=dict)
    """Further numbers of a row, from it and all rows."""
    about: Mapping[str, Any] = field(default_factory=dict)  # sizes and the like, for the record
    patience: float = float("inf")  # seconds after which a row takes no more turns, if it had three


class Skip(Exception):
    """Raised by a library that cannot take part here; says why."""


def synchronise(device: str) -> None:
    """Wait for the GPU, where there is one."""
    if device == "cuda":
        torch.cuda.synchronize()
