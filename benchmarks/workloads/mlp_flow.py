"""Per-sample MLP flow: every sample has its own weights, as open-loop N-CODE gives it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..contest import Aim, Contest, Settings
from ..flow import Flow, compete

TITLE = "Per-sample MLP flow: x (512, 2), 16 hidden units, weights of its own for each sample"
AIMS = (
    Aim("eager", "torchdiffeq", 0.8),
    Aim("compiled", "torchdiffeq", 0.35),
    Aim("compiled", "diffrax", 1.0),
    Aim("compiled", "torchdiffeq", 0.4, "cuda"),
    Aim("compiled", "diffrax", 1.0, "cuda"),
)


def contest(settings: Settings) -> Contest:
    """Everyone on the same problem."""
    return compete(flow(settings), settings, AIMS)


def flow(settings: Settings, **more: Any) -> Flow:
    """The problem."""
    x0, theta = draw(8 if settings.quick else 512, settings.seed)
    return Flow(x0, theta, TORCH, JAX, compiled=("baddbmm", "sum"), **more)


def draw(batch: int, seed: int, hidden: int = 16) -> tuple[Tensor, tuple[Tensor, ...]]:
    """x0, and theta = gamma(x0) with gamma linear: a damped rotation, bent a little differently for each sample.

    With g = W1' tanh(W1 x), the gradient of sum log cosh(W1 x), the field 0.3 (J - 0.2) g turns along the level lines
    of a bounded-below function and slowly descends: no sample runs away, however fast or long.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x0 = normal(batch, 2)
    w1 = normal(1, hidden, 2) + 0.15 * (normal(hidden * 2, 2) @ x0[..., None]).reshape(batch, hidden, 2)
    b1 = 0.3 * (normal(hidden, 2) @ x0[..., None])[..., 0]
    turn = torch.tensor([[-0.2, -1.0], [1.0, -0.2]], dtype=torch.float64)
    w2 = 0.3 * turn @ w1.mT
    b2 = 0.1 * (normal(2, 2) @ x0[..., None])[..., 0]
    return x0, (w1, b1, w2, b2)


def baddbmm(t: Any, x: Tensor, theta: Sequence[Tensor]) -> Tensor:
    w1, b1, w2, b2 = theta
    h = torch.tanh(torch.baddbmm(b1[..., None], w1, x[..., None]))
    return torch.baddbmm(b2[..., None], w2, h)[..., 0]


def bmm(t: Any, x: Tensor, theta: Sequence[Tensor]) -> Tensor:
    w1, b1, w2, b2 = theta
    h = torch.tanh(torch.bmm(w1, x[..., None])[..., 0] + b1)
    return torch.bmm(w2, h[..., None])[..., 0] + b2


def einsum(t: Any, x: Tensor, theta: Sequence[Tensor]) -> Tensor:
    w1, b1, w2, b2 = theta
    h = torch.tanh(torch.einsum("bij,bj->bi", w1, x) + b1)
    return torch.einsum("bij,bj->bi", w2, h) + b2


def multiply_sum(t: Any, x: Tensor, theta: Sequence[Tensor]) -> Tensor:
    w1, b1, w2, b2 = theta
    h = torch.tanh((w1 * x[:, None]).sum(-1) + b1)
    return (w2 * h[:, None]).sum(-1) + b2


def columns(t: Any, x: Tensor, theta: Sequence[Tensor]) -> Tensor:
    w1, b1, w2, b2 = theta
    h = torch.addcmul(b1, w1[..., 0], x[:, :1])
    h = torch.tanh(torch.addcmul(h, w1[..., 1], x[:, 1:]))
    return (w2 * h[:, None]).sum(-1) + b2


def dot_jax(t: Any, x: Any, theta: Any) -> Any:
    import jax.numpy as jnp

    w1, b1, w2, b2 = theta
    return w2 @ jnp.tanh(w1 @ x + b1) + b2


def sum_jax(t: Any, x: Any, theta: Any) -> Any:
    import jax.numpy as jnp

    w1, b1, w2, b2 = theta
    h = jnp.tanh((w1 * x).sum(-1) + b1)
    return (w2 * h).sum(-1) + b2


TORCH = {"baddbmm": baddbmm, "bmm": bmm, "einsum": einsum, "sum": multiply_sum, "columns": columns}
JAX = {"dot": dot_jax, "sum": sum_jax}
