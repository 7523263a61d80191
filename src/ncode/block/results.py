"""What a block returns: solutions with the control by name, by the solver or by a closed form, and episodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .._modules import Theta
from .._torch_private import is_symbolic, pytree
from ..closed_forms.select import ClosedFormResult
from ..control.base import Constant, Motion
from ..errors import SolveError, Status
from ..ode import Solution, Stats
from ..ode.arguments import check_interval
from ..ode.record import mask_like
from .request import Request
from .wiring import ControlFunction


@dataclass(frozen=True, eq=False)
class Episode:
    """The result of `NCODE.episode`: the states at the ends of its presentations, and the control after the last."""

    x: Tensor  # at the end of the last presentation, (batch, ...)
    xs: Tensor  # at the end of each presentation, (batch, P, ...)
    make_theta: Callable[[], dict[str, Tensor]]

    def theta(self) -> dict[str, Tensor]:
        """The control after the last presentation, by name. A `Plastic` control is formed only by this call."""
        return self.make_theta()


def with_named_control(solution: Solution, control: ControlFunction, motion: Motion, request: Request) -> Solution:
    """The solver's solution with the control by name, in place of what the solver carried."""
    x, ts, t1 = solution.x, solution.ts, request.settings.t1
    # `full` writes a number on the device; copying it there would synchronise.
    t1 = t1 if isinstance(t1, Tensor) else torch.full((), t1, dtype=x.real.dtype, device=x.device)
    t1 = t1.to(x.device, x.real.dtype).expand(x.shape[0])
    if request.keep_last or request.events:
        t1 = solution.t.to(t1)
    theta = control(t1, solution.theta)
    if ts is None:
        return replace(solution, theta=theta)
    if isinstance(motion, Constant) or not ts.shape[1]:
        return replace(solution, theta=theta, thetas=_repeated(theta, ts.shape[1]))
    columns, missing = [], ts.detach().isnan()
    times = torch.where(missing, 0.0, ts).to(x.real.dtype)  # nan would reach gradients, even multiplied by 0
    for column in range(ts.shape[1]):
        carried = pytree.tree_map(lambda value, column=column: value[:, column], solution.thetas or {})
        columns.append(control(times[:, column], carried))
    thetas = {name: torch.stack([column[name] for column in columns], 1) for name in theta}
    thetas = {name: torch.where(mask_like(missing, it[:, 0]), torch.nan, it) for name, it in thetas.items()}
    return replace(solution, theta=theta, thetas=thetas)


def closed_form_solution(result: ClosedFormResult, theta: Theta, request: Request) -> Solution:
    """The solution by a closed form, with the statuses that the solver would return."""
    x0, settings = request.x0, request.settings
    _, t1, full, given = check_interval(settings.t0, settings.t1, request.save_at, x0)
    none = torch.zeros(x0.shape[0], dtype=torch.int32, device=x0.device)
    finite = result.x.detach().isfinite().flatten(1).all(1)
    codes = torch.where(finite, Status.OK.value, Status.NOT_FINITE.value).to(torch.int32)
    solution = Solution(
        x=torch.where(finite[:, None], result.x, torch.nan),
        theta=dict(theta),
        cost=None,
        ts=None if given is None or full is None else given.expand(full.shape),
        xs=result.xs,
        thetas=None if full is None else result.thetas() if result.thetas else _repeated(theta, full.shape[1]),
        stats=Stats(none + result.nfe, none + result.steps, none),
        codes=codes,
        t=t1.detach(),
    )
    # The only synchronisation with a GPU.
    if request.throw and not is_symbolic() and not bool(finite.all()):
        failed = (~finite).nonzero().flatten().tolist()
        raise SolveError(failed, t1[failed].tolist(), [Status.NOT_FINITE] * len(failed), solution, len(x0))
    return solution


def _repeated(theta: Theta, count: int) -> dict[str, Tensor]:
    """A constant control at `count` times, as views."""
    return {name: value[:, None].expand(-1, count, *value.shape[1:]) for name, value in theta.items()}
