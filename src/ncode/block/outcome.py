"""Solutions of a block: with the control by name, and those that came without the solver."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from .._torch_private import is_symbolic
from ..control.base import Theta
from ..control.motion import Motion, Still
from ..ode import Solution, SolveError, Stats, Status
from ..ode.problem import check_saved, check_time
from .request import Request
from .shortcuts import Reached
from .wiring import Control


def named(solution: Solution, theta_at: Control, motion: Motion, request: Request) -> Solution:
    """The solver's solution, with the control in place of what the solver carried."""
    x, ts = solution.x, solution.ts
    t1 = request.settings.t1
    # A number is written by the device itself: to copy it there would be to wait.
    t1 = t1 if isinstance(t1, Tensor) else torch.full((), t1, dtype=x.real.dtype, device=x.device)
    theta = theta_at(t1.to(x.device, x.real.dtype).expand(request.batch), solution.theta)
    if ts is None:
        return replace(solution, theta=theta)
    if isinstance(motion, Still):
        return replace(solution, theta=theta, thetas=held(theta, ts.shape[1]))
    columns = []
    for column in range(ts.shape[1]):
        then = {name: value[:, column] for name, value in (solution.thetas or {}).items()}
        columns.append(theta_at(ts[:, column].to(x.real.dtype), then))
    thetas = {name: torch.stack([then[name] for then in columns], 1) for name in theta} if columns else held(theta, 0)
    return replace(solution, theta=theta, thetas=thetas)


def reached_solution(reached: Reached, theta: Theta, request: Request) -> Solution:
    """The solution that a shortcut leads to, with the statuses that the solver would give."""
    x0, settings = request.x0, request.settings
    time = torch.float32 if x0.device.type == "mps" else torch.float64
    (_, t0), (_, t1) = check_time("t0", settings.t0, x0, time), check_time("t1", settings.t1, x0, time)
    given, full = (None, None) if request.save_at is None else check_saved(request.save_at, t0.detach(), t1.detach())
    none = torch.zeros(request.batch, dtype=torch.int32, device=x0.device)
    finite = reached.x.detach().isfinite().flatten(1).all(1)
    codes = torch.where(finite, Status.OK.value, Status.NOT_FINITE.value).to(torch.int32)
    solution = Solution(
        x=torch.where(finite[:, None], reached.x, torch.nan),
        theta=dict(theta),
        cost=None,
        ts=None if given is None or full is None else given.expand(full.shape),
        xs=reached.xs,
        thetas=None if full is None else held(theta, full.shape[1]),
        stats=Stats(none + reached.nfe, none + reached.steps, none),
        codes=codes,
        t=t1.detach(),
    )
    # The one place where the CPU waits for the GPU.
    if request.throw and not is_symbolic() and not bool(finite.all()):
        failed = (~finite).nonzero().flatten().tolist()
        raise SolveError(failed, t1[failed].tolist(), [Status.NOT_FINITE] * len(failed), solution, request.batch)
    return solution


def held(theta: Theta, count: int) -> dict[str, Tensor]:
    """A control that stands still at so many times: views, not copies."""
    return {name: value[:, None].expand(-1, count, *value.shape[1:]) for name, value in theta.items()}
