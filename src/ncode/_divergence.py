"""The divergence of a velocity as a running cost: the trace of df/dx, exact or by Hutchinson's estimate.

One evaluation of f serves both the slope and its divergence: the solver calls the dynamics and then the cost at the
same point, so the first leaves the divergence for the second.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import grad

from .ode.system import Cost
from .ode.system import Dynamics as Velocity


def with_divergence(velocity: Velocity) -> tuple[Velocity, Cost]:
    """The dynamics and the running cost for `solve`.

    Their theta holds what the velocity takes ("carried") and, for Hutchinson's estimate, the noise: the solver can then
    leave out finished samples together with their noise.
    """
    left: dict[str, tuple[Tensor, Tensor, Tensor]] = {}  # what the last call of f left for the cost: t, x, divergence

    def evaluate(t: Tensor, x: Tensor, theta: Any) -> tuple[Tensor, Tensor]:
        graph = torch.is_grad_enabled()
        with torch.enable_grad():
            at = x if graph and x.requires_grad else x.detach().requires_grad_()
            slope = velocity(t, at, theta["carried"])
            divergence = _divergence(slope, at, theta.get("noise"), graph)
        return (slope, divergence) if graph else (slope.detach(), divergence.detach())

    def f(t: Tensor, x: Tensor, theta: Any) -> Tensor:
        slope, divergence = evaluate(t, x, theta)
        left["f"] = t, x, divergence
        return slope

    def cost(t: Tensor, x: Tensor, theta: Any) -> Tensor:
        # Taken out, so that no graph is kept in memory, and nothing changes that a compiling backend could see.
        at_t, at_x, divergence = left.pop("f", (None, None, None))
        return divergence if divergence is not None and at_t is t and at_x is x else evaluate(t, x, theta)[1]

    return f, cost


def _divergence(slope: Tensor, x: Tensor, noise: Tensor | None, graph: bool) -> Tensor:
    """The trace of d slope / d x per sample, (batch,): exact, or estimated by noise (batch, samples, ...)."""
    if not slope.requires_grad:  # f depends on nothing that has a gradient
        return x.new_zeros(x.shape[0])
    if noise is None:
        # Measured on a CPU: products one after another take down to half the time of a batched one. On other devices
        # that one takes fewer launches.
        return exact_divergence(slope, x, graph, batched=x.device.type != "cpu")
    rows = [(_product(slope, x, e, graph) * e).flatten(1).sum(1) for e in noise.unbind(1)]
    return sum(rows[1:], rows[0]) / len(rows)


def exact_divergence(slope: Tensor, x: Tensor, graph: bool, batched: bool) -> Tensor:
    size = x[0].numel()
    basis = torch.eye(size, dtype=x.dtype, device=x.device).reshape(size, 1, *x.shape[1:]).expand(size, *x.shape)
    if batched:
        return _product(slope, x, basis, graph, batched).flatten(2).diagonal(dim1=0, dim2=2).sum(-1)
    rows = [_product(slope, x, e, graph).flatten(1)[:, i] for i, e in enumerate(basis.unbind())]
    return sum(rows[1:], rows[0])


def _product(slope: Tensor, x: Tensor, cotangent: Tensor, graph: bool, batched: bool = False) -> Tensor:
    """The vector-Jacobian product; zeros where the slope does not depend on x."""
    (found,) = grad(slope, x, cotangent, True, graph, allow_unused=True, is_grads_batched=batched)
    return torch.zeros_like(cotangent) if found is None else found
