"""Where a solve meets autograd: one autograd.Function for the "discrete" and the "adjoint" gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..._torch_private import backward_keeps_graph
from ...errors import InputError
from ..captures import without_hooks
from ..problem import Problem, SampleInputs
from ..system import tensors_of

_SECOND_DERIVATIVE = 'a second derivative of a solve was asked for, and only gradient="autograd" has one'

Leaves = tuple[Any, ...]  # tensors, or None where there is no gradient


class Outputs(NamedTuple):
    """What a solve returns that gradients can come from (or those gradients)."""

    z: Leaves  # at t1
    saved: Leaves  # x and the driven control at the saved times
    states: Leaves = ()  # of dense output: states where steps begin, (n, batch, ...)
    powers: Leaves = ()  # of dense output: coefficients, (n, batch, powers, ...)


class InputGradients(NamedTuple):
    """Gradients of all inputs of a solve, None where there is none."""

    z0: Leaves
    inputs: SampleInputs
    captures: Leaves


class Pullback(Protocol):
    """What a forward pass leaves behind for backward."""

    def pull(self, needed: SampleInputs, captures: Sequence[Tensor], grads: Outputs) -> InputGradients:
        """Gradients for z0, for those of the inputs that `needed` marks with True, and for the captures."""
        ...


class _SolveFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, pullback: Pullback, captures: Sequence[Tensor], outputs: Outputs, problem: Problem, *inputs: Tensor
    ) -> Any:
        ctx.pullback, ctx.captures = pullback, captures
        ctx.lengths, ctx.counts = [len(part) for part in outputs], (len(problem.z0), len(problem.theta))
        ctx.save_for_backward(*inputs)  # so that torch notices if one is changed before backward
        ctx.set_materialize_grads(False)
        return tuple(leaf for part in outputs for leaf in part)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        rest = iter(grads)
        parts = Outputs(*(tuple(next(rest) for _ in range(length)) for length in ctx.lengths))
        states, controls = ctx.counts
        needs = ctx.needs_input_grad[4:]
        theta = slice(states, states + controls)
        saved = ctx.saved_tensors  # read once: under activation checkpointing they are recomputed at each reading
        has_ts = len(saved) - len(ctx.captures) - states - controls > 2
        t0, t1, *ts = needs[theta.stop : theta.stop + 2 + has_ts]
        needed = SampleInputs(tuple(needs[theta]), t0, t1, ts[0] if has_ts else None)
        pullback, captures = ctx.pullback, ctx.captures
        if not backward_keeps_graph():
            ctx.pullback = ctx.captures = None  # as torch frees saved tensors, though the solution may live on
        with torch.no_grad(), without_hooks(captures):
            found = pullback.pull(needed, captures, parts)
        times = (found.inputs.t0, found.inputs.t1, *([found.inputs.ts] if has_ts else []))
        got = [*found.z0, *found.inputs.theta, *times, *found.captures]
        wanted = [*needs[: theta.stop + 2 + has_ts], *[True] * len(found.captures)]
        got = [grad if need else None for grad, need in zip(got, wanted, strict=True)]
        return None, None, None, None, *forbid_double_backward(_SECOND_DERIVATIVE, (*saved, *grads), got)


def connect(
    pullback: Pullback, problem: Problem, trained: Sequence[Tensor], captures: Sequence[Tensor], outputs: Outputs
) -> Outputs:
    """The outputs as differentiable functions of all inputs of the solve.

    `captures` are the trained tensors, or their stand-ins, with respect to which backward differentiates.
    """
    inputs = tensors_of(problem.inputs)
    flat = iter(_SolveFunction.apply(pullback, captures, outputs, problem, *problem.z0, *inputs, *trained))
    return Outputs(*(tuple(next(flat) for _ in part) for part in outputs))


class _ForbidDoubleBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sentence: str, count: int, *tensors: Tensor) -> Any:
        ctx.sentence = sentence
        return tuple(grad.view_as(grad) for grad in tensors[count:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise InputError(ctx.sentence)


def forbid_double_backward(
    sentence: str, inputs: Sequence[Tensor | None], grads: Sequence[Tensor | None]
) -> Sequence[Tensor | None]:
    """What a backward returns, such that differentiating it again raises an InputError with this sentence."""
    if not torch.is_grad_enabled():
        return grads
    depends_on = [tensor for tensor in inputs if tensor is not None]
    given = [grad for grad in grads if grad is not None]
    marked = iter(_ForbidDoubleBackward.apply(sentence, len(depends_on), *depends_on, *given))
    return [None if grad is None else next(marked) for grad in grads]
