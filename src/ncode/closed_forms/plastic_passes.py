"""The forward and the backward pass of an episode of plastic.py, whose docstring has the mathematics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..errors import InputError
from ..ode.captures import find_captures
from ..ode.gradients.first_order import forbid_double_backward
from ..ode.gradients.function import isolate_hooked
from ..ode.system import State
from ..ode.tableau import Tableau

_NO_SECOND_DERIVATIVE = 'an episode has no second derivatives: use ncode.solve with feedback and gradient="autograd"'

_T = TypeVar("_T")


class Weights(NamedTuple):
    """The weights of theta as a sum over theta_0 and products l_k r_k^T. N steps of s stages: K = N s evaluations."""

    vectors: Tensor  # W (K, K): of l_k r_k^T at evaluation e
    scale: Tensor  # (K,): of theta_0 at evaluation e
    phi: Tensor  # (K,): of theta at the start of the step, at evaluation e
    keep: Tensor  # (N,): of theta at the start of a step, at its end
    last: Tensor  # (K,): of l_k r_k^T at the end of the episode
    last_scale: Tensor  # (): of theta_0 at the end of the episode


@dataclass(frozen=True, eq=False)
class Plan:
    """An episode apart from its tensors."""

    rule: str  # one of RULES
    tableau: Tableau
    sizes: Sequence[Sequence[float]]  # step sizes of each presentation
    rho: Callable[[Tensor], Tensor]
    formed: bool  # whether theta is formed at the start of each step (the matrix formulation)
    scale: Sequence[float]  # per evaluation: the weight of theta_0 or, if formed, of theta at the start of the step
    total: Sequence[float]  # per evaluation: the weight of theta_0
    keep: Sequence[float]  # per step: the weight of theta at its start, at its end

    @property
    def stages(self) -> int:
        """Evaluations per step."""
        return self.tableau.stages


RULES = ("hebb", "oja", "delta")


def factors(rule: str, vectors: _T, corrected: _T | None) -> tuple[_T, _T]:
    """l and r of all evaluations, or their gradients: x itself, or what a rule has corrected it to."""
    if corrected is None:
        return vectors, vectors
    return (corrected, vectors) if rule == "delta" else (vectors, corrected)


def product(theta: Tensor, x: Tensor, out: Tensor | None = None) -> Tensor:
    """theta x for x (..., batch, n) and theta (n, n) or (batch, n, n)."""
    if theta.dim() == 2:
        return torch.matmul(x, theta.mT, out=out)
    # A row times a matrix is seven times faster on a CPU than a matrix times a column.
    return torch.matmul(x[..., None, :], theta.mT, out=None if out is None else out[..., None, :])[..., 0, :]


def outer_sum(weights: Tensor, lefts: Tensor, rights: Tensor) -> Tensor:
    """sum_k w_k l_k r_k^T (batch, n, n), of vectors (k, batch, n)."""
    return (weights[:, None, None] * lefts).permute(1, 2, 0) @ rights.transpose(0, 1)


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


def run_episode(
    plan: Plan,
    stimuli: Tensor,
    theta0: Tensor,
    mu: Tensor,
    weights: Weights,
    leak: Tensor | None = None,
    free: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """x at the end of each presentation (P, batch, n), and the factors l and r of all evaluations (K, batch, n).

    `leak` is (); `free` (P, batch, n) is 0 where x is held, otherwise 1.
    """
    scale = weights.phi if plan.formed else weights.scale
    numbers = (part.to(stimuli.device, stimuli.dtype) for part in (weights.vectors, scale, weights.keep))
    trained = _find_trained(plan.rho, stimuli[:, 0])
    inputs = (stimuli, theta0, mu, *numbers, leak, free, *trained)
    ends, vectors, corrected = _EpisodeFunction.apply(plan, *inputs)  # pyright: ignore[reportGeneralTypeIssues]
    return ends, *factors(plan.rule, vectors, corrected)


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
    def forward(ctx: Any, plan: Plan, stimuli: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor | None]:
        with torch.autocast(stimuli.device.type, enabled=False):
            ends, computed = _Forward(plan, stimuli, *inputs[:3], *inputs[5:7]).run()
        ctx.plan = plan
        ctx.save_for_backward(*computed, *inputs)
        ctx.set_materialize_grads(False)
        return ends, computed.vectors, computed.corrected

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        tensors = ctx.saved_tensors
        saved = SavedTensors(Computed(*tensors[:3]), *tensors[3:10], trained=tensors[10:])
        autocast = torch.autocast(saved.theta0.device.type, enabled=False)
        rho, trained = isolate_hooked(ctx.plan.rho, saved.trained)
        plan, saved = replace(ctx.plan, rho=rho), saved._replace(trained=trained)
        with torch.no_grad(), autocast:
            got = _Backward(plan, saved, ctx.needs_input_grad[1:]).run(*grads)
        given = [tensor for tensor in (*tensors, *grads) if tensor is not None]
        return None, *forbid_double_backward(_NO_SECOND_DERIVATIVE, given, got)


class Computed(NamedTuple):
    """What the forward pass computes at every evaluation, (K, batch, n) each."""

    vectors: Tensor  # x_e
    driven: Tensor  # v_e = theta x_e
    corrected: Tensor | None  # x_e - theta x_e for the delta rule, x_e - theta^T x_e for Oja's


class SavedTensors(NamedTuple):
    """What the forward pass keeps for backward."""

    computed: Computed
    theta0: Tensor
    mu: Tensor
    weights: Tensor  # W (K, K)
    scale: Tensor  # (K,)
    keep: Tensor  # (N,)
    leak: Tensor | None  # ()
    free: Tensor | None  # (P, batch, n)
    trained: Sequence[Tensor]  # tensors that rho uses and that require a gradient


class _Forward:
    """One episode, evaluation after evaluation."""

    def __init__(
        self,
        plan: Plan,
        stimuli: Tensor,
        theta0: Tensor,
        mu: Tensor,
        weights: Tensor,
        leak: Tensor | None,
        free: Tensor | None,
    ):
        self.plan, self.stimuli, self.theta, self.mu, self.weights = plan, stimuli, theta0, mu, weights
        self.leak, self.free = leak, free
        (batch, _, n), count = stimuli.shape, len(weights)
        self.vectors, self.driven = (stimuli.new_empty(count, batch, n) for _ in range(2))
        self.corrected = None if plan.rule == "hebb" else stimuli.new_empty(count, batch, n)
        self.lefts, self.rights = factors(plan.rule, self.vectors, self.corrected)
        self.space = stimuli.new_empty(2, plan.stages if plan.formed else count, batch, n)
        self.e = self.since = 0  # this evaluation, and the first whose product theta does not contain yet

    def run(self) -> tuple[Tensor, Computed]:
        """x at the ends (P, batch, n), and what is computed at every evaluation."""
        ends = []
        for number, (x, sizes) in enumerate(zip(self.stimuli.unbind(1), self.plan.sizes, strict=True)):
            for h in sizes:
                x = self._step(x, h, None if self.free is None else self.free[number])
            ends.append(x)
        return torch.stack(ends), Computed(self.vectors, self.driven, self.corrected)

    def _step(self, x: Tensor, h: float, free: Tensor | None) -> Tensor:
        if self.plan.formed and self.e:
            before = slice(self.since, self.e)
            grown = outer_sum(self.weights[self.e, before], self.lefts[before], self.rights[before])
            self.theta = torch.addcmul(self.plan.keep[self.e // self.plan.stages - 1] * self.theta, self.mu, grown)
            self.since = self.e
        slopes: list[Tensor] = []
        for row in self.plan.tableau.a:
            start = self.vectors[self.e].copy_(advance(x, h, slopes, row))
            slope = self.plan.rho(self._evaluate(start))
            if self.leak is not None:
                slope = slope - self.leak * start
            slopes.append(slope if free is None else slope * free)
            self.e += 1
        return advance(x, h, slopes, self.plan.tableau.b)

    def _evaluate(self, x: Tensor) -> Tensor:
        """theta x at this evaluation; keeps it, and the corrected x."""
        e, rule = self.e, self.plan.rule
        before = slice(self.since, e)
        lefts, rights = self.lefts[before], self.rights[before]
        v = self._couple(self.theta, self.mu, lefts, rights, x, self.driven[e])
        if self.corrected is not None:
            there = self.corrected[e]
            u = v if rule == "delta" else self._couple(self.theta.mT, self.mu.mT, rights, lefts, x, there)
            torch.sub(x, u, out=there)
        return v

    def _couple(self, theta: Tensor, mu: Tensor, lefts: Tensor, rights: Tensor, x: Tensor, out: Tensor) -> Tensor:
        """Equation (1): scale theta x + sum_k W_ek l_k * (mu (r_k * x)), written to `out`."""
        e, count = self.e, len(lefts)
        pairs, mapped = self.space[0, :count], self.space[1, :count]
        torch.mul(rights, x, out=pairs)
        torch.mm(pairs.flatten(0, 1), mu.mT, out=mapped.flatten(0, 1))
        product(theta, x, out=out)
        weights = self.weights[e, self.since : e]
        out.view(-1).addmv_(mapped.mul_(lefts).flatten(1).mT, weights, beta=self.plan.scale[e])
        return out


class _Backward:
    """The gradients of one episode, accumulated from its last evaluation to its first."""

    def __init__(self, plan: Plan, saved: SavedTensors, needs_grad: Sequence[bool]):
        self.plan, self.saved = plan, saved
        _, _, for_mu, self.for_weights, *_ = needs_grad
        vectors, _, corrected = saved.computed
        self.lefts, self.rights = factors(plan.rule, vectors, corrected)
        self.x_grad, self.v_grad = torch.zeros_like(vectors), torch.zeros_like(vectors)
        self.corrected_grad = None if corrected is None else torch.zeros_like(vectors)
        self.left_grad, self.right_grad = factors(plan.rule, self.x_grad, self.corrected_grad)
        self.theta, self.theta_grad = saved.theta0, None
        self.mu_grad = torch.zeros_like(saved.mu) if for_mu else None
        numbers = (saved.weights, saved.scale, saved.keep)
        self.weights_grad, self.scale_grad, self.keep_grad = map(torch.zeros_like, numbers)
        self.leak_grad = None if saved.leak is None else torch.zeros_like(saved.leak)
        self.trained_grads: list[Tensor | None] = [None] * len(saved.trained)

    def run(
        self, ends_grad: Tensor | None, vectors_grad: Tensor | None, corrected_grad: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """The gradients of all inputs of `_EpisodeFunction`, from those of its outputs."""
        if vectors_grad is not None:
            self.x_grad += vectors_grad
        if corrected_grad is not None and self.corrected_grad is not None:
            self.corrected_grad += corrected_grad
        first, grads = len(self.x_grad), []
        for number in range(len(self.plan.sizes) - 1, -1, -1):
            grad = torch.zeros_like(self.x_grad[0]) if ends_grad is None else ends_grad[number]
            free = None if self.saved.free is None else self.saved.free[number]
            for h in reversed(self.plan.sizes[number]):
                first -= self.plan.stages
                grad = self._step_backward(first, h, grad, free)
            grads.append(grad)
        if self.theta_grad is not None and self.theta_grad.dim() > self.saved.theta0.dim():
            self.theta_grad = self.theta_grad.sum(0)
        numbers = (self.weights_grad, self.scale_grad, self.keep_grad, self.leak_grad, None)
        return torch.stack(grads[::-1], 1), self.theta_grad, self.mu_grad, *numbers, *self.trained_grads

    def _step_backward(self, first: int, h: float, end: Tensor, free: Tensor | None) -> Tensor:
        """The gradient of x before a step, whose first evaluation is `first`, from that of x after it."""
        a, b, since = self.plan.tableau.a, self.plan.tableau.b, first if self.plan.formed else 0
        if self.plan.formed:
            self._form_theta(first)
        for i in range(len(b) - 1, -1, -1):
            column = (b[i], *(a[j][i] for j in range(i + 1, len(b))))
            later = self.x_grad[first + i + 1 : first + len(b)].unbind()
            slope = weighted_sum([h * weight for weight in column], [end, *later])
            v = None if slope is None else self._slope_backward(first + i, slope if free is None else slope * free)
            self._evaluation_backward(since, first + i, v)
        if self.plan.formed:
            self._theta_backward(slice(first, first + len(b)), self.plan.keep[first // len(b)])
        elif first == 0:
            self._theta_backward(slice(None), 1.0)
        return end + self.x_grad[first : first + len(b)].sum(0)

    def _slope_backward(self, e: int, slope: Tensor) -> Tensor:
        """The gradient of v_e from that of rho(v_e) - leak x_e; adds those of what rho uses and of the leak."""
        leak = self.saved.leak
        if leak is not None and self.leak_grad is not None:
            self.x_grad[e].sub_(leak * slope)
            self.leak_grad -= (slope * self.saved.computed.vectors[e]).sum()
        with torch.enable_grad():
            v = self.saved.computed.driven[e].detach().requires_grad_()
            value = self.plan.rho(v)
        if not value.requires_grad:
            return torch.zeros_like(v)
        got = torch.autograd.grad(value, [v, *self.saved.trained], slope, allow_unused=True)
        for i, grad in enumerate(got[1:]):
            if grad is not None:
                old = self.trained_grads[i]
                self.trained_grads[i] = grad if old is None else old + grad
        return torch.zeros_like(v) if got[0] is None else got[0]

    def _evaluation_backward(self, since: int, e: int, v: Tensor | None) -> None:
        """Go back through theta x_e and the corrected x_e, from the gradient v of theta x_e in the slope."""
        if self.corrected_grad is not None:
            corrected = self.corrected_grad[e]
            self.x_grad[e] += corrected
            if self.plan.rule == "delta":
                v = -corrected if v is None else v - corrected
            else:
                self._product_backward(since, e, -corrected, transposed=True)
        if v is not None:
            self.v_grad[e] = v
            self._product_backward(since, e, v)

    def _product_backward(self, since: int, e: int, v: Tensor, transposed: bool = False) -> None:
        """Add the gradients of x_e and of the factors from `since` to e, from the gradient v of theta x_e."""
        theta, mu, mu_grad, x = self.theta, self.saved.mu, self.mu_grad, self.saved.computed.vectors[e]
        lefts, rights, left_grad, right_grad = self.lefts, self.rights, self.left_grad, self.right_grad
        if transposed:
            theta, mu, mu_grad = theta.mT, mu.mT, None if mu_grad is None else mu_grad.mT
            lefts, rights, left_grad, right_grad = rights, lefts, right_grad, left_grad
        self.x_grad[e].add_(product(theta.mT, v), alpha=self.plan.scale[e])
        if since == e:
            return
        before, weights = slice(since, e), self.saved.weights[e, since:e, None, None]
        right, left = rights[before] * x, (lefts[before] * weights).mul_(v)
        z, y = right @ mu.mT, left @ mu
        if mu_grad is not None:
            mu_grad.addmm_(left.flatten(0, 1).mT, right.flatten(0, 1))
        right_grad[before].addcmul_(x, y)
        left_grad[before].addcmul_(weights, z.mul_(v))
        self.x_grad[e].add_(y.mul_(rights[before]).sum(0))
        if self.for_weights:
            self.weights_grad[e, before] += z.mul_(lefts[before]).sum((1, 2))

    def _form_theta(self, first: int) -> None:
        """Form theta before a step, and go back through its growth to theta' = keep theta + mu * sum_j new_j l_j r_j^T.

        The weights new_j are those of this step in the first evaluation after it.
        """
        saved, end = self.saved, first + self.plan.stages
        self.theta = self.plan.total[first] * saved.theta0
        if first:
            grown = outer_sum(saved.weights[first, :first], self.lefts[:first], self.rights[:first])
            self.theta = torch.addcmul(self.theta, saved.mu, grown)
        if self.theta_grad is None:
            return
        lefts, rights = self.lefts[first:end], self.rights[first:end]
        new, pulled = saved.weights[end, first:end], saved.mu * self.theta_grad
        left = rights.transpose(0, 1) @ pulled.mT
        self.left_grad[first:end] += new[:, None, None] * left.transpose(0, 1)
        self.right_grad[first:end] += new[:, None, None] * (lefts.transpose(0, 1) @ pulled).transpose(0, 1)
        if self.mu_grad is not None:
            self.mu_grad += (self.theta_grad * outer_sum(new, lefts, rights)).sum(0)
        if self.for_weights:
            self.weights_grad[end, first:end] = (lefts.transpose(0, 1) * left).sum((0, 2))
            self.keep_grad[first // self.plan.stages] = (self.theta_grad * self.theta).sum()

    def _theta_backward(self, rows: slice, keep: float) -> None:
        """Update the gradient of theta to before these evaluations, from that after them."""
        lefts, rights, scale = self.v_grad[rows], self.saved.computed.vectors[rows], self.saved.scale[rows]
        if self.for_weights:
            self.scale_grad[rows] = (lefts * product(self.theta, rights)).sum((1, 2))
        if self.plan.rule == "oja" and self.corrected_grad is not None:
            there = -self.corrected_grad[rows]
            if self.for_weights:
                self.scale_grad[rows] += (there * product(self.theta.mT, rights)).sum((1, 2))
            lefts, rights, scale = torch.cat([lefts, rights]), torch.cat([rights, there]), torch.cat([scale, scale])
        scaled = scale[:, None, None] * lefts
        if self.theta_grad is not None:
            self.theta_grad.baddbmm_(scaled.permute(1, 2, 0), rights.transpose(0, 1), beta=keep)
        elif self.theta.dim() == 2:
            self.theta_grad = scaled.flatten(0, 1).mT @ rights.flatten(0, 1)
        else:
            self.theta_grad = scaled.permute(1, 2, 0) @ rights.transpose(0, 1)
