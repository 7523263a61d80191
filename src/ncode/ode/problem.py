"""What is solved and how: the arguments of `solve`, checked before any work, as a `Problem` with `SolveOptions`."""

from __future__ import annotations

import cmath
import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._torch_private import is_mapped, is_symbolic, pytree
from ..errors import InputError, check_choice, check_count, check_function, check_number
from .backends import Backend, find_backend
from .step import PID, StepSizeRule, Tolerance, fixed_steps
from .system import Control, Cost, Dynamics, Feedback, State, System
from .tableau import METHODS, Tableau

GRADIENTS = ("discrete", "adjoint", "autograd")
STEPS = ("sample", "batch")


@dataclass(frozen=True)
class SolveOptions:
    """How a problem is solved: the keyword arguments of `ncode.solve` of the same names, checked.

    >>> from ncode import SolveOptions
    >>> SolveOptions(method="rk4", dt=0.5).changed(dt=0.25).non_default()
    {'method': 'rk4', 'dt': 0.25}
    """

    method: str | Tableau = "dopri5"
    rtol: float = 1e-3
    atol: float = 1e-6
    dt: float | None = None
    step: str = "sample"
    gradient: str = "discrete"
    compile: bool | str | Backend = False
    max_steps: int = 10_000
    checkpoint_every: int = 1
    step_rule: StepSizeRule | None = None

    def __post_init__(self) -> None:
        self._check_method()
        check_choice("step", self.step, STEPS)
        check_choice("gradient", self.gradient, GRADIENTS)
        for name in ("max_steps", "checkpoint_every"):
            object.__setattr__(self, name, check_count(name, getattr(self, name)))
        _ = self.backend  # or an error
        if self.step_rule is not None and not isinstance(self.step_rule, StepSizeRule):
            raise InputError(
                f"step_rule must be a StepSizeRule, such as PID(p=0.2); given {type(self.step_rule).__name__}"
            )

    def _check_method(self) -> None:
        tableau = self.tableau
        rtol, atol = check_number("rtol", self.rtol, low=0.0), check_number("atol", self.atol, low=0.0)
        if rtol == 0.0 and atol == 0.0:
            raise InputError("rtol and atol are both 0: no step is that exact")
        if self.dt is not None:
            object.__setattr__(self, "dt", check_number("dt", self.dt, low=0.0, strict=True))
        elif not tableau.adaptive:
            adaptive = ", ".join(name for name, known in METHODS.items() if known.adaptive)
            raise InputError(
                f'method "{tableau.name}" has no error estimate: give a step size dt, or use one of {adaptive}'
            )

    @property
    def tableau(self) -> Tableau:
        """The coefficients of the method."""
        if isinstance(self.method, Tableau):
            return self.method
        return METHODS[check_choice("method", self.method, METHODS)]

    @property
    def backend(self) -> Backend:
        """The backend that `compile` asks for."""
        return find_backend(self.compile)

    @property
    def shared_step(self) -> bool:
        """Whether all samples take the same steps."""
        return self.step == "batch"

    @property
    def tolerance(self) -> Tolerance:
        """The tolerance of a step."""
        return Tolerance(float(self.rtol), float(self.atol))

    @property
    def rule(self) -> StepSizeRule:
        """The rule that chooses step sizes."""
        return PID() if self.step_rule is None else self.step_rule

    def changed(self, **changes: Any) -> SolveOptions:
        """The same options with some other values; an unknown name is refused."""
        for name in changes:
            check_choice("option", name, self.as_dict())
        return replace(self, **changes) if changes else self

    def non_default(self) -> dict[str, Any]:
        """The options that differ from their defaults, by name."""
        return {it.name: getattr(self, it.name) for it in fields(self) if getattr(self, it.name) != it.default}

    def as_dict(self) -> dict[str, Any]:
        """All options by name: the keyword arguments of `ncode.solve`."""
        return {it.name: getattr(self, it.name) for it in fields(self)}


class SampleInputs(NamedTuple):
    """Inputs of which every sample has a row of its own (or their gradients, None where not needed)."""

    theta: tuple[Any, ...]  # the constant control
    t0: Any
    t1: Any
    ts: Any  # saved times, None without


@dataclass(frozen=True, eq=False)
class Problem:
    """A checked batch of initial value problems.

    Times are (batch,) in the precision of time (double); `t0_given`, `t1_given` and `ts_given` are as the user gave
    them, so that gradients reach them.
    """

    system: System
    options: SolveOptions
    z0: State
    theta: tuple[Tensor, ...]  # constant leaves: empty where feedback drives them
    t0: Tensor
    t1: Tensor
    ts: Tensor | None  # (batch, T)
    t0_given: float | Tensor
    t1_given: float | Tensor
    ts_given: Tensor | None
    dense: bool

    @property
    def batch(self) -> int:
        return self.t0.shape[0]

    @property
    def interpolates(self) -> bool:
        """Whether steps need dense output."""
        return self.dense or self.ts is not None

    @property
    def inputs(self) -> SampleInputs:
        """The inputs with one row per sample, apart from z0."""
        return SampleInputs(self.theta, self.t0, self.t1, self.ts)

    @property
    def fixed_count(self) -> int | None:
        """The number of steps, where it is known without reading a tensor."""
        needed = self._steps_needed
        return None if needed is None else min(needed, self.options.max_steps)

    @property
    def exceeds_max_steps(self) -> bool:
        """Whether that number is cut by max_steps."""
        return (self._steps_needed or 0) > self.options.max_steps

    @property
    def _steps_needed(self) -> int | None:
        dt = self.options.dt
        if dt is None or isinstance(self.t0_given, Tensor) or isinstance(self.t1_given, Tensor):
            return None
        return fixed_steps(self.t1_given - self.t0_given, dt)


