"""Errors, and the checks of arguments that raise them; constructors of your own can use those too."""

from __future__ import annotations

import difflib
import enum
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from .ode.solution import Solution

__all__ = [
    "InputError",
    "SolveError",
    "Status",
    "check_choice",
    "check_count",
    "check_fraction",
    "check_function",
    "check_number",
]


class Status(enum.IntEnum):
    """How the solve of one sample ended; `sentence` is what a user reads.

    >>> Status.MAX_STEPS.sentence
    'needed more than max_steps steps; raise max_steps, loosen rtol and atol, or shorten the interval'
    """

    OK = 0
    MAX_STEPS = 1
    STEP_TOO_SMALL = 2
    NOT_FINITE = 3

    @property
    def sentence(self) -> str:
        return _SENTENCES[self]


_SENTENCES = (
    "reached t1",
    "needed more than max_steps steps; raise max_steps, loosen rtol and atol, or shorten the interval",
    "needed a step smaller than time can resolve; the solution may blow up or be stiff there, or rtol and atol are too"
    " tight for this precision",
    "met a value that is not finite; the dynamics returned nan or inf, or the solution overflowed",
)


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


def check_choice(kind: str, given: Any, known: Iterable[str]) -> str:
    """Return `given` if it is one of the known names; otherwise raise with the nearest one.

    >>> check_choice("norm", "sphere", ["none", "sphere"])
    'sphere'
    """
    known = list(known)
    if isinstance(given, str) and given in known:
        return given
    near = difflib.get_close_matches(str(given), known, n=1, cutoff=0.4)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    raise InputError(f"unknown {kind} {given!r}{hint} (known: {', '.join(known)})")


def check_number(name: str, value: Any, *, low: float, strict: bool = False) -> float:
    """Return a finite number that is at least `low` (above `low` if `strict`).

    >>> check_number("rtol", 1e-3, low=0.0)
    0.001
    """
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not math.isfinite(value):
        raise InputError(f"{name} must be a finite number; given {value!r}")
    if value < low or (strict and value == low):
        raise InputError(f"{name} must be {'above' if strict else 'at least'} {low:g}; given {value}")
    return float(value)


def check_count(name: str, value: Any, *, low: int = 1) -> int:
    """Return a whole number that is at least `low`.

    >>> check_count("hidden", 16)
    16
    """
    number = check_number(name, value, low=low)
    if number != int(number):
        raise InputError(f"{name} must be a whole number; given {value}")
    return int(number)


def check_fraction(name: str, value: Any) -> float:
    """Return a number that is at least 0 and below 1.

    >>> check_fraction("dropout", 0.5)
    0.5
    """
    number = check_number(name, value, low=0.0)
    if number >= 1.0:
        raise InputError(f"{name} must be at least 0 and below 1; given {value}")
    return number


def check_function(name: str, value: Any, arguments: Sequence[str], hint: str = "") -> Callable[..., Any]:
    """Return a function or module that can be called with these arguments, in this order.

    >>> check_function("feedback", lambda t, x, theta: theta, ("t", "x", "theta"))(0, 1, 2)
    2
    """
    wanted = f"{name} must be a function of ({', '.join(arguments)})"
    if not callable(value):
        raise InputError(f"{wanted}; given {type(value).__name__}{hint}")
    function = value.forward if isinstance(value, nn.Module) else value
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # functions written in C need not have one
        return value
    try:
        signature.bind(*arguments)
    except TypeError:
        shown = type(value).__name__ if isinstance(value, nn.Module) else getattr(value, "__name__", repr(value))
        raise InputError(f"{wanted}; {shown} takes {signature}{hint}") from None
    return value
