"""The backward pass of an episode of `plastic.py`, whose docstring has the mathematics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .plastic_parts import Plan, outer_sum, product, weigh


class Kept(NamedTuple):
    """What the forward pass leaves."""

    vectors: Tensor  # x_e, (K, batch, n)
    driven: Tensor  # v_e
    theta0: Tensor
    mu: Tensor
    weights: Tensor  # W (K, K)
    scale: Tensor  # (K,)
    new: Tensor  # (K,)
    keep: Tensor  # (N,)
    trained: Sequence[Tensor]  # what rho touches


class Backward:
    """The gradients of one episode, gathered from its last evaluation to its first."""

    def __init__(self, plan: Plan, kept: Kept, wanted: Sequence[bool]):
        self.plan, self.kept = plan, kept
        vectors = kept.vectors
        _, _, for_mu, for_weights, *_ = wanted
        self.x_grad, self.v_grad = torch.zeros_like(vectors), torch.zeros_like(vectors)
        self.weights_grad = torch.zeros_like(kept.weights) if for_weights else None
        self.trained_grads: list[Tensor | None] = [None] * len(kept.trained)
        longest = plan.stages if plan.formed else len(vectors)
        self.space = vectors.new_empty(2, longest, *vectors.shape[1:])
        self.pairs = _Pairs(kept.mu, 2 * longest * vectors.shape[1], for_mu)
        self.past = (_Formed if plan.formed else _Listed)(self, wanted)

    def run(self, ends_grad: Tensor | None, vectors_grad: Tensor | None) -> tuple[Tensor | None, ...]:
        """Pull the gradients of the outputs through all presentations: those of all inputs, as they were given."""
        if vectors_grad is not None:
            self.x_grad += vectors_grad
        first, grads = len(self.kept.vectors), []
        presentations = first // (len(self.plan.sizes) * self.plan.stages)
        for number in range(presentations - 1, -1, -1):
            grad = torch.zeros_like(self.kept.vectors[0]) if ends_grad is None else ends_grad[number]
            for h in reversed(self.plan.sizes):
                first -= self.plan.stages
                grad = self._pull_step(first, h, grad)
            grads.append(grad)
        theta0_grad, scale_grad, new_grad, keep_grad = self.past.finish()
        rest = (self.weights_grad, scale_grad, new_grad, keep_grad, *self.trained_grads)
        return torch.stack(grads[::-1], 1), theta0_grad, self.pairs.flush(), *rest

    def _pull_step(self, first: int, h: float, end: Tensor) -> Tensor:
        """Pull the gradient of x after a step, whose first evaluation is given, to x before it."""
        a, b = self.plan.tableau.a, self.plan.tableau.b
        theta, since = self.past.enter(first)
        for i in range(len(b) - 1, -1, -1):
            column = (b[i], *(a[j][i] for j in range(i + 1, len(b))))
            later = self.x_grad[first + i + 1 : first + len(b)].unbind()
            slope = weigh([h * weight for weight in column], [end, *later])
            if slope is not None:
                self._pull_product(theta, since, first + i, self._pull_rho(first + i, slope))
        self.past.leave(first)
        return end + self.x_grad[first : first + len(b)].sum(0)

    def _pull_rho(self, e: int, slope: Tensor) -> Tensor:
        """Pull the gradient of rho(v_e) to v_e and to what rho touches."""
        with torch.enable_grad():
            v = self.kept.driven[e].detach().requires_grad_()
            value = self.plan.rho(v)
        if not value.requires_grad:
            return torch.zeros_like(v)
        got = torch.autograd.grad(value, [v, *self.kept.trained], slope, allow_unused=True)
        for i, grad in enumerate(got[1:]):
            if grad is not None:
                old = self.trained_grads[i]
                self.trained_grads[i] = grad if old is None else old + grad
        return torch.zeros_like(v) if got[0] is None else got[0]

    def _pull_product(self, theta: Tensor, since: int, e: int, v: Tensor) -> None:
        """Pull the gradient v of v_e = theta x_e + (the vectors between `since` and e) to x_e and to these vectors."""
        x, before, x_grad = self.kept.vectors[e], self.kept.vectors[since:e], self.x_grad[since:e]
        self.v_grad[e] = v
        self.x_grad[e].add_(product(theta.mT, v), alpha=self.plan.scale[e])
        if since == e:
            return
        weights = self.kept.weights[e, since:e, None, None]
        seen, felt = (rows.view_as(before) for rows in self.pairs.room(before[:, :, 0].numel()))
        torch.mul(before, x, out=seen)
        torch.mul(before, weights, out=felt).mul_(v)
        z, y = self.space[0, : e - since], self.space[1, : e - since]
        torch.mm(seen.flatten(0, 1), self.kept.mu.mT, out=z.flatten(0, 1))
        torch.mm(felt.flatten(0, 1), self.kept.mu, out=y.flatten(0, 1))
        x_grad.addcmul_(x, y)
        x_grad.addcmul_(weights, z.mul_(v))
        self.x_grad[e].add_(y.mul_(before).sum(0))
        if self.weights_grad is not None:
            self.weights_grad[e, since:e] = z.mul_(before).sum((1, 2))


class _Listed:
    """theta before a step as theta_0 and the list of all vectors."""

    def __init__(self, back: Backward, wanted: Sequence[bool]):
        self.back, self.wanted = back, wanted

    def enter(self, first: int) -> tuple[Tensor, int]:
        """What multiplies x in this step: a matrix, and the vectors since the first."""
        return self.back.kept.theta0, 0

    def leave(self, first: int) -> None:
        """Nothing is carried from step to step."""

    def finish(self) -> tuple[Tensor | None, Tensor | None, None, None]:
        """The gradients of theta_0 and of its scale, each by one product over all evaluations."""
        kept, v_grad = self.back.kept, self.back.v_grad
        _, for_theta0, _, _, for_scale, *_ = self.wanted
        theta0_grad = scale_grad = None
        if for_theta0:
            scaled = kept.scale[:, None, None] * v_grad
            if kept.theta0.dim() == 2:
                theta0_grad = scaled.flatten(0, 1).mT @ kept.vectors.flatten(0, 1)
            else:
                theta0_grad = scaled.permute(1, 2, 0) @ kept.vectors.transpose(0, 1)
        if for_scale:
            scale_grad = (v_grad * product(kept.theta0, kept.vectors)).sum((1, 2))
        return theta0_grad, scale_grad, None, None


class _Formed:
    """theta before a step as a matrix a sample, made again from the list of vectors, and theta's gradient likewise."""

    def __init__(self, back: Backward, wanted: Sequence[bool]):
        kept, self.back, self.wanted = back.kept, back, wanted
        self.theta, self.theta_grad = kept.theta0, None
        self.scale_grad, self.new_grad = torch.zeros_like(kept.scale), torch.zeros_like(kept.new)
        self.keep_grad = torch.zeros_like(kept.keep)

    def enter(self, first: int) -> tuple[Tensor, int]:
        """Pull theta's gradient after this step to the vectors of the step, and form theta before it."""
        kept, rows = self.back.kept, slice(first, first + self.back.plan.stages)
        earlier = kept.vectors[:first]
        self.theta = self.back.plan.total[first] * kept.theta0
        if first:
            self.theta = torch.addcmul(self.theta, kept.mu, outer_sum(kept.weights[first, :first], earlier))
        if self.theta_grad is not None:
            self._pull_growth(self.theta_grad, rows)
        return self.theta, first

    def _pull_growth(self, theta_grad: Tensor, rows: slice) -> None:
        """Through theta' = keep theta + mu * sum_j new_j x_j x_j^T."""
        kept, back = self.back.kept, self.back
        vectors, new, pulled = kept.vectors[rows].transpose(0, 1), kept.new[rows], kept.mu * theta_grad
        there = vectors @ pulled.mT
        back.x_grad[rows] += new[:, None, None] * (there + vectors @ pulled).transpose(0, 1)
        if back.pairs.total is not None:
            back.pairs.total += (theta_grad * outer_sum(new, kept.vectors[rows])).sum(0)
        if self.wanted[5]:
            self.new_grad[rows] = (vectors * there).sum((0, 2))
            self.keep_grad[rows.start // back.plan.stages] = (theta_grad * self.theta).sum()

    def leave(self, first: int) -> None:
        """The gradient of theta before this step."""
        kept, step = self.back.kept, first // self.back.plan.stages
        rows = slice(first, first + self.back.plan.stages)
        felt, seen = (kept.scale[rows, None, None] * self.back.v_grad[rows]).permute(1, 2, 0), kept.vectors[rows]
        if self.theta_grad is None:
            self.theta_grad = felt @ seen.transpose(0, 1)
        else:
            self.theta_grad.baddbmm_(felt, seen.transpose(0, 1), beta=self.back.plan.keep[step])
        if self.wanted[4]:
            self.scale_grad[rows] = (self.back.v_grad[rows] * product(self.theta, seen)).sum((1, 2))

    def finish(self) -> tuple[Tensor | None, ...]:
        """The gradients of theta_0 and of the weights."""
        theta0_grad = self.theta_grad
        if theta0_grad is not None and self.back.kept.theta0.dim() == 2:
            theta0_grad = theta0_grad.sum(0)
        return theta0_grad, self.scale_grad, self.new_grad, self.keep_grad


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
