"""The door: every argument is checked before any work, and put into the shapes that the solver uses."""

from __future__ import annotations

import cmath
import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._torch_private import is_mapped, is_symbolic, pytree
from ..checks import check_choice, check_count, check_number
from ..errors import InputError
from .field import Control, Cost, Dynamics, Feedback, Field, State
from .stepsize import PID, Tolerance, fixed_steps
from .tableau import METHODS, Tableau

GRADIENTS = ("discrete", "adjoint", "autograd")


@dataclass(frozen=True, eq=False)
class Problem:
    """A checked batch of initial value problems.

    Times are (batch,) in the precision of time (double); `t0_given`, `t1_given` and `ts_given` are as the user gave
    them, so that gradients find their way back.
    """

    field: Field
    tableau: Tableau
    z0: State
    theta: tuple[Tensor, ...]  # constant leaves: empty where feedback drives them
    t0: Tensor
    t1: Tensor
    ts: Tensor | None  # (batch, T)
    t0_given: float | Tensor
    t1_given: float | Tensor
    ts_given: Tensor | None
    dt: float | None
    together: bool
    pid: PID
    tolerance: Tolerance
    max_steps: int
    dense: bool

    @property
    def batch(self) -> int:
        return self.t0.shape[0]

    @property
    def rows(self) -> tuple[Tensor, ...]:
        """Inputs of which every sample has a row of its own: the constant control, t0, t1 and saved times."""
        return (*self.theta, self.t0, self.t1, *(() if self.ts is None else (self.ts,)))

    @property
    def fixed_count(self) -> int | None:
        """The number of steps, where it is known without looking at a tensor."""
        needed = self._fixed_needed
        return None if needed is None else min(needed, self.max_steps)

    @property
    def fixed_short(self) -> bool:
        """Whether that number is cut by max_steps."""
        return (self._fixed_needed or 0) > self.max_steps

    @property
    def _fixed_needed(self) -> int | None:
        if self.dt is None or isinstance(self.t0_given, Tensor) or isinstance(self.t1_given, Tensor):
            return None
        return fixed_steps(self.t1_given - self.t0_given, self.dt)


