"""A system's slope together with its Jacobian, one matrix per sample; states as one vector per sample.

Reverse mode gives one row of the Jacobian per pass. Samples are independent of each other, so that one pass with the
same cotangent for all of them gives that row for all of them. Only these passes are batched, never the dynamics.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from .._torch_private import is_traced
from ..errors import InputError
from .system import Slope, State, reads_by_numpy, writes_to_output

UNROLLED = 8  # up to this size a traced solve writes out linear algebra element by element, so that it is fused


NOT_DIFFERENTIABLE = (
    "methods for stiff problems need the Jacobian of each sample, but autograd cannot follow the dynamics: they change"
    " with x, and return a tensor without a graph (torch.no_grad(), .detach(), NumPy or out= inside?). Write them in"
    " operations of torch, give them a method jacobian(t, x, theta) (NumPy then reads x.detach()), or use an explicit"
    " method"
)


class Linearisable(Protocol):
    """The part of a system that its Jacobian needs, see `RightHandSide`."""

    @property
    def shown(self) -> int: ...

    def jacobian(self, theta: Sequence[Tensor]) -> Callable[[Tensor, State], Any] | None: ...

    def bind(self, theta: Sequence[Tensor]) -> Slope: ...


class Linearised(NamedTuple):
    """A slope and its derivatives at one time and state."""

    slope: State
    rows: tuple[Tensor, ...]  # of the Jacobian: n tensors (batch, n)
    time: Tensor  # derivative of the slope with respect to time, (batch, n)


def join(z: Sequence[Tensor]) -> Tensor:
    """The leaves of a state as one (batch, n) tensor."""
    flat = [leaf.reshape(leaf.shape[0], -1) for leaf in z]
    return flat[0] if len(flat) == 1 else torch.cat(flat, 1)


def split(vector: Tensor, like: Sequence[Tensor]) -> State:
    """The leaves that a (batch, n) tensor joins."""
    parts = vector.split([leaf[0].numel() for leaf in like], 1) if len(like) > 1 else (vector,)
    return tuple(part.reshape(leaf.shape) for part, leaf in zip(parts, like, strict=True))


def linearise(system: Linearisable, theta: Sequence[Tensor], t: Tensor, z: State) -> Linearised:
    """The slope at (t, z), t a time of the system's clock, and its derivatives; with a graph if autograd is enabled."""
    graph = torch.is_grad_enabled()

    def follow(leaf: Tensor) -> Tensor:
        # An alias: theta may have been computed from the state, and that path is no part of the Jacobian.
        alias = leaf.view_as(leaf) if graph else leaf.detach()  # detach would drop the tangents of forward mode
        return alias if alias.requires_grad else alias.requires_grad_()

    with torch.enable_grad():
        leaves = tuple(map(follow, z))
        # A new leaf for the time would make autograd walk through the whole history of z to look for it.
        at = t + 0 * z[0].reshape(len(t), -1)[:, 0] if graph and z[0].requires_grad else follow(t)
        slope = _followed(system.bind(theta), at, leaves)
        vector = join(slope)
    known = _given_rows(system, theta, t, z)
    first = 0 if known is None else system.shown  # leaves from here on need automatic differentiation
    rest = slope[first:]
    if not all(k.requires_grad for k in rest):
        # Copies, since the memory may be used again; without a graph only where the slope has none.
        here = tuple(k if k.requires_grad else k.clone() for k in rest)
        _refuse_cut_graph(system, theta, t, z, here)
    count = 0 if known is None else len(known)
    times, parts = _pulled(vector, at, leaves, graph, count) if rest else ((), [])
    rows = tuple(join(row) for row in parts)
    if known is None:
        time = torch.stack(times, 1)
    else:
        # Nothing depends on the leaves behind those that are shown, such as the cost.
        zeros = vector.new_zeros(len(t), len(rows))
        rows = (*(torch.cat([row, zeros], 1) for row in known), *rows) if rest else known
        time = _time_derivative(vector, at, graph)
    return Linearised(slope if graph else tuple(k.detach() for k in slope), rows, time)


