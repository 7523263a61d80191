"""The start of a march: a first step to try, and who can start at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import Status
from .compiled import graph_of, identity
from .field import State
from .loop import Attempt, March
from .stepsize import first_step


class Begun(NamedTuple):
    """A march that has not moved yet."""

    march: March
    spent: Tensor  # evaluations of the field so far, a sample each
    tally: Tensor | None


def begin(
    attempt: Attempt,
    dt: float | None,
    t0: Tensor,
    t1: Tensor,
    z: State,
    theta: Sequence[Tensor],
    slope: State,
) -> Begun:
    """Every sample at its start, with a first step to try."""
    step, away = attempt.step, t0 != t1
    finite = torch.stack([_finite(leaf) for leaf in slope]).all(0)
    alive = away & finite
    status = torch.where(away & ~finite, Status.NOT_FINITE, Status.OK).to(torch.int32)
    if dt is None:
        order, mask = step.tableau.error_order + 1, alive if attempt.together else None
        h = first_step(step.field, attempt.tolerance, order, t0, t1, z, theta, slope, mask)
    else:
        h = dt * torch.sign(t1 - t0)
    ones, count = torch.ones_like(t0, dtype=step.field.dtype), torch.zeros_like(status)
    march = _march(attempt, t0, z, slope, h, ones, alive, status, count)
    # One evaluation to look, and one to choose the first step.
    spent = away.int() * (2 if dt is None else 1)
    return Begun(march, spent, attempt.tally(march, t1) if attempt.tallied else None)


def begin_compiled(
    attempt: Attempt,
    dt: float | None,
    t0: Tensor,
    t1: Tensor,
    z: State,
    theta: Sequence[Tensor],
    slope: State,
    outside: Sequence[Tensor],
) -> Begun:
    """The same as one compiled graph: taken one by one, its many small operations cost more than a step does."""
    width = len(z)

    def flat(t0: Tensor, t1: Tensor, *rest: Tensor) -> list[Tensor]:
        slope, z, theta = rest[:width], rest[width : 2 * width], rest[2 * width :]
        march, spent, tally = begin(attempt, dt, t0, t1, z, theta, slope)
        found = [march.h, march.before, march.alive, march.status, march.accepted, spent]
        return found if tally is None else [*found, tally]

    tensors = [t0, t1, *slope]
    if dt is None:
        key = identity(attempt.step), attempt.tolerance, attempt.together
        tensors += [*z, *theta]
    else:  # the field is not asked, so that any other will do as well
        key, outside = (attempt.step.field.dtype,), ()
    key = ("begin", *key, dt, attempt.tallied)
    # Once a solve: to copy everything into a recorded graph's own memory would cost more than the launches.
    graph = graph_of(key, attempt.step.field, flat, tensors, outside, {}, record=False)
    h, ones, alive, status, count, spent, *tally = graph(tensors, outside)
    march = _march(attempt, t0, z, slope, h, ones, alive, status, count)
    return Begun(march, spent, tally[0] if tally else None)


def _march(
    attempt: Attempt,
    t: Tensor,
    z: State,
    slope: State,
    h: Tensor,
    ones: Tensor,
    alive: Tensor,
    status: Tensor,
    count: Tensor,
) -> March:
    return March(
        t=t,
        h=h,
        z=z,
        slope=slope if attempt.step.needs_end else None,
        before=ones,
        earlier=ones,
        alive=alive,
        status=status,
        accepted=count,
        rejected=count,
    )


def _finite(leaf: Tensor) -> Tensor:
    return leaf.isfinite().flatten(1).all(1) if leaf.dim() > 1 else leaf.isfinite()
