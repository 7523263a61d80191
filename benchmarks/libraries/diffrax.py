"""diffrax's rows: jitted, a checkpointed or a backward-solved gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import torch

from ..contest import Entry, Nfe, Outcome, Runner, Settings, Skip
from ..flow import Flow, loss_of

STAGES = 6  # of dopri5, whose last slope is handed on; the first slope and the first step take two more


def entries(flow: Flow, settings: Settings) -> list[Entry]:
    """Rows by gradient; within each, one solve for the batch against one solve per sample, and the formulation."""
    jax.config.update("jax_default_matmul_precision", "float32")
    platform = "gpu" if settings.device == "cuda" else "cpu"
    try:
        device = jax.devices(platform)[0]
    except RuntimeError as error:
        raise Skip(f"jax sees no {platform}") from error
    adjoints = {"checkpointed": diffrax.RecursiveCheckpointAdjoint(), "backsolve": diffrax.BacksolveAdjoint()}
    kinds = ("one solve",) if flow.dt is not None else ("one solve", "a solve a sample")
    return [
        Entry(
            "diffrax",
            label,
            {
                f"{name}, {kind}": functools.partial(_build, flow, name, adjoint, kind == "one solve", device)
                for kind in kinds
                for name in flow.jax_fields
            },
        )
        for label, adjoint in adjoints.items()
        if label in flow.adjoints
    ]


def _solve(flow: Flow, f: Callable[..., Any], adjoint: diffrax.AbstractAdjoint) -> Callable[..., Any]:
    if flow.dt is None:
        controller, dt0, steps = diffrax.PIDController(rtol=flow.rtol, atol=flow.atol), None, 4096
    else:
        # Rounding may leave a last sliver.
        controller, dt0, steps = diffrax.ConstantStepSize(), flow.dt, (flow.steps or 0) + 1

    def solve(x: Any, weights: Any) -> Any:
        term = diffrax.ODETerm(f)
        solver = diffrax.Dopri5()
        sol = diffrax.diffeqsolve(
            *(term, solver, 0.0, flow.t1, dt0, x),
            args=weights,
            stepsize_controller=controller,
            adjoint=adjoint,
            max_steps=steps,
        )
        return sol.ys[-1], sol.stats["num_steps"]

    return solve


def _build(flow: Flow, name: str, adjoint: diffrax.AbstractAdjoint, together: bool, device: Any) -> Runner:
    f, prepare = flow.jax_fields[name], flow.prepare.get(name, lambda given: given)
    axis = None if flow.shared else 0
    if together:
        solve = _solve(flow, jax.vmap(f, in_axes=(None, 0, axis)), adjoint)
    else:
        solve = jax.vmap(_solve(flow, f, adjoint), in_axes=(0, axis))

    def loss(x: Any, weights: Any) -> Any:
        x1, steps = solve(x, prepare(weights))
        return loss_of(x1), (steps, x1)

    wanted = 1 if flow.shared else (0, 1)
    x0, *weights = (jax.device_put(np.asarray(leaf, dtype=np.float32), device) for leaf in (flow.x0, *flow.weights))
    arguments = (x0, tuple(weights))
    jitted = jax.jit(jax.value_and_grad(loss, argnums=wanted, has_aux=True))
    step = jitted.lower(*arguments).compile()

    def run() -> Any:
        return jax.block_until_ready(step(*arguments))

    def read(result: Any) -> Outcome:
        (value, (_, x1)), grads = result
        found = [torch.from_numpy(np.array(leaf, dtype=np.float64)) for leaf in (*jax.tree.leaves(grads), x1)]
        return Outcome(float(value), found[:-1], found[-1])

    def nfe() -> Nfe:
        (_, (steps, _)), _ = run()
        counts = STAGES * steps + (2 if flow.dt is None else 1)
        most = None if together else float(jnp.max(counts))
        return Nfe(float(jnp.mean(counts)), most)

    def memory() -> int | None:
        analysis = step.memory_analysis()
        return None if analysis is None else analysis.temp_size_in_bytes + analysis.output_size_in_bytes

    return Runner(run, read, nfe, memory)
