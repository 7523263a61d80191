"""The latent flow of AutoN-CODE: dx/dt = theta x, two non-zeros per row, where each sample has its own theta.

Our rows are exact: the block as it chooses, and each formulation by itself. Peers may write theta as it is (a gather),
as the paper does, or fill a matrix with it once per solve. The reference is torch's matrix exponential in float64.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import ncode
from ncode.closed_forms import linear_flow

from ..contest import Aim, Contest, Entry, Nfe, Runner, Settings, synchronise
from ..flow import Flow, Step, compete, gradients, read
from ..memory import peak_bytes

TITLE = "Linear latent flow: x (64, 128), two non-zeros a row, norm 10, T = 10"
AIMS = tuple(
    aim
    for device in ("cpu", "cuda")
    for aim in (
        Aim("exact", "torchdiffeq", 0.1, device, row="as the paper writes it"),
        Aim("exact", "torchdiffeq", 1.0, device),
        Aim("exact", "diffrax", 1.0, device),
    )
)
SPAN, NORM = 10.0, 10.0
Ours = Callable[[Tensor, Tensor], Tensor]


def contest(settings: Settings) -> Contest:
    """Everyone on the same problem."""
    batch, m = (4, 8) if settings.quick else (64, 128)
    dynamics = ncode.dynamics.SparseLinear(m, nonzeros=2, seed=settings.seed).to(settings.device)
    x0, values = draw(batch, m, settings.seed)
    columns = dynamics.columns
    torch_fields, jax_fields, prepare = fields(columns)
    flow = Flow(
        x0,
        (values,),
        torch_fields,
        jax_fields,
        t1=SPAN,
        generic=("eager",),
        prepare=prepare,
        adjoints=("checkpointed",),
        exact=functools.partial(exact, columns.cpu()),
    )
    # The solution grows by a factor of thousands, and so do the errors of those who step. Gradients by an adjoint are
    # wrong altogether; those rows stay, since the paper's formulation is one of them, and the notes say how wrong.
    adjoints = ("as the paper writes it", "adjoint")
    found = compete(flow, settings, AIMS, loss_tolerance=0.2, reported=adjoints)
    block = ncode.NCODE(dynamics, ncode.Static(), t1=SPAN).to(settings.device)
    ways: dict[str, Ours] = {"exact, the block": lambda x, theta: block.solve(x, theta=theta).x}
    for name in ("matrix", "action"):
        ways[f"exact, by {name}"] = functools.partial(_flow, columns, name)
    ours = [Entry("ncode", label, {"": functools.partial(_build, flow, settings, way)}) for label, way in ways.items()]
    return dataclasses.replace(found, entries=[*ours, *found.entries])


def draw(batch: int, m: int, seed: int) -> tuple[Tensor, Tensor]:
    """x0, and the non-zeros of theta, of norm 10 a sample."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(batch, m, 2, generator=generator, dtype=torch.float64)
    values *= NORM * (m / 128) ** 0.5 / values.flatten(1).norm(dim=1)[:, None, None]
    return torch.randn(batch, m, generator=generator, dtype=torch.float64), values


def exact(columns: Tensor, x0: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """By torch's matrix exponential."""
    return (torch.linalg.matrix_exp(filled(columns, weights[0]) * SPAN) @ x0[..., None])[..., 0]


def filled(columns: Tensor, values: Tensor) -> Tensor:
    """The matrices (batch, m, m)."""
    m = len(columns)
    return values.new_zeros(len(values), m, m).scatter(2, columns.to(values.device).expand_as(values), values)


def _flow(columns: Tensor, formulation: str, x: Tensor, theta: Tensor) -> Tensor:
    return linear_flow(theta, x, 0.0, SPAN, columns=columns, formulation=formulation).x


def _build(flow: Flow, settings: Settings, way: Ours) -> Runner:
    x0, weights = flow.leaves(settings.device)

    def run() -> Step:
        result = gradients(way(x0, weights[0]), x0, weights)
        synchronise(settings.device)
        return result

    return Runner(run, read, lambda: Nfe(0, backward=0), lambda: peak_bytes(run, settings.device))


def fields(columns: Tensor) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The dynamics in torch and in jax, and what their weights are turned into before a solve."""
    m, flat, numbers = len(columns), columns.flatten(), columns.tolist()

    def gather(t: Any, x: Tensor, theta: Sequence[Tensor]) -> Tensor:
        picked = x.index_select(1, flat.to(x.device)).unflatten(1, (m, -1))
        return (theta[0] * picked).sum(-1)

    def dense(t: Any, x: Tensor, theta: Sequence[Tensor]) -> Tensor:
        return torch.bmm(theta[0], x[..., None])[..., 0]

    def fill(weights: Sequence[Tensor]) -> tuple[Tensor]:
        return (filled(columns, weights[0]),)

    def gather_jax(t: Any, x: Any, theta: Any) -> Any:
        import jax.numpy as jnp

        return (theta[0] * x[jnp.array(numbers)]).sum(-1)

    def dense_jax(t: Any, x: Any, theta: Any) -> Any:
        return theta[0] @ x

    def fill_jax(weights: Any) -> Any:
        import jax.numpy as jnp

        (values,) = weights
        rows = jnp.arange(m)[:, None]
        return (jnp.zeros((len(values), m, m), values.dtype).at[:, rows, jnp.array(numbers)].set(values),)

    torch_fields = {"dense": dense, "gather": gather}
    jax_fields = {"dense in jax": dense_jax, "gather in jax": gather_jax}
    return torch_fields, jax_fields, {"dense": fill, "dense in jax": fill_jax}
