"""Pictures of trajectories and vector fields, of one or two elements of the state. Needs matplotlib.

Both functions draw into axes of matplotlib, their own if none are given, and return them:

    block = ncode.NCODE(ncode.dynamics.MLP(2), ncode.OpenLoop(trunk))
    sol = block.solve(x, save_at=torch.linspace(0, 1, 50))
    ax = ncode.plot.trajectories(sol)
    ncode.plot.field(block, x[0], ax)  # the field that the first sample sees
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ._torch_private import pytree
from .block import NCODE
from .errors import InputError, check_count, check_function, check_number, check_tensor, format_value, optional_import
from .ode import Solution

__all__ = ["field", "trajectories"]

Axes = Any  # of matplotlib, which the library does not need otherwise

TIMES = 200  # of a curve, if the solution has dense output
GREY = "0.7"
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")  # told apart by all eyes


def trajectories(
    solution: Solution,
    ax: Axes = None,
    *,
    dims: int | Sequence[int] | None = None,
    labels: Tensor | Sequence[Any] | None = None,
) -> Axes:
    """Draw the trajectory of each sample: x over t, or two elements of x against each other.

    A ring marks the start of a trajectory, a dot its end. A sample that failed ends where it failed.

    Args:
        solution: A solution with saved times (`save_at`) or dense output (`dense=True`).
        ax: Axes of matplotlib. Default: new ones.
        dims: The elements of a sample's x to draw, counted after flattening it: one, over time, or two. Default: all,
            if there are no more than two.
        labels: One per sample: samples with the same label have one colour. Default: one colour per sample.

    >>> import torch, ncode
    >>> turn = lambda t, x, theta: torch.stack([x[:, 1], -x[:, 0]], 1)
    >>> sol = ncode.solve(turn, torch.rand(3, 2), 0.0, 6.0, dense=True)
    >>> ax = ncode.plot.trajectories(sol)
    >>> ax.get_xlabel(), ncode.plot.trajectories(sol, dims=0).get_xlabel()
    ('$x_{0}$', '$t$')
    """
    ts, xs = _curves(solution)
    first, *second = _check_dims(dims, xs.shape[-1])
    colours, named = _colours(labels, len(xs))
    ax = _axes() if ax is None else ax
    across, up = (xs[..., first], xs[..., second[0]]) if second else (ts, xs[..., first])
    for horizontal, vertical, colour in zip(across, up, colours, strict=True):
        there = ~(horizontal.isnan() | vertical.isnan())
        if not bool(there.any()):
            continue
        a, b = horizontal[there].tolist(), vertical[there].tolist()
        ax.plot(a, b, color=colour, linewidth=1.2)
        ax.plot(a[:1], b[:1], marker="o", markersize=4, color=colour, markerfacecolor="white", linestyle="none")
        ax.plot(a[-1:], b[-1:], marker="o", markersize=4, color=colour, linestyle="none")
    _name_axes(ax, *((f"$x_{{{first}}}$", f"$x_{{{second[0]}}}$") if second else ("$t$", f"$x_{{{first}}}$")))
    for label, colour in named.items():
        ax.plot([], [], color=colour, label=str(label))
    if named:
        ax.legend()
    return ax


def field(
    dynamics: NCODE | Callable[..., Any],
    sample: Tensor,
    ax: Axes = None,
    *,
    t: float | tuple[float, float] | None = None,
    theta: Any = None,
    limits: tuple[float, float] | None = None,
    points: int = 17,
) -> Axes:
    """Draw the vector field that a sample sees: for two elements of x at one time, for one element over time.

    In an open loop each sample has a field of its own, and in a closed loop the field changes along its trajectory: the
    control is that of this sample at the time of the arrows.

    Args:
        dynamics: A block, or a function f(t, x, theta).
        sample: x at t0 of one sample, with one or two elements.
        ax: Axes of matplotlib. Default: new ones.
        t: For two elements of x, the time of the picture. Default: t0 of the block, or 0. For one element, the first
            and the last time. Default: those of the block, or (0, 1).
        theta: The control of this sample, for a function: None, or tensors of a batch of 1, nested as it takes them.
        limits: The range of each element of x. Default: that of `ax`, if something is drawn there; otherwise twice the
            size of the sample, at least from -1 to 1.
        points: The number of arrows along each axis.

    >>> import torch, ncode
    >>> block = ncode.NCODE(ncode.dynamics.MLP(2), ncode.OpenLoop(torch.nn.Linear(2, 4)))
    >>> ax = ncode.plot.field(block, torch.tensor([1.0, 0.5]), limits=(-2.0, 2.0))
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('$x_{0}$', '$x_{1}$')
    """
    sample, size = _check_sample(sample), sample.numel()
    points = check_count("points", points, low=2)
    times = _check_times(t, dynamics, size)
    velocity = _block_velocity(dynamics, sample, theta) if isinstance(dynamics, NCODE) else _velocity(dynamics, theta)
    fresh = ax is None or not ax.has_data()
    ax = _axes() if ax is None else ax
    spans = _spans(limits, sample, None if fresh else ax, times)
    across, up = (torch.linspace(*span, points, dtype=torch.float64) for span in spans)
    grid = torch.cartesian_prod(across, up)
    with torch.no_grad():
        if size == 1:
            columns = [velocity(float(time), up[:, None].to(sample)) for time in across]
            slopes = torch.cat(columns).double().cpu()
            arrows = torch.cat([torch.ones_like(slopes), slopes], 1)
        else:
            arrows = velocity(times[0], grid.to(sample)).double().cpu()
    (a, b), (u, v) = grid.T.tolist(), _on_paper(arrows, spans, points, same_length=size == 1).T.tolist()
    ax.quiver(a, b, u, v, color=GREY, width=0.003, zorder=0, pivot="mid", angles="xy", scale_units="xy", scale=1)
    if fresh:
        ax.set_xlim(*spans[0])
        ax.set_ylim(*spans[1])
    _name_axes(ax, *(("$t$", "$x_{0}$") if size == 1 else ("$x_{0}$", "$x_{1}$")))
    return ax


def _curves(solution: Any) -> tuple[Tensor, Tensor]:
    """Times (batch, T) and states (batch, T, n) of a solution, without gradients."""
    if not isinstance(solution, Solution):
        raise InputError(
            f"trajectories takes a Solution; given {type(solution).__name__}: use ncode.solve(..., save_at=ts), or"
            " block.solve(x, save_at=ts)"
        )
    if solution.interval is not None:
        t0, t1 = (it.double().cpu() for it in solution.interval)
        ts = t0[:, None] + torch.linspace(0, 1, TIMES, dtype=torch.float64) * (t1 - t0)[:, None]
        xs = solution(ts.to(solution.codes.device))
    elif solution.xs is not None and solution.ts is not None:
        ts, xs = solution.ts, solution.xs
    else:
        raise InputError("this solution has x at t1 alone: solve(..., save_at=ts) or solve(..., dense=True) keeps more")
    if not isinstance(xs, Tensor) or xs.is_complex():
        raise InputError("only a real x that is one tensor can be drawn: replace(sol, x=..., xs=...) with a part of it")
    return ts.detach().double().cpu(), xs.detach().double().cpu().flatten(2)


def _check_dims(dims: Any, size: int) -> tuple[int, ...]:
    if dims is None and size > 2:
        raise InputError(f"a sample's x has {size} elements: choose one or two of them, as in dims=(0, 1)")
    chosen = tuple(range(size)) if dims is None else tuple(dims) if isinstance(dims, Sequence) else (dims,)
    for dim in chosen:
        if check_count("an element of dims", dim, low=0) >= size:
            raise InputError(f"dims names element {dim}, and a sample's x has {size}, counted from 0")
    if len(chosen) not in (1, 2):
        raise InputError(f"dims must be one or two elements of x; given {format_value(dims)}")
    return chosen


def _colours(labels: Any, batch: int) -> tuple[list[str], dict[Any, str]]:
    """The colour of each sample, and those of the labels."""
    if labels is None:
        return [PALETTE[number % len(PALETTE)] for number in range(batch)], {}
    given = labels.tolist() if isinstance(labels, Tensor) else list(labels)
    if len(given) != batch:
        raise InputError(f"labels must be one per sample, {batch}; given {len(given)}")
    named = {label: PALETTE[number % len(PALETTE)] for number, label in enumerate(sorted(set(given)))}
    return [named[label] for label in given], named


def _check_sample(sample: Any) -> Tensor:
    """One sample, (1, n)."""
    check_tensor("sample", sample)
    if sample.numel() not in (1, 2) or not sample.is_floating_point():
        raise InputError(
            "a field can be drawn for a real x of one or two elements; given a sample of shape"
            f" {tuple(sample.shape)} and {sample.dtype}"
        )
    return sample.detach().reshape(1, -1)


def _check_times(t: Any, dynamics: Any, size: int) -> tuple[float, float]:
    """The first and the last time of the picture."""
    if t is None and isinstance(dynamics, NCODE):
        first, last = (float(it) for it in (dynamics.settings.t0, dynamics.settings.t1))
        return first, last if size == 1 else first
    if t is None:
        return 0.0, float(size == 1)
    pair = t if isinstance(t, (tuple, list)) else (t, t)
    if len(pair) != 2 or (size == 2 and pair[0] != pair[1]) or (size == 1 and pair[0] == pair[1]):
        raise InputError(
            "t must be one time for an x of two elements, and a pair of times, the first and the last, for one of one"
            f" element; given {format_value(t)}"
        )
    first, last = (check_number("t", it, low=-math.inf) for it in pair)
    return first, last


def _velocity(f: Any, theta: Any) -> Callable[[float, Tensor], Tensor]:
    """dx/dt of a function at one time, for many x."""
    check_function("dynamics", f, ("t", "x", "theta"), adapt=True)

    def velocity(t: float, x: Tensor) -> Tensor:
        control = pytree.tree_map_only(Tensor, lambda leaf: leaf.expand(len(x), *leaf.shape[1:]), theta)
        return f(x.new_full((len(x),), t), x, control)

    return velocity


def _block_velocity(block: NCODE, sample: Tensor, theta: Any) -> Callable[[float, Tensor], Tensor]:
    """dx/dt of a block at one time, for many x, with the control that this sample has then."""
    if theta is not None:
        raise InputError("a block sets theta by its controller: leave it out, or give block.dynamics as the function")
    if block.dynamics.lift(sample).shape != sample.shape:
        raise InputError(
            f"the state of {type(block.dynamics).__name__} has more elements than the sample: draw trajectories, or the"
            " field of a function of two elements"
        )

    def velocity(t: float, x: Tensor) -> Tensor:
        control = block.solve(sample, t1=t).theta
        return _velocity(block.dynamics, control)(t, x)

    return velocity


def _spans(limits: Any, sample: Tensor, ax: Axes, times: tuple[float, float]) -> tuple[tuple[float, float], ...]:
    """The ranges of both axes."""
    over_time = sample.numel() == 1
    if limits is not None:
        if not isinstance(limits, (tuple, list)) or len(limits) != 2 or not limits[0] < limits[1]:
            raise InputError(f"limits must be a pair of numbers, the lower first; given {format_value(limits)}")
        own = (float(limits[0]), float(limits[1]))
        return (times if over_time else own), own
    if ax is not None:
        return (times if over_time else ax.get_xlim()), ax.get_ylim()
    radius = max(1.0, 2 * float(sample.abs().max()))
    return (times if over_time else (-radius, radius)), (-radius, radius)


def _on_paper(arrows: Tensor, spans: Sequence[tuple[float, float]], points: int, same_length: bool) -> Tensor:
    """Arrows in the units of the axes, at most as long as the grid is wide; their length grows as a root of speed."""
    size = torch.tensor([high - low for low, high in spans], dtype=torch.float64)
    relative = (arrows / size).nan_to_num(0.0, 0.0, 0.0)
    speed = relative.norm(dim=1, keepdim=True).clamp_min(1e-300)
    length = torch.ones_like(speed) if same_length else (speed / speed.max()).sqrt()
    return relative / speed * length * size / points


def _axes() -> Axes:
    return optional_import("matplotlib.pyplot", "drawing", "plot").subplots(layout="constrained")[1]


def _name_axes(ax: Axes, across: str, up: str) -> None:
    if not ax.get_xlabel():
        ax.set_xlabel(across)
    if not ax.get_ylabel():
        ax.set_ylabel(up)
