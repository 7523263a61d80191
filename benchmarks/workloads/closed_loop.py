"""A closed loop: the weights of an MLP are driven along the trajectory by another MLP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..contest import Aim, Contest, Settings
from ..flow import Flow, compete

TITLE = "Closed loop: x (512, 2) and the 42 weights of its field (8 hidden units), driven by a shared MLP (16 units)"
AIMS = (Aim("compiled", "diffrax", 0.5), Aim("compiled", "diffrax", 0.5, "cuda"))
HIDDEN = 8


def contest(settings: Settings) -> Contest:
    """Everyone on the same problem."""
    return compete(flow(8 if settings.quick else 512, settings.seed), settings, AIMS)


def flow(batch: int, seed: int, hidden: int = HIDDEN, driver: int = 16, **more: Any) -> Flow:
    """The state is (x, theta), theta the weights of the field of x; the feedback's weights are shared."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    size = 5 * hidden + 2
    x0 = torch.cat([normal(batch, 2), 0.5 * normal(batch, size)], 1)
    weights = (normal(driver, 2), 0.3 * normal(driver), 0.3 * normal(size, driver))
    return Flow(x0, weights, {"slices": torch_field(hidden)}, {"slices": jax_field(hidden)}, shared=True, **more)


def torch_field(hidden: int) -> Any:
    """dx/dt of the MLP with weights theta, and dtheta/dt = feedback(x) - theta."""

    def f(t: Any, state: Tensor, weights: Sequence[Tensor]) -> Tensor:
        first, bias, last = weights
        x, theta = state[:, :2], state[:, 2:]
        w1, b1, w2, b2 = theta.split([2 * hidden, hidden, 2 * hidden, 2], 1)
        h = torch.tanh((w1.view(-1, hidden, 2) * x[:, None]).sum(-1) + b1)
        slope = (w2.view(-1, 2, hidden) * h[:, None]).sum(-1) + b2
        return torch.cat([slope, torch.tanh(x @ first.mT + bias) @ last.mT - theta], 1)

    return f


def jax_field(hidden: int) -> Any:
    """The same for one sample."""

    def f(t: Any, state: Any, weights: Any) -> Any:
        import jax.numpy as jnp

        first, bias, last = weights
        x, theta = state[:2], state[2:]
        w1, b1 = theta[: 2 * hidden].reshape(hidden, 2), theta[2 * hidden : 3 * hidden]
        w2, b2 = theta[3 * hidden : 5 * hidden].reshape(2, hidden), theta[5 * hidden :]
        slope = w2 @ jnp.tanh(w1 @ x + b1) + b2
        return jnp.concatenate([slope, last @ jnp.tanh(first @ x + bias) - theta])

    return f
