"""The last state of a sample that fails, which `keep_last` keeps, with its time as a constant.

Steps move with the times of events and of jumps, and the last state with them:

    z(T) = z_last - dz/dt (t_last - T),     T the value of t_last

has the gradient of a state at a fixed time.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .problem import Problem
from .system import State, expand_like


def at_fixed_time(problem: Problem, z: State, t: Tensor, moved: Tensor, mask: Tensor) -> State:
    """The states z of samples in the mask, without the gradient of their times.

    `t` (batch,) are the times in the problem, and `moved` any times that move as they do.
    """
    shift = torch.where(mask, moved - moved.detach(), 0.0)
    if not shift.requires_grad:
        return z
    system, fixed = problem.system, tuple(leaf.detach() for leaf in z)
    with torch.no_grad():
        theta, _ = system.enter(problem.theta, t, torch.zeros_like(t))  # the side that the last step came from
        slope = system.bind(theta)(system.clock(theta, t), fixed)
    slope = [torch.where(k.isfinite(), k, 0) for k in slope]
    shifts = expand_like(shift, z)
    return tuple(leaf - k * by.to(leaf.real.dtype) for leaf, k, by in zip(z, slope, shifts, strict=True))


def last_at_fixed_time(problem: Problem, z: State, t: Tensor, failed: Tensor) -> State:
    """The last states of samples that failed at t, in a solve whose steps move with the times of jumps."""
    moved, _ = problem.system.moved_step(problem.theta, problem.span.detach(), t, torch.zeros_like(t))
    return at_fixed_time(problem, z, t, moved, failed)
