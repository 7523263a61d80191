"""A plain neural ODE: one set of weights, caught in a closure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..contest import Aim, Contest, Settings
from ..flow import Flow, compete

TITLE = "Plain NODE: x (1024, 2), shared weights, 64 hidden units"
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


def flow(settings: Settings) -> Flow:
    """The same damped rotation as in the per-sample flow, with more units and no biases of note."""
    generator = torch.Generator().manual_seed(settings.seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    hidden = 64
    x0 = normal(8 if settings.quick else 1024, 2)
    w1, b1, b2 = normal(hidden, 2), 0.3 * normal(hidden), 0.1 * normal(2)
    turn = torch.tensor([[-0.2, -1.0], [1.0, -0.2]], dtype=torch.float64)
    w2 = 5 / math.sqrt(hidden) ** 2 * turn @ w1.mT
    return Flow(x0, (w1, b1, w2, b2), TORCH, JAX, shared=True)


def linear(t: Any, x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    w1, b1, w2, b2 = weights
    return functional.linear(torch.tanh(functional.linear(x, w1, b1)), w2, b2)


def dot_jax(t: Any, x: Any, weights: Any) -> Any:
    import jax.numpy as jnp

    w1, b1, w2, b2 = weights
    return w2 @ jnp.tanh(w1 @ x + b1) + b2


TORCH = {"linear": linear}
JAX = {"dot": dot_jax}