def make_problem(
    dynamics: Dynamics,
    x0: Tensor,
    t0: Any,
    t1: Any,
    options: SolveOptions,
    *,
    theta: Control = None,
    feedback: Feedback | None = None,
    cost: Cost | None = None,
    save_at: Any = None,
    dense: bool = False,
) -> Problem:
    """Check the arguments of `solve` and make a Problem of them."""
    _check_functions(dynamics, feedback, cost)
    dtype = check_state(x0)
    leaves, spec = check_control(theta, x0)
    _check_values(x0, leaves)
    driven = _check_driven(x0, leaves, spec) if feedback is not None else ()
    time = torch.float32 if x0.device.type == "mps" else torch.float64
    t0_given, t0_all = check_time("t0", t0, x0, time)
    t1_given, t1_all = check_time("t1", t1, x0, time)
    if options.step == "batch" and x0.shape[0] and not _same_for_all(t0_given, t1_given):
        raise InputError('step="batch" takes one step for all samples, so t0 and t1 must be the same for all')
    ts_given, ts = (None, None) if save_at is None else check_saved(save_at, t0_all.detach(), t1_all.detach())
    costs = () if cost is None else (torch.zeros(x0.shape[0], dtype=dtype, device=x0.device),)
    return Problem(
        system=System(dynamics, feedback, cost, spec, dtype),
        options=options,
        z0=(x0, *driven, *costs),
        theta=() if feedback is not None else leaves,
        t0=t0_all,
        t1=t1_all,
        ts=ts,
        t0_given=t0_given,
        t1_given=t1_given,
        ts_given=ts_given,
        dense=dense,
    )