def _followed(slope: Slope, t: Tensor, z: State) -> State:
    try:
        return slope(t, z)
    except RuntimeError as error:
        if not (writes_to_output(error) or reads_by_numpy(error)):
            raise
        raise InputError(NOT_DIFFERENTIABLE) from error


def _pulled(
    vector: Tensor, t: Tensor, z: State, graph: bool, first: int = 0
) -> tuple[tuple[Tensor, ...], list[tuple[Tensor, ...]]]:
    """For each element of the vector from `first` on its gradients: n of (batch,) for the time, and n states."""
    batch, size = vector.shape
    n = size - first
    inputs = (t, *z)
    if not vector.requires_grad:
        return (torch.zeros_like(t),) * n, [tuple(map(torch.zeros_like, z))] * n
    basis = torch.eye(size, dtype=vector.dtype, device=vector.device)[first:]
    traced = is_traced()
    grads: Sequence[Tensor | None] | None = None
    if not (traced and n <= UNROLLED):
        with contextlib.suppress(RuntimeError):  # a backward formula that cannot be batched
            cotangents = basis[:, None].expand(n, batch, size)
            grads = torch.autograd.grad(
                vector, inputs, cotangents, True, graph, allow_unused=True, is_grads_batched=True
            )
    if grads is None:
        single = [
            torch.autograd.grad(vector, inputs, row.expand(batch, size), True, graph, allow_unused=True)
            for row in basis
        ]
        full = [[torch.zeros_like(it) if g is None else g for g, it in zip(row, inputs, strict=True)] for row in single]
    else:
        pairs = zip(grads, inputs, strict=True)
        each = [[torch.zeros_like(it)] * n if g is None else g.unbind() for g, it in pairs]
        full = list(zip(*each, strict=True))
    return tuple(row[0] for row in full), [tuple(row[1:]) for row in full]


def _given_rows(system: Linearisable, theta: Sequence[Tensor], t: Tensor, z: State) -> tuple[Tensor, ...] | None:
    """The rows of a Jacobian that the dynamics supply, without the cost's; None if they do not."""
    jacobian = system.jacobian(theta)
    if jacobian is None:
        return None
    matrix, n = jacobian(t, z), sum(leaf[0].numel() for leaf in z[: system.shown])
    if not isinstance(matrix, Tensor) or matrix.shape != (len(t), n, n) or matrix.dtype != z[0].dtype:
        given = f"{tuple(matrix.shape)}, {matrix.dtype}" if isinstance(matrix, Tensor) else type(matrix).__name__
        raise InputError(
            f"the dynamics' method jacobian(t, x, theta) returned {given}; expected a tensor ({len(t)}, {n}, {n}) of"
            f" {z[0].dtype}: one matrix per sample, d f_i / d x_j in row i"
        )
    return matrix.unbind(1)


def _time_derivative(vector: Tensor, t: Tensor, graph: bool) -> Tensor:
    """df/dt (batch, n) by two passes: the gradient of a product with w is linear in w, and its gradient is df/dt."""
    if not vector.requires_grad:
        return torch.zeros_like(vector)
    with torch.enable_grad():
        w = torch.zeros_like(vector).requires_grad_()
        (pulled,) = torch.autograd.grad(vector, t, w, True, True, allow_unused=True)
    if pulled is None or not pulled.requires_grad:
        return torch.zeros_like(vector)
    (found,) = torch.autograd.grad(pulled, w, torch.ones_like(pulled), graph, graph, allow_unused=True)
    return torch.zeros_like(vector) if found is None else found


def _refuse_cut_graph(system: Linearisable, theta: Sequence[Tensor], t: Tensor, z: State, here: State) -> None:
    """Refuse slopes, the last ones, that change with z and have no graph: their rows would be taken for 0."""
    if is_traced():  # has no values; the first evaluations of a solve are eager
        return
    with torch.no_grad():
        elsewhere = system.bind(theta)(t, tuple(1.25 * leaf + 0.125 for leaf in z))[-len(here) :]
    for mine, other in zip(here, elsewhere, strict=True):
        if not mine.requires_grad and not torch.equal(mine, other):
            raise InputError(NOT_DIFFERENTIABLE)
