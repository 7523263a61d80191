"""Timing: entries take turns, so that whatever else the machine does hits all of them alike."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .contest import Contest, Entry, Nfe, Outcome, Runner

TURN = 0.1  # seconds: a turn repeats a short step for as long
ENOUGH = 3  # turns


@dataclass(eq=False)
class Row:
    """One entry, measured."""

    entry: Entry
    variant: str
    runner: Runner
    first: float  # seconds of the first step, with building and compiling
    loss: float = float("nan")
    gradient_error: float = float("nan")
    error: float | None = None  # of x(t1)
    times: list[float] = field(default_factory=list)  # seconds per step, one value per turn
    busy: float = 0.0  # processor seconds over wall seconds: the threads in use
    nfe: Nfe | None = None
    memory: int | None = None
    tried: dict[str, float | str] = field(default_factory=dict)  # seconds of each variant, or why it failed

    @property
    def seconds(self) -> float:
        """The median turn's."""
        return statistics.median(self.times)

    @property
    def name(self) -> str:
        return f"{self.entry.library}, {self.entry.label}"


class Broken(Exception):
    """No variant of an entry runs."""


def fastest(entry: Entry, contest: Contest, search: bool) -> Row:
    """Build the variants, drop those that fail or disagree, and keep the fastest (without search the first)."""
    best: Row | None = None
    tried: dict[str, float | str] = {}
    for variant, build in entry.variants.items():
        try:
            start = time.perf_counter()
            runner = build()
            outcome = runner.read(runner.run())
            first = time.perf_counter() - start
        except Exception as error:  # a peer that cannot compile a formulation still enters with another
            tried[variant] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            continue
        row = Row(entry, variant, runner, first, outcome.loss, gradient_error(outcome, contest.reference))
        row.error = state_error(outcome, contest.reference)
        if complaint := disagreement(row, contest):
            tried[variant] = complaint
            continue
        if not search:
            best = row
            break
        alternate([row], repeats=1)
        if row.seconds < TURN:  # slow steps need no more to tell them apart
            alternate([row], repeats=2)
        tried[variant] = row.seconds
        if best is None or row.seconds < best.seconds:
            best = row
    if best is None:
        raise Broken("; ".join(f"{variant}: {why}" for variant, why in tried.items()))
    best.tried, best.times = tried, []
    return best


def gradient_error(outcome: Outcome, reference: Outcome) -> float:
    """The distance to the reference's gradient over the length of that, all leaves together."""
    pairs = list(zip(outcome.gradients, reference.gradients, strict=True))
    distance = sum(float((a - b).square().sum()) for a, b in pairs)
    return (distance / sum(float(b.square().sum()) for _, b in pairs)) ** 0.5


def state_error(outcome: Outcome, reference: Outcome) -> float | None:
    """The distance to the reference's x(t1) over the length of that, where both are told."""
    if outcome.x1 is None or reference.x1 is None:
        return None
    return float((outcome.x1 - reference.x1).norm() / reference.x1.norm())


def disagreement(row: Row, contest: Contest) -> str | None:
    """What is wrong with the result of a row, or nothing; nan counts as wrong."""
    expected = contest.reference.loss
    if not abs(row.loss - expected) <= contest.loss_tolerance * abs(expected):
        return f"the loss is {row.loss:.6g} and should be {expected:.6g}"
    if wrong_gradient(row, contest) and row.entry.label not in contest.reported:
        return f"the gradient's relative error is {row.gradient_error:.2g}, above {contest.gradient_tolerance:g}"
    return None


def wrong_gradient(row: Row, contest: Contest) -> bool:
    """Whether the gradient of a row differs too much from the reference."""
    return not row.gradient_error <= contest.gradient_tolerance


def alternate(rows: Sequence[Row], repeats: int, turn: float = TURN, patience: float = float("inf")) -> None:
    """Time all rows in turn, `repeats` times over, each turn after a step that is not counted.

    Rows that are slow take fewer turns, but three, where there is no time for more.
    """
    wall, busy = [0.0] * len(rows), [0.0] * len(rows)
    for number in range(repeats):
        for i, row in enumerate(rows):
            if number >= ENOUGH and wall[i] > patience:
                continue
            seconds, steps, processor = _turn(row.runner.run, turn)
            row.times.append(seconds / steps)
            wall[i] += seconds
            busy[i] += processor
    for row, total, processor in zip(rows, wall, busy, strict=True):
        row.busy = processor / total


def _turn(run: Callable[[], Any], least: float) -> tuple[float, int, float]:
    gc.collect()  # or one library pays for another's garbage
    run()  # brings code and data back into the caches
    steps, processor, start = 0, time.process_time(), time.perf_counter()
    while True:
        run()
        steps += 1
        seconds = time.perf_counter() - start
        if seconds >= least:
            return seconds, steps, time.process_time() - processor


def inspect(row: Row) -> None:
    """What is counted apart from time: evaluations and memory."""
    row.nfe = row.runner.nfe()
    row.memory = row.runner.memory()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
