"""What `solve` returns."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._torch_private import pytree
from ..errors import InputError, Status
from .step import evaluate_dense
from .system import State

if TYPE_CHECKING:  # shapes as jaxtyping writes them; tests/test_shapes.py checks them with its types
    from typing import Annotated as Bool
    from typing import Annotated as Float
    from typing import Annotated as Inexact
    from typing import Annotated as Int
    from typing import Annotated as Real


@dataclass
class Stats:
    """Costs of a solve per sample, integer tensors (batch,), and the backend that ran it.

    >>> import torch, ncode
    >>> x0 = torch.ones(2, 1, requires_grad=True)
    >>> sol = ncode.solve(lambda t, x, theta: -x, x0, 0.0, 1.0, method="rk4", dt=0.5)
    >>> sol.stats.steps, sol.stats.rejected
    (tensor([2, 2], dtype=torch.int32), tensor([0, 0], dtype=torch.int32))
    >>> sol.x.sum().backward()
    >>> sol.stats.nfe_backward  # the graph was kept: one evaluation, to check that the dynamics are the same
    tensor([1, 1], dtype=torch.int32)
    """

    nfe: Int[Tensor, "batch"]  # evaluations of the dynamics; Jacobians are not counted
    steps: Int[Tensor, "batch"]  # accepted
    rejected: Int[Tensor, "batch"]
    nfe_backward: Int[Tensor, "batch"] | None = None  # in backward, after it has run; without Newton's iterations
    backend: str = "eager"


@dataclass(frozen=True)
class DenseOutput:
    """Dense output: a function of time, of the method's own order.

    `begins` and `ends` are (batch, n): the times, counted from `t0`, at which steps begin and end (equal where a sample
    stood still).

    >>> import torch, ncode
    >>> sol = ncode.solve(lambda t, x, theta: 2 * t[:, None], torch.zeros(1, 1), 0.0, 1.0, dense=True)
    >>> x, = sol.dense(torch.tensor([[0.5, 1.0]]))
    >>> x.flatten().round(decimals=4)
    tensor([0.2500, 1.0000])
    """

    t0: Tensor
    begins: Tensor
    ends: Tensor
    states: State  # where steps begin, each (n, batch, ...)
    coefficients: State  # of the powers of the position in a step, from 0 to 1; each (n, batch, powers, ...)

    def __call__(self, t: Tensor) -> State:
        """Values at t (batch, T): for each leaf (batch, T, ...)."""
        t = t - self.t0[:, None]
        sign = torch.where(self.ends[:, -1] >= self.begins[:, 0], 1.0, -1.0)[:, None]
        begins, ends = ((it.detach() * sign).contiguous() for it in (self.begins, self.ends))
        # The last step that begins before t; at t0 the first one that is not a rejected attempt.
        index = torch.searchsorted(begins, (t.detach() * sign).contiguous()) - 1
        first = torch.searchsorted(ends, begins[:, :1].contiguous(), right=True).clamp_max(ends.shape[1] - 1)
        index = torch.maximum(index, first)
        begin, end = self.begins.gather(1, index), self.ends.gather(1, index)
        h = end - begin
        sigma = torch.where(h == 0, 0.0, (t - begin) / torch.where(h == 0, 1.0, h))
        sample = torch.arange(len(t), device=t.device)[:, None].expand_as(index)
        out = []
        for state, coefficient in zip(self.states, self.coefficients, strict=True):
            z = state[index, sample].flatten(0, 1)
            powers = coefficient[index, sample].flatten(0, 1)
            (value,) = evaluate_dense((z,), (powers,), sigma.reshape(-1, 1))
            out.append(value.reshape(*t.shape, *value.shape[2:]))
        return tuple(out)


@dataclass(frozen=True)
class EventRecord:
    """The occurrences of one event, padded with nan to the largest number in one sample, at least one.

    `ts` and `xs` have gradients. `xs` is the state before a reset.

    >>> import torch, ncode
    >>> turn = lambda t, x, theta: torch.stack([x[:, 1], -x[:, 0]], 1)
    >>> zero = ncode.Event(lambda t, x, theta: x[:, 0], terminal=False)
    >>> x0 = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    >>> record = ncode.solve(turn, x0, 0.0, 6.0, events=zero, rtol=1e-8).events[0]
    >>> record.counts
    tensor([2, 0], dtype=torch.int32)
    >>> (record.ts / torch.pi).round(decimals=6)
    tensor([[0.5000, 1.5000],
            [   nan,    nan]], dtype=torch.float64)
    """

    counts: Int[Tensor, "batch"]
    ts: Float[Tensor, "batch n"]
    xs: Inexact[Tensor, "batch n *state"]
    ended: Bool[Tensor, "batch"]  # which samples the event ended


@dataclass(frozen=True, repr=False)
class Solution:
    """The solution of a batch of controlled initial value problems.

    `x`, `theta` and `cost` are at t1, (batch, ...); `ts`, `xs` and `thetas` at the saved times, (batch, T, ...). With
    `dense=True` the solution is a function of time: `sol(t)` is x at one time for all, and with t of shape (T,) or
    (batch, T) it is (batch, T, ...). `steps` are the times of accepted steps, if `save_steps=True`.

    >>> import torch, ncode
    >>> x0 = torch.ones(3, 2)
    >>> sol = ncode.solve(lambda t, x, theta: theta - x, x0, 0.0, 1.0, theta=x0, save_at=[0.0, 0.5, 1.0], dense=True)
    >>> sol.x.shape, sol.xs.shape, sol(0.25).shape, bool(sol.ok.all())
    (torch.Size([3, 2]), torch.Size([3, 3, 2]), torch.Size([3, 2]), True)
    """

    x: Inexact[Tensor, "batch *state"]
    theta: Any
    cost: Float[Tensor, "batch"] | None
    ts: Real[Tensor, "batch times"] | None
    xs: Inexact[Tensor, "batch times *state"] | None
    thetas: Any
    stats: Stats
    codes: Int[Tensor, "batch"]  # the status of each sample as a number
    t: Float[Tensor, "batch"]  # the time that each sample reached
    steps: Float[Tensor, "batch n"] | None = None  # t0 and the times after accepted steps, nan behind a sample's last
    dense: DenseOutput | None = None
    interval: tuple[Tensor, Tensor] | None = None  # t0 and t1, with dense=True
    events: tuple[EventRecord, ...] = ()  # the occurrences of each event

    @cached_property
    def status(self) -> tuple[Status, ...]:
        """How each sample ended."""
        return tuple(map(Status, self.codes.tolist()))

    @property
    def ok(self) -> Tensor:
        """(batch,): which samples reached t1."""
        return self.codes == Status.OK

    def __repr__(self) -> str:
        named = {"x": self.x, "cost": self.cost, "xs": self.xs}
        given = {name: it for name, it in named.items() if it is not None}
        shapes = ", ".join(f"{name} {pytree.tree_map(_shape, it)}" for name, it in given.items())
        counts = ", ".join(f"{count} {status.name}" for status, count in Counter(self.status).items())
        nfe = self.stats.nfe
        span = f"{int(nfe.min())} to {int(nfe.max())}" if nfe.numel() else "none"
        ended = [record.ended for record in self.events]
        by_event = f" ({int(torch.stack(ended).any(0).sum())} ended by an event)" if ended else ""
        return f"Solution: {shapes}\n  status: {counts or 'empty'}{by_event}\n  evaluations per sample: {span}"

    def __call__(self, t: float | Tensor) -> Any:
        """x at any time between t0 and t1 (needs `dense=True`)."""
        if self.interval is None:
            raise InputError("this solution keeps no dense output: use solve(..., dense=True)")
        batch = len(self.codes)
        t0, t1 = self.interval
        # A number as a tensor would be in single precision.
        at = (
            t.to(t0.device, t0.dtype) if isinstance(t, Tensor) else torch.as_tensor(t, dtype=t0.dtype, device=t0.device)
        )
        if at.dim() > 2 or (at.dim() == 2 and len(at) != batch):
            raise InputError(
                f"times of shape {tuple(at.shape)}; a solution takes one time, (T,) for all samples,"
                f" or ({batch}, T) with each sample's own"
            )
        times = at.expand(batch, at.shape[-1]) if at.dim() else at.expand(batch, 1)
        low, high = torch.minimum(t0, t1)[:, None], torch.maximum(t0, t1)[:, None]
        slack = 1e-6 * (high - low)
        outside = (times < low - slack) | (times > high + slack) | times.isnan()
        if bool(outside.any()):
            sample, place = outside.nonzero()[0].tolist()
            raise InputError(
                f"a time outside of the solved interval: given {float(times[sample, place]):.6g} for sample {sample},"
                f" which was solved on [{float(low[sample]):.6g}, {float(high[sample]):.6g}]"
            )
        times = torch.minimum(torch.maximum(times, low), high)
        leaves, spec = pytree.tree_flatten(self.x)
        values = [leaf[:, None].expand(-1, times.shape[1], *leaf.shape[1:]) for leaf in leaves]
        if self.dense is not None:
            values = self.dense(times)[: len(leaves)]
        # A sample that failed, or ended at an event, has no values beyond the time that it reached.
        beyond = (times - t0[:, None]).abs() > (self.t - t0)[:, None].abs()
        masks = [beyond.reshape(*beyond.shape, *[1] * (value.dim() - 2)) for value in values]
        values = [torch.where(mask, torch.nan, value) for mask, value in zip(masks, values, strict=True)]
        return pytree.tree_unflatten([value if at.dim() else value[:, 0] for value in values], spec)


def _shape(leaf: Tensor) -> tuple[int, ...]:
    return tuple(leaf.shape)
