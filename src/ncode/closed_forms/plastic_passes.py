"""The forward and the backward pass of an episode of plastic.py, whose docstring has the mathematics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InputError
from ..ode.captures import find_captures
from ..ode.gradients.function import forbid_double_backward, isolate_hooked
from ..ode.system import State
from ..ode.tableau import Tableau

_NO_SECOND_DERIVATIVE = 'an episode has no second derivatives: use ncode.solve with feedback and gradient="autograd"'


class Weights(NamedTuple):
    """The weights of theta as a sum over theta_0 and the vectors x_k, for N steps of s stages, K = N s evaluations."""

    vectors: Tensor  # W (K, K): of x_k x_k^T at evaluation e
    scale: Tensor  # (K,): of theta_0 at evaluation e
    phi: Tensor  # (K,): of theta at the start of the step, at evaluation e
    keep: Tensor  # (N,): of theta at the start of a step, at its end
    last: Tensor  # (K,): of x_k x_k^T at the end of the episode
    last_scale: Tensor  # (): of theta_0 at the end of the episode


@dataclass(frozen=True, eq=False)
class Plan:
    """An episode apart from its tensors."""

    tableau: Tableau
    sizes: Sequence[float]  # step sizes of one presentation
    rho: Callable[[Tensor], Tensor]
    formed: bool  # whether theta is formed at the start of each step (the matrix formulation)
    stages: int  # evaluations per step
    scale: Sequence[float]  # per evaluation: the weight of theta_0 or, if formed, of theta at the start of the step
    total: Sequence[float]  # per evaluation: the weight of theta_0
    keep: Sequence[float]  # per step: the weight of theta at its start, at its end


def product(theta: Tensor, x: Tensor, out: Tensor | None = None) -> Tensor:
    """theta x for x (..., batch, n) and theta (n, n) or (batch, n, n)."""
    if theta.dim() == 2:
        return torch.matmul(x, theta.mT, out=out)
    # A row times a matrix is seven times faster on a CPU than a matrix times a column.
    return torch.matmul(x[..., None, :], theta.mT, out=None if out is None else out[..., None, :])[..., 0, :]


def outer_sum(weights: Tensor, vectors: Tensor) -> Tensor:
    """sum_k w_k x_k x_k^T (batch, n, n), of vectors (k, batch, n)."""
    return (weights[:, None, None] * vectors).permute(1, 2, 0) @ vectors.transpose(0, 1)


def weighted_sum(row: Sequence[float], slopes: Sequence[Tensor]) -> Tensor | None:
    """sum_i row_i slope_i, or None for an empty sum."""
    total: Tensor | None = None
    for weight, slope in zip(row, slopes, strict=False):
        if weight:
            total = weight * slope if total is None else torch.add(total, slope, alpha=weight)
    return total


def advance(x: Tensor, h: float, slopes: Sequence[Tensor], row: Sequence[float]) -> Tensor:
    """x + h sum_i row_i slope_i."""
    total = weighted_sum(row, slopes)
    return x if total is None else torch.add(x, total, alpha=h)


def run_episode(plan: Plan, stimuli: Tensor, theta0: Tensor, mu: Tensor, weights: Weights) -> tuple[Tensor, Tensor]:
    """x at the end of each presentation (P, batch, n), and the vectors x_e (K, batch, n) of all evaluations."""
    scale = weights.phi if plan.formed else weights.scale
    numbers = (part.to(stimuli.device, stimuli.dtype) for part in (weights.vectors, scale, weights.keep))
    trained = _find_trained(plan.rho, stimuli[:, 0])
    return _EpisodeFunction.apply(plan, stimuli, theta0, mu, *numbers, *trained)  # pyright: ignore[reportReturnType]


def _find_trained(rho: Callable[[Tensor], Tensor], x: Tensor) -> tuple[Tensor, ...]:
    """Evaluate rho once, to check its result and to find the tensors that it uses and that require a gradient."""

    def field(t: Tensor, z: State, theta: Sequence[Tensor]) -> State:
        return (rho(z[0]),)

    captures = find_captures(field, (rho,), x.new_zeros(len(x)), (x.detach(),), (), train=torch.is_grad_enabled())
    (slope,) = captures.slope
    if slope.shape != x.shape or slope.dtype != x.dtype:
        raise InputError(
            f"rho returned {slope.dtype} {tuple(slope.shape)} for {x.dtype} {tuple(x.shape)}: it must keep both"
        )
    return captures.trained


class _EpisodeFunction(torch.autograd.Function):
    """One episode as a single node of the autograd graph."""

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
        tensors = ctx.saved_tensors
        saved = SavedTensors(*tensors[:7], trained=tensors[7:])
        autocast = torch.autocast(saved.vectors.device.type, enabled=False)
        rho, trained = isolate_hooked(ctx.plan.rho, saved.trained)
        plan, saved = replace(ctx.plan, rho=rho), saved._replace(trained=trained)
        with torch.no_grad(), autocast:
            got = _Backward(plan, saved, ctx.needs_input_grad[1:]).run(*grads)
        return None, *forbid_double_backward(_NO_SECOND_DERIVATIVE, (*tensors, *grads), got)


def _forward(plan: Plan, stimuli: Tensor, theta0: Tensor, mu: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x at the ends (P, batch, n), and x_e and v_e of every evaluation (K, batch, n)."""
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
                pairs, mapped = space[0, : e - since], space[1, : e - since]
                torch.mul(before, start, out=pairs)
                torch.mm(pairs.flatten(0, 1), mu.mT, out=mapped.flatten(0, 1))
                v = product(theta, start, out=driven[e])
                v.view(-1).addmv_(mapped.mul_(before).flatten(1).mT, weights[e, since:e], beta=plan.scale[e])
                slopes.append(plan.rho(v))
                e += 1
            x = advance(x, h, slopes, plan.tableau.b)
        ends.append(x)
    return torch.stack(ends), vectors, driven


