"""The first evaluation: it finds captures, and refuses dynamics that no step could use, with a hint at the cause."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from .._torch_private import is_symbolic
from ..errors import InputError
from .captures import Captures, evaluate_with_time_use, find_captures
from .collectives import without_communication
from .independence import Positions
from .problem import Problem
from .system import CHANGES_ARGUMENT, NUMPY, REUSES_OUTPUT, State, System, reads_by_numpy, writes_to_output
from .watch import EventWatch


def probe(problem: Problem, *, train: bool) -> Captures:
    """Evaluate the system at t0: checks what it returns and finds its captures."""
    system, (t, z, theta) = problem.system, problem.start
    t = system.clock(theta, t)
    with explain_errors(system, t, z, theta), without_communication():
        captures = find_captures(lambda *at: system.bind(at[2])(*at[:2]), system.functions, t, z, theta, train=train)
    if captures.rewrites and problem.options.backend.fuses:  # a compiled graph would return a result of another one
        raise InputError(REUSES_OUTPUT)
    if captures.uses_time:
        problem.check_resolution()
    return captures


def check_separate(problem: Problem, captures: Captures, positions: Positions, watch: EventWatch | None) -> None:
    """Refuse functions that let samples interact, where each sample has its own time."""
    t, z, theta = problem.start
    at = problem.system, t, z, theta, captures.slope, problem.midway
    with without_communication():
        problem.options.backend.check(problem.system, (z, theta), functools.partial(positions.check_start, *at))
    if watch is not None:
        values, uses_time = evaluate_with_time_use(watch.bind(theta), watch.clock(theta, t), z)
        if uses_time:
            problem.check_resolution()
        own = Positions((), problem.batch, method=positions.method, with_events=True)
        own.check_start(watch, t, z, theta, values, problem.midway)
        if own.free is False:  # an event that knows its samples by their places
            watch.holds_samples, positions.free = True, False


@contextmanager
def explain_errors(system: System, t: Tensor, z: State, theta: Sequence[Tensor]) -> Iterator[None]:
    """Explain an error of the first evaluation, if changes in place or the shape of t are the cause."""
    try:
        yield
    except (RuntimeError, TypeError, IndexError, InputError) as error:
        if "nference tensor" in str(error):
            raise
        if "in-place" in str(error) or "inplace" in str(error):
            raise InputError(CHANGES_ARGUMENT) from error
        if writes_to_output(error):
            raise InputError(REUSES_OUTPUT) from error
        if reads_by_numpy(error):
            raise InputError(NUMPY) from error
        if isinstance(error, RuntimeError) and "dtype" in str(error):
            raise InputError(
                f"the dynamics, feedback or cost mix x of {z[0].dtype} with another dtype ({error}): use one precision,"
                " by net.to(x0.dtype) or x0.to(dtype)"
            ) from error
        ones = [1] * (z[0].dim() - 1)
        if ones and _fails_by_shape_of_time(error, system, t, t.reshape(-1, *ones), z, theta):
            column = "t[:, None]" if len(ones) == 1 else f"t.reshape(-1, {', '.join(map(str, ones))})"
            raise InputError(
                f"the dynamics, feedback or cost fail with t of shape {tuple(t.shape)}, one time per sample, and x of"
                f" shape {tuple(z[0].shape)} ({error}): write {column} * x for t * x"
            ) from error
        error.add_note(f"solve called the dynamics with t of shape {tuple(t.shape)} and x of shape {tuple(z[0].shape)}")
        raise


def _fails_by_shape_of_time(
    error: Exception, system: System, t: Tensor, column: Tensor, z: State, theta: Sequence[Tensor]
) -> bool:
    """Whether the system cannot be evaluated for times (batch,), but can for the same times as a column."""
    if is_symbolic() or isinstance(error, torch.OutOfMemoryError):
        return False
    return not _can_evaluate(system, t, z, theta) and _can_evaluate(system, column, z, theta)


def _can_evaluate(system: System, t: Tensor, z: State, theta: Sequence[Tensor]) -> bool:
    with torch.no_grad(), without_communication(), suppress(Exception):  # of the dynamics, whatever it is
        system.bind(theta)(t, z)
        return True
    return False
