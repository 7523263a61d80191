"""How a sample's solve ended, and the errors this package raises."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .ode.solution import Solution

__all__ = ["InputError", "SolveError", "Status"]


class Status(enum.IntEnum):
    """How the solve of one sample ended; `sentence` is what a user reads.

    >>> Status.MAX_STEPS.sentence
    'needed more than max_steps steps; raise max_steps, loosen rtol and atol, or shorten the interval'
    """

    sentence: str

    OK = 0, "reached t1"
    MAX_STEPS = (
        1,
        "needed more than max_steps steps; raise max_steps, loosen rtol and atol, or shorten the interval",
    )
    STEP_TOO_SMALL = (
        2,
        "needed a step smaller than time can resolve; the solution may blow up or be stiff there,"
        " or rtol and atol are too tight for this precision",
    )
    NOT_FINITE = (
        3,
        "met a value that is not finite; the dynamics returned nan or inf, or the solution overflowed",
    )

    def __new__(cls, code: int, sentence: str) -> Status:
        member = int.__new__(cls, code)
        member._value_ = code
        member.sentence = sentence
        return member


class InputError(ValueError):
    """An argument that cannot be used: the message says what was given, what was expected, and what to do.

    >>> import torch, ncode
    >>> try:
    ...     ncode.solve(lambda t, x, theta: -x, torch.ones(2, 1), 0.0, 1.0, method="tsit")
    ... except ncode.InputError as error:
    ...     print(str(error).partition(" (")[0])
    unknown method 'tsit'; did you mean "tsit5"?
    """


class SolveError(RuntimeError):
    """Some samples did not reach t1.

    `samples`, `times` and `statuses` name them; `solution` holds what was reached, with nan for those samples.

    >>> import torch, ncode
    >>> try:
    ...     ncode.solve(lambda t, x, theta: x * x, torch.tensor([[0.1], [9.0]]), 0.0, 1.0)  # blows up at t = 1 / x0
    ... except ncode.SolveError as error:
    ...     print(error.samples, error.solution.x.isnan().tolist())
    [1] [[False], [True]]
    """

    def __init__(
        self,
        samples: list[int],
        times: list[float],
        statuses: list[Status],
        solution: Solution | None,
        batch: int,
        where: str = "solve(..., throw=False) returns the others, with nan for these",
    ):
        super().__init__(samples, times, statuses, solution, batch, where)
        self.samples, self.times, self.statuses, self.solution = samples, times, statuses, solution

    def __str__(self) -> str:
        samples, times, statuses, _, batch, where = self.args
        shown = [
            f"  sample {i} at t = {t:.6g}: {status.name}: {status.sentence}"
            for i, t, status in zip(samples[:8], times, statuses, strict=False)
        ]
        if len(samples) > len(shown):
            shown.append(f"  and {len(samples) - len(shown)} more (see .samples, .times and .statuses)")
        return "\n".join([f"{len(samples)} of {batch} samples did not reach t1 ({where}):", *shown])
