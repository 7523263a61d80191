"""The arguments of `solve`, checked: functions, states and controls, and times."""

from __future__ import annotations

import cmath
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._torch_private import is_mapped, is_symbolic, is_tracing, pytree
from ..errors import InputError, check_function, check_number, check_tensor, format_value
from .system import Control, State

Callback = Callable[[Tensor, Any, Tensor], Any]


def check_state(x0: Any, name: str = "x0") -> torch.dtype:
    """Check x0; returns the real dtype that goes with it."""
    if not isinstance(x0, Tensor):
        raise InputError(f"{name} must be a tensor of shape (batch, ...); given {type(x0).__name__}")
    check_tensor(name, x0)
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


def check_nested_state(x0: Any) -> tuple[State, pytree.TreeSpec | None, torch.dtype]:
    """The leaves of x0, how they nest (None for one tensor), and the real dtype that goes with them."""
    if isinstance(x0, Tensor):
        return (x0,), None, check_state(x0)
    try:
        named, spec = pytree.tree_flatten_with_path(x0)
    except RecursionError:
        raise InputError("x0 is nested too deeply: use fewer levels of tuples, lists and dicts") from None
    if not named:
        raise InputError("x0 holds no tensor: give one (batch, ...), or a nested tuple, list or dict of such")
    names = [f"x0{pytree.keystr(path)}" for path, _ in named]
    leaves = tuple(leaf for _, leaf in named)
    for leaf, name in zip(leaves, names, strict=True):
        if not isinstance(leaf, Tensor):
            where = "" if name == "x0" else f", in which {name} is {type(leaf).__name__}"
            raise InputError(
                "x0 must be a tensor of shape (batch, ...), or a nested tuple, list or dict of such; given"
                f" {type(x0).__name__}{where}"
            )
    dtypes = [check_state(leaf, name) for leaf, name in zip(leaves, names, strict=True)]
    first = leaves[0]
    for leaf, name, dtype in zip(leaves, names, dtypes, strict=True):
        if leaf.shape[0] != first.shape[0]:
            raise InputError(f"{name} has {leaf.shape[0]} samples and {names[0]} {first.shape[0]}: give both the same")
        if leaf.device != first.device:
            raise InputError(f"{name} is on {leaf.device} and {names[0]} on {first.device}: move one of them")
        if dtype != dtypes[0]:
            raise InputError(f"{name} is {leaf.dtype} and {names[0]} {first.dtype}: use one precision for all of x0")
    return leaves, spec, dtypes[0]


def check_implicit(method: str, x0: Tensor) -> None:
    """Refuse what methods that use Jacobians cannot do."""
    if x0.is_complex():
        raise InputError(
            f"method {method!r} needs Jacobians, which exist for real states only; given {x0.dtype}: solve for"
            " torch.view_as_real(x), or use an explicit method"
        )
    if is_symbolic():
        raise InputError(
            f"method {method!r} needs Jacobians, and does not work inside torch.func transforms, torch.export or a CUDA"
            " graph of your own: use an explicit method there, or call solve outside"
        )


def check_control(theta: Control, x0: Tensor) -> tuple[tuple[Tensor, ...], pytree.TreeSpec | None]:
    """Flatten theta and check its leaves."""
    if theta is None:
        return (), None
    try:
        leaves, spec = pytree.tree_flatten(theta)
    except RecursionError:
        raise InputError("theta is nested too deeply: use fewer levels of tuples, lists and dicts") from None
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise InputError(
                "theta must be a tensor or a nested tuple, list or dict of tensors, each (batch, ...);"
                f" given a leaf of type {type(leaf).__name__}"
            )
        if leaf.device != x0.device:
            raise InputError(f"theta is on {leaf.device} and x0 on {x0.device}: move one of them")
        check_tensor("theta", leaf)
        if leaf.dim() == 0 or leaf.shape[0] != x0.shape[0]:
            if leaf.dim() and hasattr(theta, "knots"):  # a path, whose leaves a user has not seen
                one = len(leaf) == 1
                hint = f"use path.expand({len(x0)})" if one else "make a path with one row per sample"
                raise InputError(f"the path has {len(leaf)} sample{'' if one else 's'}, x0 has {len(x0)}: {hint}")
            raise InputError(
                f"theta has a leaf of shape {tuple(leaf.shape)}, but the batch has {len(x0)} samples: every leaf must"
                f" be ({len(x0)}, ...); expand a shared control, or use it in a closure"
            )
    return tuple(leaves), spec


def check_driven(x0: Tensor, leaves: State, spec: pytree.TreeSpec | None) -> State:
    """The control as a part of z."""
    if spec is None:
        raise InputError("feedback drives a control, but theta is None: give the control at t0")
    for leaf in leaves:
        if leaf.dtype != x0.dtype:
            raise InputError(f"a control with feedback must be {x0.dtype} like x0; given a leaf of {leaf.dtype}")
    return leaves


def time_dtype(device: torch.device) -> torch.dtype:
    """The precision of time: double, which MPS does not have."""
    return torch.float32 if device.type == "mps" else torch.float64


def check_time(name: str, t: Any, x0: Tensor) -> tuple[float | Tensor, Tensor]:
    """A time as it was given, and as (batch,) in the precision of time."""
    batch, dtype = x0.shape[0], time_dtype(x0.device)
    if isinstance(t, numbers.Real) and not isinstance(t, bool):
        number = check_number(name, t, low=-math.inf)
        return number, torch.full((batch,), number, dtype=dtype, device=x0.device)
    if not isinstance(t, Tensor):
        raise InputError(f"{name} must be a number or a tensor of shape () or ({batch},); given {type(t).__name__}")
    check_tensor(name, t)
    if t.is_complex() or t.dtype == torch.bool:
        raise InputError(f"{name} must be real; given {t.dtype}")
    if t.dim() > 1 or (t.dim() == 1 and len(t) != batch):
        raise InputError(
            f"{name} must have shape () or ({batch},), one time per sample; given {tuple(t.shape)}: times at which to"
            " return the solution are save_at"
        )
    _refuse_mapped(name, t)
    if not bool(torch.isfinite(t.detach()).all()):
        raise InputError(f"{name} must be finite; given {t.detach().tolist()}"[:300])
    return t, t.to(x0.device, dtype).expand(batch)


