"""diffrax's rows of `benchmarks.cnf`: the same fields with the same weights, jitted."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import torch

if TYPE_CHECKING:
    from torch import Tensor

STAGES = 6  # of dopri5, whose last slope is handed on; the first slope and the first step take two more
MAX_STEPS = 256
ADJOINTS = {"checkpointed": diffrax.RecursiveCheckpointAdjoint, "backsolve": diffrax.BacksolveAdjoint}


def example(t: Any, x: Any, weights: dict[str, Any]) -> Any:
    """As torchdiffeq's example writes it, for one t and a batch."""
    w, b, u = _hypernetwork(t, weights)
    copies = jnp.broadcast_to(x[None], (len(b), *x.shape))
    hidden = jnp.tanh(copies @ w[:, :, None] + b[:, None, None])
    return (hidden @ u[:, None]).mean(0)


def layers(t: Any, x: Any, weights: dict[str, Any]) -> Any:
    """The same function as two linear layers."""
    w, b, u = _hypernetwork(t, weights)
    return jnp.tanh(x @ w.T + b) @ (u / len(b))


def time_input(t: Any, x: Any, weights: dict[str, Any], t1: float) -> Any:
    times = jnp.broadcast_to(t / t1, (len(x), 1))
    hidden = jnp.concatenate([x, times], 1)
    for name in ("layers.0", "layers.2"):
        hidden = jnp.tanh(_linear(name, hidden, weights))
    return _linear("head", hidden, weights) / t1


def _hypernetwork(t: Any, weights: dict[str, Any]) -> tuple[Any, Any, Any]:
    hidden = jnp.reshape(t, (1,))
    for name in ("weights.layers.0", "weights.layers.2"):
        hidden = jnp.tanh(_linear(name, hidden, weights))
    head = _linear("weights.head", hidden, weights)
    width = len(head) // 7
    w, u, gate, b = jnp.split(head, (2 * width, 4 * width, 6 * width))
    return w.reshape(width, 2), b, (u * jax.nn.sigmoid(gate)).reshape(width, 2)


def _linear(name: str, x: Any, weights: dict[str, Any]) -> Any:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


class Diffrax:
    """The flow with state and change of log p in one tuple, and one solve for the batch or one per sample."""

    def __init__(self, field: Any, name: str, adjoint: str, settings: tuple[float, float], together: bool = True):
        self.t1, self.tolerance = settings
        functions = {"example": example, "layers": layers, "time": functools.partial(time_input, t1=self.t1)}
        self.function, self.together = functions[name], together
        self.adjoint = ADJOINTS[adjoint]()
        self.weights = {key: _to_jax(value) for key, value in field.named_parameters()}
        self.gradient = jax.jit(jax.value_and_grad(self._loss, has_aux=True))

    def stepper(self, x: Tensor, parameters: list[Any]) -> Callable[[], Any]:
        """A training step; the parameters are those of the field that was given."""
        points = _to_jax(x)
        return lambda: jax.block_until_ready(self.gradient(self.weights, points))

    def read(self, result: Any) -> tuple[float, list[Tensor]]:
        (loss, _), grads = result
        return float(loss), [torch.from_numpy(np.array(grads[key])) for key in self.weights]

    def samples(self, z: Tensor) -> Tensor:
        def end(weights: Any, x: Any) -> Any:
            return self._solve(self._field, x, weights, 0.0, self.t1).ys[-1]

        solve = end if self.together else jax.vmap(end, (None, 0))
        return torch.from_numpy(np.array(jax.jit(solve)(self.weights, _to_jax(z))))

    def evaluations(self, x: Tensor) -> list[int | None]:
        """In forward; those of backward are not counted by diffrax."""
        (_, steps), _ = self.stepper(x, [])()
        return [STAGES * int(steps.max()) + 2, None]

    def _field(self, t: Any, x: Any, weights: Any) -> Any:
        return self.function(t, x, weights) if self.together else self.function(t, x[None], weights)[0]

    def _joint(self, t: Any, state: Any, weights: Any) -> Any:
        """The slope of a batch or a sample, and minus the divergence: one vector-Jacobian product per element of x."""
        x = state[0]
        slope, pull = jax.vjp(lambda x: self._field(t, x, weights), x)
        # Written out: under vmap they take two to three times as long on a CPU, as does jvp under vmap.
        rows = [pull(jnp.zeros_like(x).at[..., i].set(1.0))[0][..., i] for i in range(2)]
        return slope, -(rows[0] + rows[1])

    def _solve(self, field: Any, y: Any, weights: Any, t0: float, t1: float) -> Any:
        return diffrax.diffeqsolve(
            *(diffrax.ODETerm(field), diffrax.Dopri5(), t0, t1, None, y),
            args=weights,
            stepsize_controller=diffrax.PIDController(rtol=self.tolerance, atol=self.tolerance),
            adjoint=self.adjoint,
            max_steps=MAX_STEPS,
        )

    def _to_base(self, x: Any, weights: Any) -> Any:
        sol = self._solve(self._joint, (x, jnp.zeros(x.shape[:-1], x.dtype)), weights, self.t1, 0.0)
        return sol.ys[0][-1], sol.ys[1][-1], sol.stats["num_steps"]

    def _loss(self, weights: Any, x: Any) -> Any:
        solve = self._to_base if self.together else jax.vmap(self._to_base, (0, None))
        z, change, steps = solve(x, weights)
        base = -5 * jnp.square(z).sum(1) - jnp.log(0.2 * jnp.pi)  # normal with a variance of 0.1
        return -(base - change).mean(), steps


def _to_jax(values: Tensor) -> Any:
    return jnp.asarray(values.detach().numpy())
