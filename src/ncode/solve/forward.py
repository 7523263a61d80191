"""The forward pass, without autograd: what all three gradients begin with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .compiled import LADDER
from .field import State
from .layout import settle
from .loop import Attempt, Compiled, March, integrate
from .problem import Problem, check_slope
from .record import DenseTape, Recorder, Saver
from .status import Status
from .step import Step
from .stepsize import first_step
from .touched import Touched, touch


class Forward(NamedTuple):
    """The end of a forward pass."""

    march: March
    nfe: Tensor
    saved: State  # x and the driven control at the saved times; empty without
    dense: DenseTape | None
    evaluations: int  # of the dynamics in one step


def look(problem: Problem, *, train: bool) -> Touched:
    """Evaluate the field at the start: checks what it returns and finds what it touches."""
    field = problem.field

    def checked(t: Tensor, z: State, theta: Sequence[Tensor]) -> State:
        slope = field.bind(theta)(t, z)
        check_slope(field, z, slope)
        return slope

    functions = (field.dynamics, field.feedback, field.cost)
    z0 = tuple(leaf.detach() for leaf in problem.z0)
    return touch(checked, functions, problem.t0.detach().to(field.dtype), z0, problem.theta, train=train)


def run(
    problem: Problem,
    touched: Touched,
    recorders: Sequence[Recorder] = (),
    *,
    compile: bool = False,
) -> Forward:
    """Integrate from t0 to t1."""
    field, t0, t1 = problem.field, problem.t0.detach(), problem.t1.detach()
    z = tuple(leaf.detach() for leaf in problem.z0)
    theta = tuple(leaf.detach() for leaf in problem.theta)
    if compile:
        z, theta = tuple(map(settle, z)), tuple(map(settle, theta))
    step = Step(field, problem.tableau, problem.dt is None, problem.dense or problem.ts is not None)
    march = begin(step, problem, t0, t1, z, theta, touched.slope)
    attempt = Attempt(step, problem.pid, problem.tolerance, problem.dt is not None, problem.together)
    # One evaluation to look, and one to choose the first step.
    before = (t0 != t1).int() * (2 if problem.dt is None else 1)
    shown = z[: 1 + field.driven]
    saver = Saver(problem.ts.detach(), t0, shown) if problem.ts is not None else None
    dense = DenseTape() if problem.dense else None
    march = integrate(
        Compiled(attempt, touched.outside) if compile else attempt,
        march,
        t1,
        theta,
        [recorder for recorder in (saver, dense, *recorders) if recorder is not None],
        max_steps=problem.max_steps,
        steps=problem.fixed_count,
        # Dense output wants all samples side by side; a closure may hold rows that belong to samples.
        compact=dense is None and not touched.has_rows(problem.batch),
        ladder=LADDER if compile else None,
    )
    if compile and t0.is_cuda:
        march = march.map(torch.clone)  # out of the graph's own memory
    nfe = before + (march.accepted + march.rejected) * step.evaluations
    failed = march.status != Status.OK
    lost = tuple(torch.where(failed.reshape(-1, *[1] * (leaf.dim() - 1)), torch.nan, leaf) for leaf in march.z)
    saved = saver.values if saver is not None else ()
    return Forward(march._replace(z=lost), nfe, saved, dense, step.evaluations)


def begin(
    step: Step, problem: Problem, t0: Tensor, t1: Tensor, z: State, theta: Sequence[Tensor], slope: State
) -> March:
    """Every sample at its start, with a first step to try."""
    field, sign = step.field, torch.sign(t1 - t0)
    alive = t0 != t1
    finite = torch.stack([_finite(leaf) for leaf in slope]).all(0)
    status = torch.where(alive & ~finite, Status.NOT_FINITE, Status.OK).to(torch.int32)
    if problem.dt is None:
        order, mask = step.tableau.error_order + 1, alive & finite if problem.together else None
        h = first_step(field, problem.tolerance, order, t0, t1, z, theta, slope, mask)
    else:
        h = problem.dt * sign
    ones = torch.ones_like(t0, dtype=field.dtype)
    count = torch.zeros_like(status)
    return March(
        t=t0,
        h=h,
        z=z,
        slope=slope if step.needs_end else None,
        before=ones,
        earlier=ones,
        alive=alive & finite,
        status=status,
        accepted=count,
        rejected=count,
    )


def _finite(leaf: Tensor) -> Tensor:
    return leaf.isfinite().flatten(1).all(1) if leaf.dim() > 1 else leaf.isfinite()