def check_state(x0: Any) -> torch.dtype:
    """Check x0; returns the real dtype that goes with it."""
    if not isinstance(x0, Tensor):
        raise InputError(f"x0 must be a tensor of shape (batch, ...); given {type(x0).__name__}")
    if x0.dim() == 0:
        raise InputError("x0 must have a batch dimension, (batch, ...); given a tensor of shape (): use x0[None]")
    if not (x0.is_floating_point() or x0.is_complex()):
        raise InputError(f"x0 must be of a floating or complex dtype; given {x0.dtype}: use x0.float()")
    if x0.dtype in (torch.float16, torch.bfloat16):
        raise InputError(
            f"x0 is {x0.dtype}, too coarse to step in: keep the state in float32, and use torch.autocast inside the"
            " dynamics"
        )
    if x0.shape[0] and x0[0].numel() == 0:
        raise InputError(f"x0 of shape {tuple(x0.shape)} has no elements in a sample")
    return x0.real.dtype if x0.is_complex() else x0.dtype


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Whether all values are certainly finite: one look for all of them, since on CUDA each look waits."""
    sums = [tensor.detach().sum() for tensor in tensors]
    if len({each.dtype for each in sums}) > 1:
        if sums[0].device.type == "mps":
            return False  # no double precision there
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
                f" be ({len(x0)}, ...); expand a shared control, or catch it in a closure"
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
        raise InputError(f"{name} must have shape () or ({batch},), one time a sample; given {tuple(t.shape)}")
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
            f"save_at must have shape (T,), times shared by all, or ({batch}, T), a sample's own;"
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


def check_slope(field: Field, z: State, slope: Sequence[Any]) -> None:
    """Check what the dynamics, the feedback and the cost returned at the first evaluation."""
    names = ["the dynamics"] + ["the feedback"] * field.driven + ["the cost"] * (field.cost is not None)
    if len(slope) != len(z):
        raise InputError(
            f"the feedback returned {len(slope) - len(z) + field.driven} tensors for a control of {field.driven}:"
            " it must return what theta is nested as"
        )
    for name, leaf, k in zip(names, z, slope, strict=True):
        if not isinstance(k, Tensor):
            raise InputError(f"{name} must return a tensor; returned {type(k).__name__}")
        if k.shape != leaf.shape:
            what = "one number a sample" if name == "the cost" else "the shape of what it drives"
            raise InputError(f"{name} returned shape {tuple(k.shape)}; expected {what}, {tuple(leaf.shape)}")
        if k.dtype != leaf.dtype:
            raise InputError(f"{name} returned {k.dtype}; expected {leaf.dtype}: convert the result with .to(x.dtype)")
        if k.device != leaf.device:
            raise InputError(f"{name} returned a tensor on {k.device}; expected {leaf.device}")


def check(
    dynamics: Dynamics,
    x0: Tensor,
    t0: Any,
    t1: Any,
    theta: Control,
    feedback: Feedback | None,
    cost: Cost | None,
    save_at: Any,
    dense: bool,
    method: str,
    rtol: float,
    atol: float,
    dt: float | None,
    step: str,
    pid: PID,
    max_steps: int,
) -> Problem:
    """Check the arguments of `solve` and make a Problem of them."""
    _check_functions(dynamics, feedback, cost)
    tableau, tolerance, dt = check_method(method, rtol, atol, dt)
    check_choice("step", step, ("sample", "batch"))
    max_steps = check_count("max_steps", max_steps)
    if not isinstance(pid, PID):
        raise InputError(f"pid must be a PID, such as PID(p=0.2); given {type(pid).__name__}")

    dtype = check_state(x0)
    leaves, spec = check_control(theta, x0)
    _check_values(x0, leaves)
    driven = _check_driven(x0, leaves, spec) if feedback is not None else ()
    time = torch.float32 if x0.device.type == "mps" else torch.float64
    t0_given, t0_all = check_time("t0", t0, x0, time)
    t1_given, t1_all = check_time("t1", t1, x0, time)
    if step == "batch" and x0.shape[0] and not _shared(t0_given, t1_given):
        raise InputError('step="batch" takes one step for all samples, so t0 and t1 must be the same for all')
    ts_given, ts = (None, None) if save_at is None else check_saved(save_at, t0_all.detach(), t1_all.detach())
    costs = () if cost is None else (torch.zeros(x0.shape[0], dtype=dtype, device=x0.device),)
    return Problem(
        field=Field(dynamics, feedback, cost, spec, dtype),
        tableau=tableau,
        z0=(x0, *driven, *costs),
        theta=() if feedback is not None else leaves,
        t0=t0_all,
        t1=t1_all,
        ts=ts,
        t0_given=t0_given,
        t1_given=t1_given,
        ts_given=ts_given,
        dt=dt,
        together=step == "batch",
        pid=pid,
        tolerance=tolerance,
        max_steps=max_steps,
        dense=dense,
    )


def _check_functions(dynamics: Any, feedback: Any, cost: Any) -> None:
    for name, function in (("dynamics", dynamics), ("feedback", feedback), ("cost", cost)):
        if not callable(function) and not (function is None and name != "dynamics"):
            raise InputError(f"{name} must be a function of (t, x, theta); given {type(function).__name__}")


def check_method(method: Any, rtol: Any, atol: Any, dt: Any) -> tuple[Tableau, Tolerance, float | None]:
    """How steps are taken and judged."""
    tableau = METHODS[check_choice("method", method, METHODS)]
    rtol, atol = check_number("rtol", rtol, low=0.0), check_number("atol", atol, low=0.0)
    if rtol == 0.0 and atol == 0.0:
        raise InputError("rtol and atol are both 0: no step is that exact")
    if dt is not None:
        dt = check_number("dt", dt, low=0.0, strict=True)
    elif not tableau.adaptive:
        adaptive = ", ".join(name for name, known in METHODS.items() if known.adaptive)
        raise InputError(f'method "{method}" has no error estimate: give a step size dt, or use one of {adaptive}')
    return tableau, Tolerance(rtol, atol), dt


def _check_values(x0: Tensor, leaves: Sequence[Tensor]) -> None:
    """Refuse a state or control that is not finite. Who it was is only asked where something is wrong."""
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


def _shared(*times: float | Tensor) -> bool:
    return all(not isinstance(t, Tensor) or t.dim() == 0 or bool((t == t[0]).all()) for t in times)


def refuse_mapped(name: str, times: Tensor) -> None:
    """Times decide how many steps there are, so torch.func.vmap cannot map over them."""
    if is_mapped(times):
        raise InputError(
            f"{name} is mapped by torch.func.vmap, and solve must look at times: solve is batched already, so put the"
            " mapped dimension into the batch"
        )
