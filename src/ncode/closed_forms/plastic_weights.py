"""The numbers that theta is made of: those of `plastic.py`, from the method, the steps and the decay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..ode.tableau import Tableau


class Weights(NamedTuple):
    """For N steps of s stages, K = N s evaluations, and theta as a sum over theta_0 and the vectors x_k."""

    vectors: Tensor  # W (K, K): of x_k x_k^T at evaluation e
    scale: Tensor  # (K,): of theta_0 at evaluation e
    phi: Tensor  # (K,): of the step's first theta at evaluation e
    new: Tensor  # (K,): of x_k x_k^T at the end of its step
    keep: Tensor  # (N,): of a step's first theta at its end
    last: Tensor  # (K,): of x_k x_k^T at the end of all
    last_scale: Tensor  # (): of theta_0 at the end of all


def plan_weights(tableau: Tableau, sizes: Sequence[float], decay: Tensor) -> Weights:
    """The weights for steps of these sizes, as a function of the decay."""
    a, b = _square(tableau), torch.tensor(tableau.b, dtype=decay.dtype)
    count, identity = len(sizes), torch.eye(len(sizes), dtype=decay.dtype)
    known = {h: _step_weights(a, b, h, decay) for h in set(sizes)}
    phi, psi, keep, new = (torch.stack([known[h][part] for h in sizes]) for part in range(4))
    # left[n, m]: what is left before step n of what step m has added; scale[n]: the same of theta_0.
    left, scale = [torch.zeros_like(keep)], [torch.ones_like(decay)]
    for kept, unit in zip(keep, identity, strict=True):
        left.append(left[-1] * kept + unit)
        scale.append(scale[-1] * kept)
    earlier = phi[:, :, None, None] * torch.stack(left[:-1])[:, None, :, None] * new
    within = identity[:, None, :, None] * psi[:, :, None, :]
    evaluations = count * len(b)
    return Weights(
        vectors=(earlier + within).reshape(evaluations, evaluations),
        scale=(phi * torch.stack(scale[:-1])[:, None]).flatten(),
        phi=phi.flatten(),
        new=new.flatten(),
        keep=keep,
        last=(left[-1][:, None] * new).flatten(),
        last_scale=scale[-1],
    )


def _step_weights(a: Tensor, b: Tensor, h: float, decay: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """phi (s,), psi (s, s), keep () and new (s,) of one step."""
    identity = torch.eye(len(b), dtype=b.dtype)
    right = torch.cat([torch.ones_like(b)[:, None], h * a], 1)
    solved = torch.linalg.solve_triangular(identity + h * decay * a, right, upper=False, unitriangular=True)
    phi, psi = solved[:, 0], solved[:, 1:]
    return phi, psi, 1 - h * decay * (b @ phi), h * (b - decay * (b @ psi))


def _square(tableau: Tableau) -> Tensor:
    """The method's a as a square matrix."""
    rows = [(*row, *[0.0] * (tableau.stages - len(row))) for row in tableau.a]
    return torch.tensor(rows, dtype=torch.float64)
