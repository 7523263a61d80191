"""What is solved: a `Problem`, made of the arguments of `solve` (checked in arguments.py) before any work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._torch_private import is_symbolic
from ..errors import InputError, check_flag
from .arguments import (
    Callback,
    all_finite,
    check_callback,
    check_control,
    check_driven,
    check_finite,
    check_functions,
    check_implicit,
    check_jacobian,
    check_jumps,
    check_nested_state,
    check_saved,
    check_time,
)
from .options import SolveOptions
from .step import fixed_steps
from .system import Control, Cost, Dynamics, Feedback, State, System
from .tolerance import Tolerance, make_tolerance

_COARSEST_TIME = 0.01  # largest rounding of times for any tolerance, relative to the interval


class SampleInputs(NamedTuple):
    """Inputs of which every sample has a row of its own (or their gradients, None where not needed)."""

    theta: tuple[Any, ...]  # constants of the system: the control where nothing drives it, and t0
    span: Any  # t1 - t0
    ts: Any  # saved times, counted from t0; None without


@dataclass(frozen=True, eq=False)
class Problem:
    """A checked batch of initial value problems.

    Times are in the precision of time (double). `span` and `ts` are counted from t0, so that a late t0 costs no
    precision; gradients reach t0, t1 and the saved times through them and through the constants `theta`.
    """

    system: System
    options: SolveOptions
    z0: State
    theta: tuple[Tensor, ...]  # constants of the system
    t0: Tensor  # (batch,), as t1 and span
    t1: Tensor
    span: Tensor
    ts: Tensor | None  # (batch, T)
    ts_given: Tensor | None
    interval: tuple[float, float] | None  # t0 and t1, where both are numbers
    dense: bool
    tolerance: Tolerance
    keep_last: bool = False  # whether a sample that fails keeps its last state
    whole_span: Tensor | None = None  # of the problem that this one is a part of
    callback: Callback | None = None
    save_steps: bool = False  # whether the times of accepted steps are part of the result
    together: bool = False  # whether all samples have the same time in every evaluation
    checked: bool = False  # whether samples are known not to depend on each other
    has_events: bool = False
    first_steps: Tensor | None = None  # (batch,), signed, where they are known; otherwise they are chosen

    @cached_property
    def batch(self) -> int:
        return self.t0.shape[0]

    @property
    def interpolates(self) -> bool:
        """Whether steps need dense output."""
        return self.dense or self.ts is not None

    @property
    def loop_tolerance(self) -> Tolerance | None:
        """The tolerance of steps that are chosen by their error."""
        return self.tolerance if self.options.dt is None else None

    @property
    def inputs(self) -> SampleInputs:
        """The inputs with one row per sample, apart from z0."""
        return SampleInputs(self.theta, self.span, self.ts)

    @property
    def start(self) -> tuple[Tensor, State, State]:
        """Time, state and constants at t0, without gradients."""
        z, theta = (tuple(leaf.detach() for leaf in leaves) for leaves in (self.z0, self.theta))
        return torch.zeros_like(self.t0), z, theta

    @property
    def midway(self) -> Tensor:
        """Times in the middle of the interval, counted from t0."""
        return 0.5 * self.span.detach()

    @cached_property
    def control(self) -> tuple[Tensor, ...]:
        """The leaves of a control that nothing drives."""
        return self.theta[: len(self.theta) - self.system.time_constants]

    @property
    def duration(self) -> float | None:
        """t1 - t0, where both are numbers."""
        return None if self.interval is None else self.interval[1] - self.interval[0]

    def check_resolution(self) -> None:
        """Refuse times that the system's dtype cannot tell apart, for dynamics that use them."""
        if is_symbolic() or (self.interval is None and not self.system.shifted):
            return
        if self.interval is not None:
            latest, span = max(map(abs, self.interval)), abs(self.interval[1] - self.interval[0])
        else:
            ends, spans = torch.stack([self.t0.abs(), self.t1.abs()]).detach().amax(0), self.span
            spans = (spans if self.whole_span is None else self.whole_span).detach().abs()
            worst = int(torch.where(spans == 0, 0.0, ends / spans).argmax())
            latest, span = float(ends[worst]), float(spans[worst])
        rounding, coarsest = torch.finfo(self.system.dtype).eps * latest, self._coarsest_time
        if span and rounding > coarsest * span:
            tight = coarsest < _COARSEST_TIME
            raise InputError(
                f"times near {latest:.6g} are rounded by about {rounding:.2g} in {self.system.dtype}, too much for an"
                f" interval of length {span:.3g}{' at these tolerances' if tight else ''}, and the dynamics use t:"
                f" let time start at 0,{' loosen rtol,' if tight else ''} or solve in float64 (x0.double())"
            )

    @property
    def _coarsest_time(self) -> float:
        """How far the times that the dynamics see may be rounded, relative to the interval.

        Dynamics are constant between two neighbouring times. Steps at a tight tolerance would resolve these jumps, and
        the result would still be off by far more than the tolerance.
        """
        rtol, atol = self.options.rtol, self.options.atol
        if self.options.dt is not None or not (isinstance(rtol, float) and isinstance(atol, float)):
            return _COARSEST_TIME
        return min(30 * max(rtol, atol, 10 * torch.finfo(self.system.dtype).eps), _COARSEST_TIME)

    def check_values(self) -> None:
        """Refuse a state or control that is not finite."""
        system = self.system
        _check_values(self.z0[: system.states], (*self.z0[system.states : system.shown], *self.control))

    @property
    def fixed_count(self) -> int | None:
        """The number of steps, where it is known without reading a tensor."""
        needed = self._steps_needed
        return None if needed is None else min(needed, self.options.max_steps)

    @property
    def exceeds_max_steps(self) -> bool:
        """Whether that number is cut by max_steps."""
        return (self._steps_needed or 0) > self.options.max_steps

    @property
    def _steps_needed(self) -> int | None:
        dt, duration = self.options.dt, self.duration
        return None if dt is None or duration is None else fixed_steps(duration, dt)


