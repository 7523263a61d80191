"""Events: times at which a function of a sample's time, state and control changes its sign."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import InputError, check_count, check_flag, check_function

_MOST_EVENTS = 100


@dataclass(frozen=True)
class Event:
    """A condition function(t, x, theta) = 0 that is watched for every sample during a solve.

    Args:
        function: (t, x, theta) -> (batch,), as the dynamics receive them. An event is a change of its sign. Signs are
            compared in the middle and at the end of each step; two changes within one half go unnoticed (use max_dt).
            It should be continuous: where it jumps, as an indicator does, the time of the event is only as exact as
            dense output, and has no gradient.
            Where it is nan, a shorter step is tried; a sample that cannot avoid it fails with the status NOT_FINITE.
        terminal: Whether the event ends the sample, at its `max_count`-th occurrence. Default: True without a reset;
            with one, the sample goes on, unless max_count is given.
        direction: 1 for changes from negative to positive only, -1 for the opposite, 0 for both; in the direction of
            the solve.
        reset: (t, x, theta) -> the new x, or (x, theta), with which the sample goes on. Default: it goes on as it is.
        max_count: A terminal event ends the sample at this occurrence, without its reset. Default: 1. For others, a
            sample with more occurrences fails with the status MAX_EVENTS. Default: 100.

    >>> import torch, ncode
    >>> fall = lambda t, x, theta: torch.stack([x[:, 1], torch.full_like(t, -9.81)], 1)
    >>> hit = ncode.Event(lambda t, x, theta: x[:, 0], direction=-1)
    >>> x0 = torch.tensor([[1.0, 0.0], [2.0, 0.0]], dtype=torch.float64)
    >>> sol = ncode.solve(fall, x0, 0.0, 10.0, events=hit)
    >>> sol.events[0].ts.flatten()  # sqrt(2 height / 9.81)
    tensor([0.4515, 0.6386], dtype=torch.float64)
    """

    function: Callable[[Tensor, Any, Any], Tensor]
    terminal: bool | None = None
    direction: int = 0
    reset: Callable[[Tensor, Any, Any], Any] | None = None
    max_count: int | None = None

    def __post_init__(self) -> None:
        check_function("the function of an Event", self.function, ("t", "x", "theta"))
        if self.reset is not None:
            check_function("the reset of an Event", self.reset, ("t", "x", "theta"))
        if self.terminal is None:
            object.__setattr__(self, "terminal", self.reset is None or self.max_count is not None)
        check_flag("terminal", self.terminal)
        if self.direction not in (-1, 0, 1):
            raise InputError(f"direction of an Event must be -1, 0 or 1; given {self.direction!r}")
        if self.max_count is not None:
            check_count("max_count", self.max_count)

    @property
    def limit(self) -> int:
        """The largest number of occurrences in one sample."""
        return self.max_count or (1 if self.terminal else _MOST_EVENTS)


def check_events(events: Any) -> tuple[Event, ...]:
    """One or several events as a tuple."""
    given = events if isinstance(events, (tuple, list)) else [events]
    for event in given:
        if not isinstance(event, Event):
            raise InputError(
                "events must be an ncode.Event or a list of them, as in Event(lambda t, x, theta: x[:, 0]); given"
                f" {type(event).__name__}"
            )
    return tuple(given)
