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
from .system import REUSES_OUTPUT, Slope, State, version_of

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
EVENTS_INTERACT = _INTERACT + (
    'With events each sample has its own time, and step="batch" has no events: put samples that interact into one state'
    " of shape (1, ...), or make them independent"
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
    """What is evaluated: a system, its events, or the reset of one."""

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
        with_events: Whether the solve has events, so that no option lets samples interact.
    """

    def __init__(
        self,
        captures: Sequence[Tensor],
        batch: int,
        *,
        together: bool = False,
        method: str | None = None,
        with_events: bool = False,
    ):
        holds_samples = any(batch in tensor.shape for tensor in captures)
        self.free: bool | None = False if holds_samples else True if batch == 1 else None
        self.together, self.method, self.batch = together and method is None, method, batch
        self.with_events = with_events

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
        half, count = len(t) // 2, len(theta) - system.time_constants
        expected = [leaf[half:] for leaf in slope]
        times = torch.cat([later[:half], t[half:]])
        states = [_move_first(leaf, half, place) for leaf in z]
        controls = [*(_move_first(leaf, half, place) for leaf in theta[:count]), *theta[count:]]
        if _agree(system, times, states, controls, expected):
            return
        if not _agree(system, t, z, theta, expected):  # no function at all, but random numbers
            return
        if not _agree(system, times, z, theta, expected):
            raise InputError(TIMES_INTERACT.format(ones=", 1" * (z[0].dim() - 1)))
        if not _agree(system, t, states, theta, expected):
            if self.with_events:
                said = EVENTS_INTERACT
            else:
                said = SAMPLES_INTERACT if self.method is None else NO_JACOBIAN.format(name=self.method)
            raise InputError(said + (ONE_SYSTEM.format(count=self.batch) if z[0].dim() == 1 else ""))
        raise InputError(CONTROLS_INTERACT.format(ones=", 1" * (z[0].dim() - 1)))


@torch.no_grad()
def _part_agrees(system: Evaluated, t: Tensor, z: State, theta: Sequence[Tensor], slope: State, later: Tensor) -> bool:
    """Whether the second half of the samples, reversed and behind moved copies, has the slopes of the whole batch.

    A difference may be one of rounding: fewer samples may take another algorithm.
    """
    count, half = len(t), len(t) // 2
    copies = 3 if half == 2 else 2  # the part must have another size than the batch
    rows = torch.arange(count - 1, half - 1, -1, device=t.device)
    controls = len(theta) - system.time_constants

    def take(leaf: Tensor, moved: bool = True) -> Tensor:
        some = leaf.index_select(0, rows)
        first = _outside(some) if moved and _has_neighbours(leaf) else some[:1].expand(2, *some.shape[1:])
        return torch.cat([first, first[: copies - 2], some])

    times = torch.cat([later[-1:].expand(copies), t.index_select(0, rows)])
    states = [take(leaf) for leaf in z]
    constants = [take(leaf, moved=i < controls) for i, leaf in enumerate(theta)]
    expected = [leaf.index_select(0, rows) for leaf in slope]
    versions = [version_of(leaf) for leaf in slope]
    agrees = _agree(system, times, states, constants, expected, digits=1e3)
    if [version_of(leaf) for leaf in slope] != versions:
        raise InputError(REUSES_OUTPUT)
    return agrees


def _move_first(leaf: Tensor, count: int, place: int) -> Tensor:
    """A leaf whose first rows are above those of all samples, or below them; whole numbers stay."""
    if not _has_neighbours(leaf):
        return leaf
    return torch.cat([_outside(leaf)[place].expand_as(leaf)[:count], leaf[count:]])


def _has_neighbours(leaf: Tensor) -> bool:
    """Whether there are values close to others; whole numbers may be indices."""
    return leaf.is_floating_point() or leaf.is_complex()


def _outside(leaf: Tensor) -> Tensor:
    """(2, ...): values above those of all samples, and values below them."""
    if leaf.is_complex():
        return torch.complex(_outside(leaf.real), _outside(leaf.imag))
    low, high = leaf.detach().nan_to_num(0.0, 0.0, 0.0).aminmax(dim=0)
    # Not the same distance on both sides, which could leave a mean as it is.
    away = torch.stack([0.25 * high.abs() + 0.125, -0.375 * low.abs() - 0.1875])
    return torch.stack([high, low]) + away


@torch.no_grad()
def _agree(
    system: Evaluated,
    t: Tensor,
    z: Sequence[Tensor],
    theta: Sequence[Tensor],
    expected: Sequence[Tensor],
    digits: float | None = None,
) -> bool:
    """Whether the last samples have the expected slopes at (t, z), apart from those that are not finite.

    Default: up to half of the digits. Then an error of the dynamics is no difference: the solve itself will meet it.
    """
    try:
        slope = system.bind(theta)(system.clock(theta, t), tuple(z))
    except Exception:  # whatever it is, the dynamics work on the whole batch
        return digits is None
    good = torch.ones((), dtype=torch.bool, device=t.device)
    for a, b in zip(slope, expected, strict=True):
        if not b.numel():
            continue
        a, b = a[len(a) - len(b) :].reshape(len(b), -1), b.reshape(len(b), -1)
        eps = torch.finfo(a.dtype).eps
        allowed = (eps**0.5 if digits is None else digits * eps) * torch.maximum(a.abs(), b.abs()).amax(1, keepdim=True)
        good = good & (((a - b).abs() <= allowed) | ~b.isfinite().all(1, keepdim=True)).all()
    return bool(good)
