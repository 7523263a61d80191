"""The backends that solve in a kernel where they can."""

from __future__ import annotations

import functools

from ...errors import InputError
from ..backends import WholeSolve
from ..backends.inductor import Inductor
from ..captures import Captures
from ..problem import Problem
from .plan import KernelPullback, Plan, find_plan, recall_captures, remember_captures
from .trace import Unsupported


class Fastest(Inductor):
    """A kernel where the solve fits into one, Inductor where not."""

    checks_values = True

    def recall(self, problem: Problem, train: bool) -> Captures | None:
        return recall_captures(problem, train)

    def remember(self, problem: Problem, captures: Captures, train: bool) -> None:
        remember_captures(problem, captures, train)

    def solve_whole(self, problem: Problem, captures: Captures, differentiates: bool) -> WholeSolve | None:
        found = _solve(problem, captures, differentiates)
        return None if isinstance(found, str) else found

    def why_not_whole(self, problem: Problem, captures: Captures, differentiates: bool) -> str | None:
        found = find_plan(problem, captures, differentiates)
        return found if isinstance(found, str) else None


class KernelOnly(Fastest):
    """A kernel, or an error that says why there is none."""

    name = "kernel"

    def solve_whole(self, problem: Problem, captures: Captures, differentiates: bool) -> WholeSolve | None:
        found = _solve(problem, captures, differentiates)
        if isinstance(found, str):
            raise InputError(f'compile="kernel" does not fit: {found}. With compile=True another backend takes over')
        return found


FASTEST, KERNEL = Fastest(), KernelOnly()


def _solve(problem: Problem, captures: Captures, differentiates: bool) -> WholeSolve | str:
    plan = find_plan(problem, captures, differentiates)
    if isinstance(plan, str):
        return plan
    try:
        return _run(plan, problem, captures)
    except Unsupported as error:  # the compiler failed
        return str(error)


def _run(plan: Plan, problem: Problem, captures: Captures) -> WholeSolve:
    forward, backward = plan.forward, plan.backward
    if backward is not None:
        backward.start()  # both are compiled at a time
        forward.start()
        backward.finish()
    solved = forward.solve(problem, captures, backward is not None)
    make = None if backward is None else functools.partial(KernelPullback, kernel=backward, solved=solved)
    return WholeSolve("kernel", solved.state, solved.nfe, solved.failed, solved.saved, make)