def make_problem(
    dynamics: Dynamics,
    x0: Any,
    t0: Any,
    t1: Any,
    options: SolveOptions,
    *,
    theta: Control = None,
    feedback: Feedback | None = None,
    cost: Cost | None = None,
    save_at: Any = None,
    jump_ts: Any = None,
    dense: bool = False,
    keep_last: bool = False,
    callback: Callback | None = None,
    save_steps: bool = False,
) -> Problem:
    """Check the arguments of `solve` and make a Problem of them."""
    check_functions(dynamics, feedback, cost)
    states, x_spec, dtype = check_nested_state(x0)
    states = tuple(map(_trainable, states))
    x0 = states[0]
    if options.implicit:
        check_jacobian(dynamics)
        for leaf in states:
            check_implicit(options.tableau.name, leaf)
    leaves, spec = check_control(theta, x0)
    leaves = tuple(map(_trainable, leaves))
    if not options.backend.checks_values:
        _check_values(states, leaves)
    driven = check_driven(x0, leaves, spec) if feedback is not None else ()
    times = _make_times(t0, t1, save_at, jump_ts, x0, options)
    costs = () if cost is None else (torch.zeros(x0.shape[0], dtype=dtype, device=x0.device),)
    system = System(dynamics, feedback, cost, spec, dtype, times.shifted, times.jumps is not None, x_spec)
    constants = (*([] if feedback is not None else leaves), *times.constants)
    return Problem(
        system=system,
        options=options,
        z0=(*states, *driven, *costs),
        theta=tuple(system.enter(constants, torch.zeros_like(times.t0), times.t1 - times.t0)[0]),
        t0=times.t0,
        t1=times.t1,
        span=times.t1 - times.t0 if times.shifted else times.t1,
        ts=times.ts if times.ts is None or not times.shifted else times.ts - times.t0[:, None],
        ts_given=times.ts_given,
        interval=times.interval,
        dense=check_flag("dense", dense),
        tolerance=make_tolerance(options.rtol, options.atol, states, x_spec),
        keep_last=check_flag("keep_last", keep_last),
        callback=None if callback is None else check_callback(callback),
        save_steps=check_flag("save_steps", save_steps),
        together=options.shared_step or (options.dt is not None and not times.own),
    )


class _Times(NamedTuple):
    """The times of a problem, on the clock of the user."""

    t0: Tensor
    t1: Tensor
    ts: Tensor | None
    ts_given: Tensor | None
    jumps: Tensor | None
    interval: tuple[float, float] | None  # see `Problem`
    shifted: bool  # whether the loop's clock, which starts at 0, is another one
    own: bool  # whether each sample has times of its own

    @property
    def constants(self) -> list[Tensor]:
        """Those that the system needs, in the order that it expects."""
        jumps = [] if self.jumps is None else [self.jumps, self.t0, self.t1]
        return [*jumps, *([self.t0] if self.shifted else [])]


def _make_times(t0: Any, t1: Any, save_at: Any, jump_ts: Any, x0: Tensor, options: SolveOptions) -> _Times:
    (t0, begin), (t1, end) = check_time("t0", t0, x0), check_time("t1", t1, x0)
    if options.step == "batch" and x0.shape[0] and not _same_for_all(t0, t1):
        raise InputError('step="batch" takes one step for all samples, so t0 and t1 must be the same for all')
    ts_given, ts = (None, None) if save_at is None else check_saved(save_at, begin.detach(), end.detach())
    jumps, own_jumps = check_jumps(jump_ts, begin, options.shared_step)
    # Jumps add to the number of steps of a fixed size.
    interval = None if isinstance(t0, Tensor) or isinstance(t1, Tensor) or jumps is not None else (t0, t1)
    shifted = isinstance(t0, Tensor) or t0 != 0.0 or jumps is not None
    own = own_jumps or any(isinstance(it, Tensor) and it.dim() > 0 for it in (t0, t1))
    return _Times(begin, end, ts, ts_given, jumps, interval, shifted, own)


def _trainable(tensor: Tensor) -> Tensor:
    """A tensor that autograd can use: a copy of one made under inference_mode."""
    return tensor.clone() if tensor.is_inference() and not torch.is_inference_mode_enabled() else tensor


def _check_values(states: Sequence[Tensor], leaves: Sequence[Tensor]) -> None:
    """Refuse a state or control that is not finite; which samples are, is read only if some are not."""
    if is_symbolic() or all_finite((*states, *(leaf for leaf in leaves if leaf.dtype != torch.bool))):
        return
    for leaf in states:
        check_finite("x0", leaf)
    for leaf in leaves:
        check_finite("theta", leaf)


def _same_for_all(*times: float | Tensor) -> bool:
    return all(not isinstance(t, Tensor) or t.dim() == 0 or bool((t == t[0]).all()) for t in times)
