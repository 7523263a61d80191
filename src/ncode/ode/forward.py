"""The forward pass, without autograd: what all three gradients begin with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import Status
from .begin import begin, begin_compiled
from .compiled import LADDER
from .field import State
from .layout import settle
from .loop import Attempt, Compiled, March, integrate
from .problem import Problem, check_slope
from .record import DenseTape, Recorder, Saver
from .step import Step, like
from .touched import Touched, touch


class Forward(NamedTuple):
    """The end of a forward pass."""

    march: March
    nfe: Tensor
    saved: State  # x and the driven control at the saved times; empty without
    dense: DenseTape | None
    evaluations: int  # of the dynamics in one step
    failed: int | None  # how many samples did, where that is known without asking


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
    # In a compiled graph a tally costs nothing, and on a GPU it saves an attempt.
    tallied = problem.fixed_count is None and (compile or t0.is_cuda)
    attempt = Attempt(step, problem.pid, problem.tolerance, problem.dt is not None, problem.together, tallied)
    start = attempt, problem.dt, t0, t1, z, theta, touched.slope
    march, spent, tally = begin_compiled(*start, touched.outside) if compile else begin(*start)
    shown = z[: 1 + field.driven]
    saver = Saver(problem.ts.detach(), t0, shown) if problem.ts is not None else None
    dense = DenseTape() if problem.dense else None
    march, failed = integrate(
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
        tally=tally,
    )
    if compile and t0.is_cuda:
        march = _kept(march)
    nfe = spent + (march.accepted + march.rejected) * step.evaluations
    if failed != 0 or march.z is z:  # where nothing moved, what is returned must not be what was given
        bad = like(march.status != Status.OK, march.z)
        march = march._replace(z=tuple(torch.where(b, torch.nan, leaf) for b, leaf in zip(bad, march.z, strict=True)))
    saved = saver.values if saver is not None else ()
    return Forward(march, nfe, saved, dense, step.evaluations, failed)


def _kept(march: March) -> March:
    """What a solution is made of, out of a recorded graph's own memory."""
    t, status, accepted, rejected = map(torch.clone, (march.t, march.status, march.accepted, march.rejected))
    z = tuple(map(torch.clone, march.z))
    return march._replace(t=t, z=z, status=status, accepted=accepted, rejected=rejected)
