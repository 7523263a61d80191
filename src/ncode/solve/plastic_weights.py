"""The numbers that theta is made of: W and scale of `plastic.py`, from the method, the steps and the decay."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .tableau import Tableau


def plan_weights(tableau: Tableau, sizes: Sequence[float], decay: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """W (K, K) and scale (K,) of equation (1), and the weights (K,) and scale () of theta at the end."""
    a, b = _square(tableau), torch.tensor(tableau.b, dtype=decay.dtype)
    stages, count = len(b), len(sizes)
    known = {h: _step_weights(a, b, h, decay) for h in set(sizes)}
    phi, psi, keep, new = (torch.stack([known[h][part] for h in sizes]) for part in range(4))
    # left[n, m]: what is left before step n of what step m has added.
    left = [torch.zeros(count, dtype=decay.dtype)]
    scale = [torch.ones((), dtype=decay.dtype)]
    for n, unit in enumerate(torch.eye(count, dtype=decay.dtype)):
        left.append(left[-1] * keep[n] + unit)
        scale.append(scale[-1] * keep[n])
    before = torch.stack(left[:-1])
    weights = phi[:, :, None, None] * before[:, None, :, None] * new[None, None]
    weights = weights + torch.eye(count, dtype=decay.dtype)[:, None, :, None] * psi[:, :, None, :]
    scales = phi * torch.stack(scale[:-1])[:, None]
    evaluations = count * stages
    return (
        weights.reshape(evaluations, evaluations),
        scales.reshape(evaluations),
        (left[-1][:, None] * new).reshape(evaluations),
        scale[-1],
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