def check_state(x0: Any, name: str = "x0") -> torch.dtype:
    """Check x0; returns the real dtype that goes with it."""
    if not isinstance(x0, Tensor):
        raise InputError(f"{name} must be a tensor of shape (batch, ...); given {type(x0).__name__}")
    if x0.dim() == 0:
        raise InputError(f"{name} must have a batch dimension, (batch, ...); given shape (): use {name}[None]")
    if not (x0.is_floating_point() or x0.is_complex()):
        raise InputError(f"{name} must be of a floating or complex dtype; given {x0.dtype}: use {name}.float()")
    if x0.dtype in (torch.float16, torch.bfloat16):
        raise InputError(
            f"{name} is {x0.dtype}, too coarse to step in: keep the state in float32, and use torch.autocast inside the"
            " dynamics"
        )
    if x0.shape[0] and x0[0].numel() == 0:
        raise InputError(f"{name} of shape {tuple(x0.shape)} has no elements in a sample")
    return x0.real.dtype if x0.is_complex() else x0.dtype


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether all values are certainly finite; one read for all of them, since on CUDA each read synchronises."""
    sums = [tensor.detach().sum() for tensor in tensors]
    if len({each.dtype for each in sums}) > 1:
        if sums[0].device.type == "mps":
            return False  # MPS has no double precision
        sums = [each.abs().double() for each in sums]
    return cmath.isfinite(torch.stack(sums).sum().item())


def check_finite(name: str, tensor: Tensor) -> None:
    """Refuse nan and inf, naming the samples."""
    if is_symbolic() or tensor.numel() == 0:
        return
    bad = ~torch.isfinite(tensor.detach()).flatten(1).all(1) if tensor.dim() > 1 else ~torch.isfinite(tensor.detach())
    if bool(bad.any()):
        rows = bad.nonzero().flatten().tolist()
        shown = ", ".join(map(str, rows[:8])) + (", ..." if len(rows) > 8 else "")
        raise InputError(f"{name} is not finite in {len(rows)} of {len(tensor)} samples: {shown}")


def check_control(theta: Control, x0: Tensor) -> tuple[tuple[Tensor, ...], pytree.TreeSpec | None]:
    """Flatten theta and check its leaves."""
    if theta is None:
        return (), None
    leaves, spec = pytree.tree_flatten(theta)
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise InputError(
                "theta must be a tensor or a nested tuple, list or dict of tensors, each (batch, ...);"
                f" given a leaf of type {type(leaf).__name__}"
            )
        if leaf.dim() == 0 or leaf.shape[0] != x0.shape[0]:
            raise InputError(
                f"theta has a leaf of shape {tuple(leaf.shape)}, but the batch has {len(x0)} samples: every leaf must"
                f" be ({len(x0)}, ...); expand a shared control, or use it in a closure"
            )
        if leaf.device != x0.device:
            raise InputError(f"theta is on {leaf.device} and x0 on {x0.device}: move one of them")
    return tuple(leaves), spec


def check_time(name: str, t: Any, x0: Tensor, dtype: torch.dtype) -> tuple[float | Tensor, Tensor]:
    """A time as it was given, and as (batch,) in the precision of time."""
    batch = x0.shape[0]
    if isinstance(t, numbers.Real) and not isinstance(t, bool):
        if not math.isfinite(t):
            raise InputError(f"{name} must be finite; given {t}")
        return float(t), torch.full((batch,), float(t), dtype=dtype, device=x0.device)
    if not isinstance(t, Tensor):
        raise InputError(f"{name} must be a number or a tensor of shape () or ({batch},); given {type(t).__name__}")
    if t.is_complex() or t.dtype == torch.bool:
        raise InputError(f"{name} must be real; given {t.dtype}")
    if t.dim() > 1 or (t.dim() == 1 and len(t) != batch):
        raise InputError(f"{name} must have shape () or ({batch},), one time per sample; given {tuple(t.shape)}")
    refuse_mapped(name, t)
    if not bool(torch.isfinite(t.detach()).all()):
        raise InputError(f"{name} must be finite; given {t.detach().tolist()}"[:300])
    return t, t.to(x0.device, dtype).expand(batch)


def check_saved(ts: Any, t0: Tensor, t1: Tensor) -> tuple[Tensor, Tensor]:
    """Saved times as they were given and as (batch, T): within [t0, t1], in the direction of the solve."""
    batch = t0.shape[0]
    try:
        given = ts if isinstance(ts, Tensor) else torch.as_tensor(ts, dtype=t0.dtype, device=t0.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"save_at must be a tensor of times or something like one; given {ts!r} ({error})") from None
    if given.is_complex() or given.dtype == torch.bool:
        raise InputError(f"save_at must be real; given {given.dtype}")
    refuse_mapped("save_at", given)
    if given.dim() not in (1, 2) or (given.dim() == 2 and len(given) != batch):
        raise InputError(
            f"save_at must have shape (T,), times shared by all, or ({batch}, T), each sample's own;"
            f" given {tuple(given.shape)}"
        )
    full = given.to(t0.device, t0.dtype).expand(batch, given.shape[-1])
    if is_symbolic() or full.numel() == 0:
        return given, full
    times = full.detach()
    forward = (t1 >= t0)[:, None]
    ordered = torch.where(forward, times[:, 1:] >= times[:, :-1], times[:, 1:] <= times[:, :-1])
    if not bool(ordered.all()):
        raise InputError("save_at is out of order: its times must go from t0 towards t1")
    low, high = torch.minimum(t0, t1)[:, None], torch.maximum(t0, t1)[:, None]
    # Times made in single precision may miss the interval's end by their rounding.
    slack = (4 * torch.finfo(given.dtype).eps if given.is_floating_point() else 0.0) * torch.maximum(
        low.abs(), high.abs()
    )
    outside = ~((times >= low - slack) & (times <= high + slack))
    if bool(outside.any()):
        row = int(outside.any(1).nonzero()[0])
        raise InputError(
            f"save_at has times outside of [t0, t1]: sample {row} is solved from {float(t0[row]):.6g} to"
            f" {float(t1[row]):.6g}, and asked for {float(times[row].min()):.6g} to {float(times[row].max()):.6g}"
        )
    inside = torch.minimum(torch.maximum(times, low), high)
    return given, full + (inside - times)  # moved by rounding at most, and without a gradient of its own


def _check_functions(dynamics: Any, feedback: Any, cost: Any) -> None:
    for name, function in (("dynamics", dynamics), ("feedback", feedback), ("cost", cost)):
        if function is not None or name == "dynamics":
            check_function(name, function, ("t", "x", "theta"))


def _check_values(x0: Tensor, leaves: Sequence[Tensor]) -> None:
    """Refuse a state or control that is not finite; which samples are, is read only if some are not."""
    if is_symbolic() or all_finite((x0, *(leaf for leaf in leaves if leaf.dtype != torch.bool))):
        return
    check_finite("x0", x0)
    for leaf in leaves:
        check_finite("theta", leaf)


def _check_driven(x0: Tensor, leaves: State, spec: pytree.TreeSpec | None) -> State:
    """The control as a part of z."""
    if spec is None:
        raise InputError("feedback drives a control, but theta is None: give the control at t0")
    for leaf in leaves:
        if leaf.dtype != x0.dtype:
            raise InputError(f"a control with feedback must be {x0.dtype} like x0; given a leaf of {leaf.dtype}")
    return leaves


def _same_for_all(*times: float | Tensor) -> bool:
    return all(not isinstance(t, Tensor) or t.dim() == 0 or bool((t == t[0]).all()) for t in times)


def refuse_mapped(name: str, times: Tensor) -> None:
    """Times decide on the number of steps, so torch.func.vmap cannot map over them."""
    if is_mapped(times):
        raise InputError(
            f"{name} is mapped by torch.func.vmap, and solve must read times: solve is batched already, so put the"
            " mapped dimension into the batch"
        )
