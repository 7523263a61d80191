"""Whether samples are independent of each other, and of their places in the batch.

With step="sample" each sample has its own time, and samples that are done are left out of the batch. This is right only
if the slope of a sample depends on its own time, state and control. It is found out by evaluations: of a part of the
batch, in another order and next to samples that were moved; and, where that part alone has other slopes, of the whole
batch with some samples moved. The latter tells dynamics that know samples by their places, or how many there are, for
which the batch is kept whole, from samples that interact, which are refused. A moved sample is at a later time, with a
state and a control above those of all others, or below them, so that a maximum over the batch changes too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ..errors import InputError
from .system import REUSES_OUTPUT, Slope, State, version_of, where

_INTERACT = (
    "samples depend on each other: the dynamics, the feedback, the cost or an event of one sample change with the"
    " state of another (a mean over the batch, or BatchNorm in training mode?). "
)
SAMPLES_INTERACT = _INTERACT + (
    'With step="sample" each sample has its own time and step size, so use step="batch", which keeps all samples at one'
    " time; or make them independent: call .eval() on a BatchNorm, or use nn.GroupNorm or nn.LayerNorm in its place"
)
NO_JACOBIAN = _INTERACT + (
    "Method {name!r} needs the Jacobian of each sample: put samples that interact into one state of shape (1, ...), or"
    ' use an explicit method with step="batch"'
)
ONE_SYSTEM = (
    ". x0 of shape ({count},) is {count} samples of one number each: for one system of {count} components write"
    " x0[None], and x[:, 0] for x[0] in the dynamics"
)
TIMES_INTERACT = (
    "the dynamics, the feedback, the cost or an event of one sample change with the time of another: t has shape"
    " (batch,), one time per sample, and in t * x or t[0] * x a sample meets the times of others. Write"
    " t.reshape(-1{ones}) * x"
)


CONTROLS_INTERACT = (
    "the dynamics, the feedback, the cost or an event of one sample change with the control of another: theta has one"
    " row per sample. If it has shape (batch,), write theta.reshape(-1{ones}) * x; compute what samples share (a mean"
    " over the batch) outside of the dynamics"
)


_HIGH, _LOW = 0, 1  # where a sample is moved to: above all others, or below


class Evaluated(Protocol):
    """What is evaluated: a system, or its events."""

    @property
    def time_constants(self) -> int:
        """Number of constants of theta that are no controls, the last ones."""
        ...

    def clock(self, theta: Sequence[Tensor], t: Tensor) -> Tensor: ...

    def bind(self, theta: Sequence[Tensor]) -> Slope: ...


class Positions:
    """Whether samples may change their places in the batch, or be left out of it; found out when it first matters.

    Not if a capture may have one row per sample. A weight that happens to have such a size is not distinguished:
    keeping all samples in their places is then only slower. Otherwise an evaluation of a part of the batch tells.

    Args:
        captures: The tensors that the functions use besides their arguments.
        batch: The number of samples.
        together: Whether all samples have the same time in every evaluation, so that they may interact.
        method: The name of a method that needs a Jacobian per sample, for which they may not; None for others.
    """

    def __init__(self, captures: Sequence[Tensor], batch: int, *, together: bool = False, method: str | None = None):
        holds_samples = any(batch in tensor.shape for tensor in captures)
        self.free: bool | None = False if holds_samples else True if batch == 1 else None
        self.together, self.method, self.batch = together and method is None, method, batch

    def check_start(
        self, system: Evaluated, t: Tensor, z: State, theta: Sequence[Tensor], slope: State, later: Tensor
    ) -> None:
        """Refuse samples that depend on each other; `slope` is dz/dt at (t, z), `later` times at which f is defined."""
        if self.batch == 1 or self.together:
            return
        agrees = self.free is None and _part_agrees(system, t, z, theta, slope, later)
        if not agrees:
            self.free = False
            self.refuse_interaction(system, t, z, theta, slope, later)

    def are_free(
        self, system: Evaluated, t: Tensor, z: State, theta: Sequence[Tensor], slope: State | None = None
    ) -> bool:
        """Whether places do not matter; `slope` is dz/dt at (t, z), if it is known."""
        if self.free is None:
            with torch.no_grad():
                slope = slope if slope is not None else system.bind(theta)(system.clock(theta, t), z)
            self.free = _part_agrees(system, t, z, theta, slope, t)
            if not self.free:
                self.refuse_interaction(system, t, z, theta, slope, t)
        return self.free

    def refuse_interaction(
        self, system: Evaluated, t: Tensor, z: State, theta: Sequence[Tensor], slope: State, later: Tensor
    ) -> None:
        """Move the first half of the samples in time, state and control: the others must not notice."""
        if self.batch == 1 or self.together:
            return
        for place in (_HIGH, _LOW):
            self._refuse_if_noticed(place, system, t, z, theta, slope, later)

    def _refuse_if_noticed(
        self,
        place: int,
        system: Evaluated,
        t: Tensor,
        z: State,
        theta: Sequence[Tensor],
        slope: State,
        later: Tensor,
    ) -> None:
        """Move the first half of the samples above or below all others."""
        moved = torch.arange(len(t), device=t.device) < len(t) // 2
        times, states = torch.where(moved, later, t), where(moved, _beyond(z, place), z)
        count = len(theta) - system.time_constants
        controls = (*where(moved, _beyond(theta[:count], place), theta[:count]), *theta[count:])
        if _agree(system, times, states, controls, slope, ~moved):
            return
        if not _agree(system, t, z, theta, slope, ~moved):  # no function at all, but random numbers
            return
        if not _agree(system, times, z, theta, slope, ~moved):
            raise InputError(TIMES_INTERACT.format(ones=", 1" * (z[0].dim() - 1)))
        if not _agree(system, t, states, theta, slope, ~moved):
            said = SAMPLES_INTERACT if self.method is None else NO_JACOBIAN.format(name=self.method)
            raise InputError(said + (ONE_SYSTEM.format(count=self.batch) if z[0].dim() == 1 else ""))
        raise InputError(CONTROLS_INTERACT.format(ones=", 1" * (z[0].dim() - 1)))


@torch.no_grad()
def _part_agrees(system: Evaluated, t: Tensor, z: State, theta: Sequence[Tensor], slope: State, later: Tensor) -> bool:
    """Whether the second half of the samples, reversed and after moved copies, has the slopes that it has in the batch.

    A difference may be one of rounding: fewer samples may take another algorithm.
    """
    count, half = len(t), len(t) // 2
    copies = 3 if half == 2 else 2  # the part must have another size than the batch
    rows = torch.arange(count - 1 + copies, half - 1, -1, device=t.device).clamp_max(count - 1)
    first = torch.arange(len(rows), device=t.device) < copies
    some, constants = ([leaf.index_select(0, rows) for leaf in leaves] for leaves in (z, theta))
    expected = tuple(leaf.index_select(0, rows) for leaf in slope)
    times = torch.where(first, later[rows], t[rows])
    moved = [*some, *constants[: len(constants) - system.time_constants]]
    for place in range(copies):
        for leaf, beyond in zip(moved, _beyond(moved, place % 2), strict=True):
            leaf[place] = beyond[0]
    versions = [version_of(leaf) for leaf in slope]
    agrees = _agree(system, times, tuple(some), constants, expected, ~first, digits=1e3)
    if [version_of(leaf) for leaf in slope] != versions:
        raise InputError(REUSES_OUTPUT)
    return agrees


def _beyond(leaves: Sequence[Tensor], place: int) -> list[Tensor]:
    """Values above those of all samples, or below them, the same in every row; whole numbers stay."""
    return [_beyond_all(leaf, place) for leaf in leaves]


def _beyond_all(leaf: Tensor, place: int) -> Tensor:
    if leaf.is_complex():
        return torch.complex(_beyond_all(leaf.real, place), _beyond_all(leaf.imag, place))
    if not leaf.is_floating_point():
        return leaf
    finite = leaf.detach().nan_to_num(0.0, 0.0, 0.0)
    edge = finite.amax(0) if place == _HIGH else finite.amin(0)
    away = 0.25 * edge.abs() + 0.125
    # Not the same distance on both sides, which could leave a mean as it is.
    return (edge + away if place == _HIGH else edge - 1.5 * away).expand_as(leaf)


@torch.no_grad()
def _agree(
    system: Evaluated,
    t: Tensor,
    z: State,
    theta: Sequence[Tensor],
    expected: State,
    rows: Tensor,
    digits: float | None = None,
) -> bool:
    """Whether the slopes at (t, z) are the expected ones in these rows, apart from those that are not finite.

    Default: up to half of the digits. Then an error of the dynamics is no difference: the solve itself will meet it.
    """
    try:
        slope = system.bind(theta)(system.clock(theta, t), z)
    except Exception:  # whatever it is, the dynamics work on the whole batch
        return digits is None
    good = torch.ones((), dtype=torch.bool, device=t.device)
    for a, b in zip(slope, expected, strict=True):
        if not b.numel():
            continue
        a, b = a.reshape(len(t), -1), b.reshape(len(t), -1)
        eps = torch.finfo(a.dtype).eps
        allowed = (eps**0.5 if digits is None else digits * eps) * torch.maximum(a.abs(), b.abs()).amax(1, keepdim=True)
        ignored = ~(rows[:, None] & b.isfinite().all(1, keepdim=True))
        good = good & (((a - b).abs() <= allowed) | ignored).all()
    return bool(good)
