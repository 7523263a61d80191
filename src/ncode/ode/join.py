"""Where a solve joins autograd: one function for the "discrete" and the "adjoint" gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .._torch_private import backward_keeps_graph
from .ambient import undisturbed
from .once import once
from .problem import Problem

_SECOND = 'a second derivative of a solve was asked for, and only gradient="autograd" has one'

Leaves = tuple[Any, ...]  # tensors, or None where there is no gradient


class Outputs(NamedTuple):
    """What a solve returns that gradients can come from (or those gradients)."""

    z: Leaves  # at t1
    saved: Leaves  # x and the driven control at the saved times
    states: Leaves = ()  # of dense output: where steps begin, (n, batch, ...)
    powers: Leaves = ()  # of dense output: its coefficients, (n, batch, powers, ...)


class Job(Protocol):
    """A solve whose gradient can be asked for."""

    def pull(
        self, wanted: Sequence[bool], trained: Sequence[Tensor], grads: Outputs
    ) -> tuple[Sequence[Tensor | None], Sequence[Tensor | None], Sequence[Tensor | None]]:
        """Gradients for z0, for the wanted ones of (*theta, t0, t1, ts), and for the trained tensors."""
        ...


class _Join(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, job: Job, inner: Sequence[Tensor], outputs: Outputs, count: int, rows: int, *inputs: Tensor
    ) -> Any:
        ctx.job, ctx.inner, ctx.count, ctx.rows = job, inner, count, rows
        ctx.lengths = [len(part) for part in outputs]
        ctx.save_for_backward(*inputs)  # so that torch notices if one is changed before backward
        ctx.set_materialize_grads(False)
        return tuple(leaf for part in outputs for leaf in part)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        given = iter(grads)
        parts = Outputs(*(tuple(next(given) for _ in range(length)) for length in ctx.lengths))
        needs = ctx.needs_input_grad[5:]
        first, last = ctx.count, ctx.count + ctx.rows
        job, trained = ctx.job, ctx.inner
        saved = ctx.saved_tensors  # once: under activation checkpointing they are computed for the asking
        if not backward_keeps_graph():
            ctx.job = ctx.inner = None  # as torch lets go of saved tensors, though a solution may live on
        with torch.no_grad(), undisturbed(trained):
            z, rows, rest = job.pull(needs[first:last], trained, parts)
        found = iter(rows)
        got = (
            *(grad if need else None for grad, need in zip(z, needs[:first], strict=True)),
            *(next(found) if need else None for need in needs[first:last]),
            *rest,
        )
        return None, None, None, None, None, *once(_SECOND, (*saved, *grads), got)


def join(job: Job, problem: Problem, trained: Sequence[Tensor], inner: Sequence[Tensor], outputs: Outputs) -> Outputs:
    """The outputs as differentiable functions of everything that the solve touched.

    `inner` are the trained tensors, or their stand-ins, as backward differentiates with respect to them.
    """
    rows = problem.rows
    flat = iter(_Join.apply(job, inner, outputs, len(problem.z0), len(rows), *problem.z0, *rows, *trained))
    return Outputs(*(tuple(next(flat) for _ in part) for part in outputs))
