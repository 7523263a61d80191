"""The forward and the backward pass of an episode of `plastic.py`, whose docstring has the mathematics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .status import InputError
from .tableau import Tableau
from .touched import touch


@dataclass(frozen=True, eq=False)
class Job:
    """What is no tensor: the method, the steps of a presentation, the scale of theta_0 at each evaluation, and rho."""

    tableau: Tableau
    sizes: Sequence[float]
    scales: Sequence[float]
    rho: Callable[[Tensor], Tensor]

    def look(self, x: Tensor) -> tuple[Tensor, ...]:
        """Evaluate rho once: checks what it returns, and finds what it touches that wants a gradient."""
        touched = touch(lambda t, z, theta: (self.rho(z[0]),), (self.rho,), x.new_zeros(len(x)), (x.detach(),), ())
        (slope,) = touched.slope
        if slope.shape != x.shape or slope.dtype != x.dtype:
            raise InputError(
                f"rho returned {slope.dtype} {tuple(slope.shape)} for {x.dtype} {tuple(x.shape)}:"
                " it must keep shape and dtype"
            )
        return touched.trained


class Present(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        job: Job,
        stimuli: Tensor,
        theta0: Tensor,
        mu: Tensor,
        weights: Tensor,
        scales: Tensor,
        *trained: Tensor,
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast(stimuli.device.type, enabled=False):
            ends, vectors, driven = _present(job, stimuli, theta0, mu, weights)
        ctx.job = job
        ctx.save_for_backward(theta0, mu, weights, scales, vectors, driven, *trained)
        ctx.set_materialize_grads(False)
        return ends, vectors

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (*saved,), trained = ctx.saved_tensors[:6], ctx.saved_tensors[6:]
        theta0, _, _, scales, vectors, _ = saved
        _, _, for_theta0, for_mu, for_weights, for_scales, *_ = ctx.needs_input_grad
        with torch.autocast(vectors.device.type, enabled=False):
            back = _Backward(ctx.job, saved, trained, for_mu, for_weights)
            stimuli_grad = back.run(*grads)
            theta0_grad = _outer(scales[:, None, None] * back.v_grad, vectors, theta0) if for_theta0 else None
            scales_grad = (back.v_grad * product(theta0, vectors)).sum((1, 2)) if for_scales else None
            mu_grad = back.pairs.flush()
        return None, stimuli_grad, theta0_grad, mu_grad, back.weights_grad, scales_grad, *back.trained_grads


def _present(job: Job, stimuli: Tensor, theta0: Tensor, mu: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The ends (P, batch, n), and x_e and v_e of every evaluation (K, batch, n)."""
    batch, _, n = stimuli.shape
    vectors, driven = (stimuli.new_empty(len(weights), batch, n) for _ in range(2))
    space = stimuli.new_empty(2, len(weights), batch, n)
    ends, e = [], 0
    for x in stimuli.unbind(1):
        for h in job.sizes:
            slopes: list[Tensor] = []
            for row in job.tableau.a:
                before, start = vectors[:e], vectors[e].copy_(_advance(x, h, slopes, row))
                seen, changed = space[0, :e], space[1, :e]
                torch.mul(before, start, out=seen)
                torch.mm(seen.flatten(0, 1), mu.mT, out=changed.flatten(0, 1))
                changed.mul_(before)
                v = driven[e].copy_(product(theta0, start))
                v.view(-1).addmv_(changed.flatten(1).mT, weights[e, :e], beta=job.scales[e])
                slopes.append(job.rho(v))
                e += 1
            x = _advance(x, h, slopes, job.tableau.b)
        ends.append(x)
    return torch.stack(ends), vectors, driven


