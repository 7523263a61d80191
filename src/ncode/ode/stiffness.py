"""Whether an explicit method was slow because its problem is stiff: then stability, not accuracy, keeps steps short."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..errors import Status
from .linearise import join
from .system import RightHandSide, State

_ITERATIONS = 12


def mark_stiff(
    system: RightHandSide, t: Tensor, t1: Tensor, h: Tensor, z: State, theta: Sequence[Tensor], status: Tensor
) -> Tensor:
    """The statuses with STIFF for samples that ran out of steps and are stiff where they stopped.

    They are if the largest eigenvalue of the Jacobian is negative in the direction of time, leaves the time that a step
    takes to decay, and the time to t1 for a hundred such decays.
    """
    late = status == Status.MAX_STEPS
    if not bool(late.any()) or z[0].is_complex():
        return status
    rate = _dominant_rate(system, t, z, theta)
    stiff = late & (rate * h < -1) & (rate * (t1 - t) < -100)
    return torch.where(stiff, Status.STIFF, status).to(status.dtype)


def _dominant_rate(system: RightHandSide, t: Tensor, z: State, theta: Sequence[Tensor]) -> Tensor:
    """The real part of the largest eigenvalue of each sample's Jacobian, (batch,), by power iterations."""
    with torch.enable_grad():
        leaves = tuple(leaf.detach().requires_grad_() for leaf in z)
        slope = join(system.bind(theta)(system.clock(theta, t), leaves))
    if not slope.requires_grad:
        return torch.zeros_like(t)
    # Any vector does that is not orthogonal to the one that is looked for.
    count = slope.shape[1]
    v = torch.linspace(1, 2, count, dtype=slope.dtype, device=slope.device).sin().expand(slope.shape)
    v = v / v.norm(dim=1, keepdim=True)
    rate = torch.zeros_like(slope[:, 0])
    for _ in range(_ITERATIONS):
        grads = torch.autograd.grad(slope, leaves, v, retain_graph=True, allow_unused=True)
        pulled = join([torch.zeros_like(leaf) if g is None else g for g, leaf in zip(grads, leaves, strict=True)])
        rate = (v * pulled).sum(1)
        v = pulled / pulled.norm(dim=1, keepdim=True).clamp_min(torch.finfo(pulled.dtype).tiny)
    return rate.detach().to(t.dtype)