class SavedTensors(NamedTuple):
    """What the forward pass keeps for backward."""

    vectors: Tensor  # x_e, (K, batch, n)
    driven: Tensor  # v_e
    theta0: Tensor
    mu: Tensor
    weights: Tensor  # W (K, K)
    scale: Tensor  # (K,)
    keep: Tensor  # (N,)
    trained: Sequence[Tensor]  # tensors that rho uses and that require a gradient


class _Backward:
    """The gradients of one episode, accumulated from its last evaluation to its first."""

    def __init__(self, plan: Plan, saved: SavedTensors, needs_grad: Sequence[bool]):
        self.plan, self.saved = plan, saved
        _, _, for_mu, self.for_weights, *_ = needs_grad
        self.x_grad, self.v_grad = torch.zeros_like(saved.vectors), torch.zeros_like(saved.vectors)
        self.theta, self.theta_grad = saved.theta0, None
        self.mu_grad = torch.zeros_like(saved.mu) if for_mu else None
        numbers = (saved.weights, saved.scale, saved.keep)
        self.weights_grad, self.scale_grad, self.keep_grad = map(torch.zeros_like, numbers)
        self.trained_grads: list[Tensor | None] = [None] * len(saved.trained)

    def run(self, ends_grad: Tensor | None, vectors_grad: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradients of all inputs of `_EpisodeFunction`, from those of its outputs."""
        if vectors_grad is not None:
            self.x_grad += vectors_grad
        first, grads = len(self.saved.vectors), []
        presentations = first // (len(self.plan.sizes) * self.plan.stages)
        for number in range(presentations - 1, -1, -1):
            grad = torch.zeros_like(self.saved.vectors[0]) if ends_grad is None else ends_grad[number]
            for h in reversed(self.plan.sizes):
                first -= self.plan.stages
                grad = self._step_backward(first, h, grad)
            grads.append(grad)
        if self.theta_grad is not None and self.theta_grad.dim() > self.saved.theta0.dim():
            self.theta_grad = self.theta_grad.sum(0)
        weights = (self.weights_grad, self.scale_grad, self.keep_grad)
        return torch.stack(grads[::-1], 1), self.theta_grad, self.mu_grad, *weights, *self.trained_grads

    def _step_backward(self, first: int, h: float, end: Tensor) -> Tensor:
        """The gradient of x before a step, whose first evaluation is `first`, from that of x after it."""
        a, b, since = self.plan.tableau.a, self.plan.tableau.b, first if self.plan.formed else 0
        if self.plan.formed:
            self._form_theta(first)
        for i in range(len(b) - 1, -1, -1):
            column = (b[i], *(a[j][i] for j in range(i + 1, len(b))))
            later = self.x_grad[first + i + 1 : first + len(b)].unbind()
            slope = weighted_sum([h * weight for weight in column], [end, *later])
            if slope is not None:
                self._product_backward(since, first + i, self._rho_backward(first + i, slope))
        if self.plan.formed:
            self._theta_backward(slice(first, first + len(b)), self.plan.keep[first // len(b)])
        elif first == 0:
            self._theta_backward(slice(None), 1.0)
        return end + self.x_grad[first : first + len(b)].sum(0)

    def _rho_backward(self, e: int, slope: Tensor) -> Tensor:
        """The gradient of v_e from that of rho(v_e); adds those of the tensors that rho uses."""
        with torch.enable_grad():
            v = self.saved.driven[e].detach().requires_grad_()
            value = self.plan.rho(v)
        if not value.requires_grad:
            return torch.zeros_like(v)
        got = torch.autograd.grad(value, [v, *self.saved.trained], slope, allow_unused=True)
        for i, grad in enumerate(got[1:]):
            if grad is not None:
                old = self.trained_grads[i]
                self.trained_grads[i] = grad if old is None else old + grad
        return torch.zeros_like(v) if got[0] is None else got[0]

    def _product_backward(self, since: int, e: int, v: Tensor) -> None:
        """Add the gradients of x_e and of the vectors from `since` to e, from the gradient v of v_e."""
        x, before, x_grad = self.saved.vectors[e], self.saved.vectors[since:e], self.x_grad[since:e]
        self.v_grad[e] = v
        self.x_grad[e].add_(product(self.theta.mT, v), alpha=self.plan.scale[e])
        if since == e:
            return
        weights, mu = self.saved.weights[e, since:e, None, None], self.saved.mu
        right, left = before * x, (before * weights).mul_(v)
        z, y = right @ mu.mT, left @ mu
        if self.mu_grad is not None:
            self.mu_grad.addmm_(left.flatten(0, 1).mT, right.flatten(0, 1))
        x_grad.addcmul_(x, y)
        x_grad.addcmul_(weights, z.mul_(v))
        self.x_grad[e].add_(y.mul_(before).sum(0))
        if self.for_weights:
            self.weights_grad[e, since:e] = z.mul_(before).sum((1, 2))

    def _form_theta(self, first: int) -> None:
        """Form theta before a step, and go back through its growth to theta' = keep theta + mu * sum_j new_j x_j x_j^T.

        The weights new_j are those of this step in the first evaluation after it.
        """
        saved, end = self.saved, first + self.plan.stages
        self.theta = self.plan.total[first] * saved.theta0
        if first:
            grown = outer_sum(saved.weights[first, :first], saved.vectors[:first])
            self.theta = torch.addcmul(self.theta, saved.mu, grown)
        if self.theta_grad is None:
            return
        vectors, new, pulled = saved.vectors[first:end], saved.weights[end, first:end], saved.mu * self.theta_grad
        rows = vectors.transpose(0, 1)
        there = rows @ pulled.mT
        self.x_grad[first:end] += new[:, None, None] * (there + rows @ pulled).transpose(0, 1)
        if self.mu_grad is not None:
            self.mu_grad += (self.theta_grad * outer_sum(new, vectors)).sum(0)
        if self.for_weights:
            self.weights_grad[end, first:end] = (rows * there).sum((0, 2))
            self.keep_grad[first // self.plan.stages] = (self.theta_grad * self.theta).sum()

    def _theta_backward(self, rows: slice, keep: float) -> None:
        """Update the gradient of theta to before these evaluations, from that after them."""
        v_grad, vectors = self.v_grad[rows], self.saved.vectors[rows]
        scaled = self.saved.scale[rows, None, None] * v_grad
        if self.theta_grad is not None:
            self.theta_grad.baddbmm_(scaled.permute(1, 2, 0), vectors.transpose(0, 1), beta=keep)
        elif self.theta.dim() == 2:
            self.theta_grad = scaled.flatten(0, 1).mT @ vectors.flatten(0, 1)
        else:
            self.theta_grad = scaled.permute(1, 2, 0) @ vectors.transpose(0, 1)
        if self.for_weights:
            self.scale_grad[rows] = (v_grad * product(self.theta, vectors)).sum((1, 2))