class _Backward:
    """The gradients of one episode, gathered from its last evaluation to its first."""

    def __init__(self, job: Job, saved: Sequence[Tensor], trained: Sequence[Tensor], for_mu: bool, for_weights: bool):
        self.job, self.trained = job, trained
        self.theta0, self.mu, self.weights, _, self.vectors, self.driven = saved
        self.x_grad, self.v_grad = torch.zeros_like(self.vectors), torch.zeros_like(self.vectors)
        self.weights_grad = torch.zeros_like(self.weights) if for_weights else None
        self.trained_grads: list[Tensor | None] = [None] * len(trained)
        self.pairs = _Pairs(self.mu, 2 * self.vectors[:, :, 0].numel(), for_mu)
        self.space = torch.empty_like(self.vectors), torch.empty_like(self.vectors)

    def run(self, ends_grad: Tensor | None, vectors_grad: Tensor | None) -> Tensor:
        """Pull the gradients of the outputs through all presentations; returns that of the stimuli (batch, P, n)."""
        if vectors_grad is not None:
            self.x_grad += vectors_grad
        first, grads = len(self.vectors), []
        width = len(self.job.sizes) * self.job.tableau.stages
        for number in range(len(self.vectors) // width - 1, -1, -1):
            grad = torch.zeros_like(self.vectors[0]) if ends_grad is None else ends_grad[number]
            for h in reversed(self.job.sizes):
                first -= self.job.tableau.stages
                grad = self._pull_step(first, h, grad)
            grads.append(grad)
        return torch.stack(grads[::-1], 1)

    def _pull_step(self, first: int, h: float, end: Tensor) -> Tensor:
        """Pull the gradient of x after a step, whose first evaluation is given, to x before it."""
        a, b = self.job.tableau.a, self.job.tableau.b
        for i in range(len(b) - 1, -1, -1):
            column = [a[j][i] for j in range(i + 1, len(b))]
            later = self.x_grad[first + i + 1 : first + len(b)].unbind()
            slope = _weigh([b[i], *column], [end, *later])
            if slope is not None:
                self._pull_product(first + i, self._pull_rho(first + i, h * slope))
        return end + self.x_grad[first : first + len(b)].sum(0)

    def _pull_rho(self, e: int, slope: Tensor) -> Tensor:
        """Pull the gradient of rho(v_e) to v_e and to what rho touches."""
        with torch.enable_grad():
            v = self.driven[e].detach().requires_grad_()
            value = self.job.rho(v)
        if not value.requires_grad:
            return torch.zeros_like(v)
        got = torch.autograd.grad(value, [v, *self.trained], slope, allow_unused=True)
        for i, grad in enumerate(got[1:]):
            if grad is not None:
                old = self.trained_grads[i]
                self.trained_grads[i] = grad if old is None else old + grad
        return torch.zeros_like(v) if got[0] is None else got[0]

    def _pull_product(self, e: int, v: Tensor) -> None:
        """Pull the gradient v of v_e = theta x_e to x_e and to all vectors before it."""
        x, before, x_grad = self.vectors[e], self.vectors[:e], self.x_grad[:e]
        self.v_grad[e] = v
        self.x_grad[e].add_(product(self.theta0.mT, v), alpha=self.job.scales[e])
        if e == 0:
            return
        weights = self.weights[e, :e, None, None]
        seen, felt = (rows.view_as(before) for rows in self.pairs.room(before[:, :, 0].numel()))
        torch.mul(before, x, out=seen)
        torch.mul(before, weights, out=felt).mul_(v)
        z, y = self.space[0][:e], self.space[1][:e]
        torch.mm(seen.flatten(0, 1), self.mu.mT, out=z.flatten(0, 1))
        torch.mm(felt.flatten(0, 1), self.mu, out=y.flatten(0, 1))
        x_grad.addcmul_(x, y)
        x_grad.addcmul_(weights, z.mul_(v))
        self.x_grad[e] += y.mul_(before).sum(0)
        if self.weights_grad is not None:
            self.weights_grad[e, :e] = z.mul_(before).sum((1, 2))


class _Pairs:
    """sum of felt seen^T over very many pairs of vectors, by few large products."""

    def __init__(self, mu: Tensor, capacity: int, wanted: bool):
        self.felt, self.seen = (mu.new_empty(capacity, len(mu)) for _ in range(2))
        self.total = torch.zeros_like(mu) if wanted else None
        self.used = 0

    def room(self, count: int) -> tuple[Tensor, Tensor]:
        """Where the next pairs are to be written: seen, felt."""
        if self.total is None or self.used + count > len(self.felt):
            self.flush()
        rows = slice(self.used, self.used + count)
        self.used += count
        return self.seen[rows], self.felt[rows]

    def flush(self) -> Tensor | None:
        """Add what was written to the sum."""
        if self.total is not None:
            self.total.addmm_(self.felt[: self.used].mT, self.seen[: self.used])
        self.used = 0
        return self.total


def product(theta: Tensor, x: Tensor) -> Tensor:
    """theta x for x (..., batch, n) and theta (n, n) or (batch, n, n)."""
    return x @ theta.mT if theta.dim() == 2 else (theta @ x[..., None])[..., 0]


def _outer(v: Tensor, x: Tensor, theta: Tensor) -> Tensor:
    """sum of v x^T over evaluations, and over samples where theta is shared by them."""
    if theta.dim() == 2:
        return v.flatten(0, 1).mT @ x.flatten(0, 1)
    return v.permute(1, 2, 0) @ x.transpose(0, 1)


def _weigh(row: Sequence[float], slopes: Sequence[Tensor]) -> Tensor | None:
    """sum_i row_i slope_i; None where nothing is added."""
    total: Tensor | None = None
    for weight, slope in zip(row, slopes, strict=False):
        if weight:
            total = weight * slope if total is None else torch.add(total, slope, alpha=weight)
    return total


def _advance(x: Tensor, h: float, slopes: Sequence[Tensor], row: Sequence[float]) -> Tensor:
    total = _weigh(row, slopes)
    return x if total is None else torch.add(x, total, alpha=h)