class Interval(NamedTuple):
    """An interval of time, and the saved times in it; each (batch,) or (batch, T), in the precision of time."""

    t0: Tensor
    t1: Tensor
    ts: Tensor | None
    ts_given: Tensor | None


def check_interval(t0: Any, t1: Any, save_at: Any, x0: Tensor) -> Interval:
    """Check both ends and the saved times."""
    begin, end = check_time("t0", t0, x0)[1], check_time("t1", t1, x0)[1]
    given, ts = (None, None) if save_at is None else check_saved(save_at, begin.detach(), end.detach())
    return Interval(begin, end, ts, given)


def _check_times(name: str, ts: Any, t0: Tensor) -> tuple[Tensor, Tensor]:
    """Times as they were given, (T,) or (batch, T), and as (batch, T)."""
    batch = t0.shape[0]
    try:
        given = ts if isinstance(ts, Tensor) else torch.as_tensor(ts, dtype=t0.dtype, device=t0.device)
    except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError) as error:
        what = f"{name} must be a tensor of times or something like one; given {format_value(ts)}"
        raise InputError(f"{what} ({error})") from None
    check_tensor(name, given)
    if given.is_complex() or given.dtype == torch.bool:
        raise InputError(f"{name} must be real; given {given.dtype}")
    _refuse_mapped(name, given)
    if given.dim() not in (1, 2) or (given.dim() == 2 and len(given) != batch):
        raise InputError(
            f"{name} must have shape (T,), times shared by all, or ({batch}, T), each sample's own;"
            f" given {tuple(given.shape)}"
        )
    return given, given.to(t0.device, t0.dtype).expand(batch, given.shape[-1])


def check_saved(ts: Any, t0: Tensor, t1: Tensor) -> tuple[Tensor, Tensor]:
    """Saved times as they were given and as (batch, T): within [t0, t1], towards t1, or nan (padding)."""
    given, full = _check_times("save_at", ts, t0)
    if is_symbolic() or full.numel() == 0:
        return given, full
    times, missing = full.detach(), full.detach().isnan()
    # The order of times that are there: a padded one counts as one before all others.
    ahead = torch.where(missing, -math.inf, torch.where((t1 >= t0)[:, None], times, -times))
    if not bool((missing | (ahead >= ahead.cummax(1).values)).all()):
        raise InputError("save_at is out of order: its times must go from t0 towards t1")
    low, high = torch.minimum(t0, t1)[:, None], torch.maximum(t0, t1)[:, None]
    # Times made in single precision may miss the interval's end by their rounding.
    slack = (4 * torch.finfo(given.dtype).eps if given.is_floating_point() else 0.0) * torch.maximum(
        low.abs(), high.abs()
    )
    outside = ~missing & ~((times >= low - slack) & (times <= high + slack))
    if bool(outside.any()):
        row = int(outside.any(1).nonzero()[0])
        asked = times[row][~missing[row]]
        raise InputError(
            f"save_at has times outside of [t0, t1]: sample {row} is solved from {float(t0[row]):.6g} to"
            f" {float(t1[row]):.6g}, and asked for {float(asked.min()):.6g} to {float(asked.max()):.6g}"
        )
    inside = torch.minimum(torch.maximum(times, low), high)
    return given, full + (inside - times)  # moved by rounding at most, and without a gradient of its own


def check_jumps(jump_ts: Any, t0: Tensor, shared_step: bool) -> tuple[Tensor | None, bool]:
    """Jumps as (batch, n), infinite where there is none, or None without any; and whether each sample has its own."""
    if jump_ts is None:
        return None, False
    if torch.compiler.is_exporting() or is_tracing():
        raise InputError("the steps of a solve with jump_ts depend on values, and an exported or traced solve has none")
    given, full = _check_times("jump_ts", jump_ts, t0)
    if shared_step and given.dim() == 2:
        raise InputError('step="batch" takes one step for all samples, so jump_ts must be (n,), the same for all')
    return torch.where(full.detach().isnan(), torch.inf, full) if full.shape[1] else None, given.dim() == 2


def _refuse_mapped(name: str, times: Tensor) -> None:
    """Times decide on the number of steps, so torch.func.vmap cannot map over them."""
    if is_mapped(times):
        raise InputError(
            f"{name} is mapped by torch.func.vmap, and solve must read times: solve is batched already, so put the"
            " mapped dimension into the batch"
        )


def check_functions(dynamics: Any, feedback: Any, cost: Any) -> None:
    for name, function in (("dynamics", dynamics), ("feedback", feedback), ("cost", cost)):
        if function is not None or name == "dynamics":
            check_function(name, function, ("t", "x", "theta"), adapt=True)


def check_jacobian(dynamics: Any) -> None:
    """Check the method `jacobian` of the dynamics, if there is one."""
    if (supplied := getattr(dynamics, "jacobian", None)) is not None:
        check_function(f"the method jacobian of {type(dynamics).__name__}", supplied, ("t", "x", "theta"))


def check_callback(callback: Any) -> Callback:
    if is_symbolic():
        raise InputError("callback is called with values, and an exported or traced solve has none: leave it out")
    return check_function("callback", callback, ("t", "x", "accepted"))


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
