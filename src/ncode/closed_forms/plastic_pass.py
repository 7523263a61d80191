"""The forward pass of an episode of `plastic.py`, whose docstring has the mathematics, and where it joins autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..ode.ambient import undisturbed
from ..ode.field import State
from ..ode.once import once
from ..ode.touched import touch
from .plastic_back import Backward, Kept
from .plastic_parts import Plan, advance, outer_sum, product
from .plastic_weights import Weights

_ONCE = 'a second derivative of an episode was asked for: use ncode.solve with feedback and gradient="autograd"'


def present(plan: Plan, stimuli: Tensor, theta0: Tensor, mu: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
    """The ends (P, batch, n) of the presentations, and the vectors x_e (K, batch, n) of all evaluations."""
    scale = weights.phi if plan.formed else weights.scale
    numbers = (part.to(stimuli.device, stimuli.dtype) for part in (weights.vectors, scale, weights.new, weights.keep))
    trained = _look(plan.rho, stimuli[:, 0])
    return _Present.apply(plan, stimuli, theta0, mu, *numbers, *trained)  # pyright: ignore[reportReturnType]


def _look(rho: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, ...]:
    """Evaluate rho once: checks what it returns, and finds what it touches that wants a gradient."""

    def field(t: Tensor, z: State, theta: Sequence[Tensor]) -> State:
        return (rho(z[0]),)

    touched = touch(field, (rho,), x.new_zeros(len(x)), (x.detach(),), (), train=torch.is_grad_enabled())
    (slope,) = touched.slope
    if slope.shape != x.shape or slope.dtype != x.dtype:
        raise InputError(
            f"rho returned {slope.dtype} {tuple(slope.shape)} for {x.dtype} {tuple(x.shape)}: it must keep both"
        )
    return touched.trained


class _Present(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, stimuli: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        theta0, mu, weights = inputs[:3]
        with torch.autocast(stimuli.device.type, enabled=False):
            ends, vectors, driven = _forward(plan, stimuli, theta0, mu, weights)
        ctx.plan = plan
        ctx.save_for_backward(vectors, driven, *inputs)
        ctx.set_materialize_grads(False)
        return ends, vectors

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        saved = ctx.saved_tensors
        kept = Kept(*saved[:8], trained=saved[8:])
        with (
            torch.no_grad(),
            torch.autocast(kept.vectors.device.type, enabled=False),
            undisturbed(kept.trained),
        ):
            got = Backward(ctx.plan, kept, ctx.needs_input_grad[1:]).run(*grads)
        return None, *once(_ONCE, (*saved, *grads), got)


def _forward(plan: Plan, stimuli: Tensor, theta0: Tensor, mu: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The ends (P, batch, n), and x_e and v_e of every evaluation (K, batch, n)."""
    batch, _, n = stimuli.shape
    vectors, driven = (stimuli.new_empty(len(weights), batch, n) for _ in range(2))
    space = stimuli.new_empty(2, plan.stages if plan.formed else len(weights), batch, n)
    theta, ends, e, since = theta0, [], 0, 0
    for x in stimuli.unbind(1):
        for h in plan.sizes:
            if plan.formed and e:
                grown = outer_sum(weights[e, since:e], vectors[since:e])
                theta, since = torch.addcmul(plan.keep[e // plan.stages - 1] * theta, mu, grown), e
            slopes: list[Tensor] = []
            for row in plan.tableau.a:
                before, start = vectors[since:e], vectors[e].copy_(advance(x, h, slopes, row))
                seen, changed = space[0, : e - since], space[1, : e - since]
                torch.mul(before, start, out=seen)
                torch.mm(seen.flatten(0, 1), mu.mT, out=changed.flatten(0, 1))
                v = product(theta, start, out=driven[e])
                v.view(-1).addmv_(changed.mul_(before).flatten(1).mT, weights[e, since:e], beta=plan.scale[e])
                slopes.append(plan.rho(v))
                e += 1
            x = advance(x, h, slopes, plan.tableau.b)
        ends.append(x)
    return torch.stack(ends), vectors, driven
