"""diffrax's rows of `benchmarks.events`: five solves with an event each, scanned, mapped over the balls and jitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import optimistix
import torch

from .events import BOUNCES, T1, TOLERANCE, Balls, Way

MAX_STEPS = 32  # per bounce; about three are taken
INPUTS = (0, 1, 2)


def by_diffrax(balls: Balls, kind: str, device: str) -> Way:
    jax.config.update("jax_enable_x64", True)
    place = jax.devices("gpu" if device == "cuda" else "cpu")[0]
    given = [jax.device_put(it.detach().cpu().numpy(), place) for it in balls.inputs]
    weights = jax.device_put(balls.weights.cpu().numpy(), place)
    forward = jax.jit(jax.vmap(_bounces(diffrax.RecursiveCheckpointAdjoint())))
    step = jax.jit(_reverse(weights) if kind == "checkpointed" else _forward_mode(weights))
    return Way(
        lambda: jax.block_until_ready(forward(*given)),
        lambda: jax.block_until_ready(step(*given)),
        lambda result: _read(*result, device=device),
    )


def _bounces(adjoint: diffrax.AbstractAdjoint) -> Callable[..., Any]:
    """The times at which one ball meets the ground, as a function of its gravity, height and restitution."""
    # Newton's method starts behind the ground and meets no other root. Bisection takes longer and is less exact.
    root_finder = optimistix.Newton(rtol=1e-10, atol=1e-10)
    ground = diffrax.Event(lambda t, y, args, **_: y[0], root_finder, direction=False)
    fall = diffrax.ODETerm(lambda t, y, gravity: jnp.stack([y[1], -gravity]))

    def times(gravity: Any, height: Any, restitution: Any) -> Any:
        def bounce(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], Any]:
            sol = diffrax.diffeqsolve(
                *(fall, diffrax.Dopri5(), carry[0], T1, None, carry[1]),
                args=gravity,
                event=ground,
                stepsize_controller=diffrax.PIDController(**TOLERANCE),
                adjoint=adjoint,
                max_steps=MAX_STEPS,
            )
            t, y = sol.ts[-1], sol.ys[-1]
            return (t, jnp.stack([jnp.zeros_like(t), -restitution * y[1]])), t

        start = jnp.zeros_like(height), jnp.stack([height, jnp.zeros_like(height)])
        return jax.lax.scan(bounce, start, None, length=BOUNCES)[1]

    return times


def _reverse(weights: Any) -> Callable[..., Any]:
    times = jax.vmap(_bounces(diffrax.RecursiveCheckpointAdjoint()))

    def loss(*inputs: Any) -> Any:
        found = times(*inputs)
        return (found * weights).sum(), found

    def step(*inputs: Any) -> Any:
        (_, found), gradients = jax.value_and_grad(loss, INPUTS, has_aux=True)(*inputs)
        return found, gradients

    return step


def _forward_mode(weights: Any) -> Callable[..., Any]:
    times = _bounces(diffrax.ForwardMode())

    def loss(*inputs: Any) -> Any:
        found = times(*inputs)
        return (found * weights).sum(), found

    def step(*inputs: Any) -> Any:
        gradients, found = jax.vmap(jax.jacfwd(loss, INPUTS, has_aux=True))(*inputs)
        return found, gradients

    return step


def _read(times: Any, gradients: Any, device: str) -> tuple[Any, list[Any]]:
    tensors = [torch.from_numpy(np.array(it)).to(device) for it in (times, *gradients)]
    return tensors[0], tensors[1:]
