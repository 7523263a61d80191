"""Coefficients of interpolations: tensors that a data loader can hold, and that the interpolations are made of.

Data x are (..., length, channels), with nan for missing values; times t (length,) are shared. A cubic is stored as
(a, b, 2 c, 3 d), next to each other in the last dimension, with x(t) = a + b o + c o^2 + d o^3 and o = t - t_i.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from ... import paths
from ...errors import InputError, check_count, check_tensor


def linear_interpolation_coeffs(x: Tensor, t: Tensor | None = None, rectilinear: int | None = None) -> Tensor:
    """The knots of a linear interpolation: x with its missing values filled in.

    Args:
        x: Data, (..., length, channels).
        t: Times, (length,), increasing. Default: 0, 1, 2, ...
        rectilinear: The channel that is the time, for an interpolation that moves first in time and then in value, and
            so depends on no later value.

    Returns:
        (..., length, channels), or (..., 2 length - 1, channels) if rectilinear: for `LinearInterpolation`.

    >>> import torch
    >>> linear_interpolation_coeffs(torch.tensor([[1.0], [float("nan")], [3.0]])).flatten()
    tensor([1., 2., 3.])
    """
    check_data(x)
    if rectilinear is None:
        return _read(x, t).fill_linear().reshape(x.shape)
    channel = check_count("rectilinear", rectilinear, low=0)
    if channel >= x.shape[-1]:
        raise InputError(f"rectilinear must be a channel of x, 0 to {x.shape[-1] - 1}; given {rectilinear}")
    if bool(x[..., channel].isnan().any()):
        raise InputError(f"x has missing times in channel {channel}: fill in the last time of each sample")
    if bool(x[..., 0, :].isnan().any()):
        warnings.warn(
            "x begins with missing values, and the first observation is used for them, which is not causal: fill them"
            " in with something else if that matters",
            stacklevel=2,
        )
    points = _read(x, None).fill_forward().reshape(x.shape).repeat_interleave(2, -2)
    is_time = torch.arange(x.shape[-1], device=x.device) == channel
    points = torch.where(is_time, points[..., 1:, :], points[..., :-1, :])
    _check_times(points, t)
    return points


def hermite_cubic_coefficients_with_backward_differences(x: Tensor, t: Tensor | None = None) -> Tensor:
    """The coefficients of cubic Hermite splines with backward differences, (..., length - 1, 4 channels).

    Args:
        x, t: As for `linear_interpolation_coeffs`.

    Returns:
        For `CubicSpline`.

    >>> import torch
    >>> hermite_cubic_coefficients_with_backward_differences(torch.randn(2, 10, 3)).shape
    torch.Size([2, 9, 12])
    """
    check_data(x)
    data = _read(x, t)
    c = paths.hermite(data.fill_linear(), data.knots, data.lengths).coefficients[:, 1:-1]
    # Of the powers 0 to 3, as torchcde stores them.
    c = c * torch.tensor([1.0, 1.0, 2.0, 3.0], dtype=c.dtype, device=c.device)[:, None]
    return c.flatten(2).reshape(*x.shape[:-2], x.shape[-2] - 1, 4 * x.shape[-1])


def natural_cubic_coeffs(x: Tensor, t: Tensor | None = None) -> Tensor:
    """The coefficients of natural cubic splines, (..., length - 1, 4 channels).

    Args:
        x, t: As for `linear_interpolation_coeffs`. Missing values at the ends of a channel are the nearest observation;
            elsewhere a spline goes through the observations alone.

    Returns:
        For `CubicSpline`.

    >>> import torch
    >>> natural_cubic_coeffs(torch.randn(2, 10, 3)).shape
    torch.Size([2, 9, 12])
    """
    check_data(x)
    data = _read(x, t)
    values, times = data.values.mT.flatten(0, 1), data.knots[0]  # one series per channel
    left, right, _, missing = data.neighbours()
    if not missing:
        slopes = _natural_slopes(values, times.diff())
        pieces = torch.stack(_cubics(values, times.diff(), slopes), -1)
    else:
        between = ((left >= 0) & (right < x.shape[-2]) & data.values.isnan()).mT.flatten(0, 1)
        pieces = _spline_of_some(data.fill_linear().mT.flatten(0, 1), times, ~between)
    coefficients = pieces.unflatten(0, (-1, x.shape[-1])).permute(0, 2, 3, 1)
    return coefficients.reshape(*x.shape[:-2], x.shape[-2] - 1, 4 * x.shape[-1])


def _spline_of_some(values: Tensor, times: Tensor, used: Tensor) -> Tensor:
    """The pieces (n, length - 1, 4) of splines through some of the values (n, length), those `used`.

    The used values of each series are moved to its front, and the rest is padding of length 1 without curvature. Then
    the polynomial of a used interval is moved to where each interval of the data begins.
    """
    count = values.shape[1]
    number = used.sum(1, keepdim=True)
    order = (~used).long().argsort(dim=1, stable=True)
    inside = torch.arange(count, device=values.device) < number
    knots = times.expand_as(values).gather(1, order)
    front = values.gather(1, order)
    last = number - 1
    knots = torch.where(inside, knots, knots.gather(1, last) + 1.0 + torch.arange(count, device=times.device) - last)
    front = torch.where(inside, front, front.gather(1, last))
    steps = knots.diff(dim=1)
    slopes = _natural_slopes(front, steps, inside[:, 1:])
    piece = (used.cumsum(1) - 1)[:, :-1]
    a, b, c, d = (term.gather(1, piece) for term in _cubics(front, steps, slopes))
    o = times[:-1] - knots.gather(1, piece)
    return torch.stack([a + (b + (c / 2 + d * o / 3) * o) * o, b + (c + d * o) * o, c + 2 * d * o, d], -1)


def _cubics(values: Tensor, steps: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """a, b, 2 c and 3 d of the cubics with these values and slopes (n, length) at their ends."""
    mean = values.diff(dim=1) / steps
    first, second = slopes[:, :-1], slopes[:, 1:]
    return (
        values[:, :-1],
        first,
        2 * (3 * mean - 2 * first - second) / steps,
        3 * (first + second - 2 * mean) / steps**2,
    )


def _natural_slopes(values: Tensor, steps: Tensor, inner: Tensor | None = None) -> Tensor:
    """The slopes at the knots of natural splines, by elimination in their tridiagonal system.

    With r_i = 1 / h_i and w_i = 3 r_i^2 (v_{i+1} - v_i) it is

        r_{i-1} s_{i-1} + 2 (r_{i-1} + r_i) s_i + r_i s_{i+1} = w_{i-1} + w_i,

    where what lies outside is left out. So are pieces that are not `inner`: rows of padding become s_i = 0.
    """
    r, count = steps.reciprocal(), values.shape[1]
    r = r.expand(len(values), -1) if inner is None else torch.where(inner, r, 0.0)
    pull = 3 * r.square() * values.diff(dim=1)
    zero = r.new_zeros(len(values), 1)
    diagonal = 2 * (torch.cat([zero, r], 1) + torch.cat([r, zero], 1))
    diagonal = torch.where(diagonal == 0, 1.0, diagonal)
    right = torch.cat([zero, pull], 1) + torch.cat([pull, zero], 1)
    diagonals, rights = [diagonal[:, 0]], [right[:, 0]]
    for i in range(1, count):
        weight = r[:, i - 1] / diagonals[-1]
        diagonals.append(diagonal[:, i] - weight * r[:, i - 1])
        rights.append(right[:, i] - weight * rights[-1])
    slopes = [rights[-1] / diagonals[-1]]
    for i in range(count - 2, -1, -1):
        slopes.append((rights[i] - r[:, i] * slopes[-1]) / diagonals[i])
    return torch.stack(slopes[::-1], 1)


def check_data(x: Any) -> None:
    if check_tensor("x", x).dim() < 2 or not x.is_floating_point():
        raise InputError(f"x must be a floating tensor (..., length, channels); given {x.dtype} {tuple(x.shape)}")
    if x.shape[-2] < 2:
        raise InputError(f"x must have a length of at least 2, (..., length, channels); given {tuple(x.shape)}")


def _check_times(x: Tensor, t: Tensor | None) -> None:
    if t is not None and check_tensor("t", t).shape != (x.shape[-2],):
        raise InputError(f"t must be ({x.shape[-2]},), one time per row of x {tuple(x.shape)}; given {tuple(t.shape)}")


def _read(x: Tensor, t: Tensor | None) -> paths.Data:
    """The data as (n, length, channels), all of the same length."""
    _check_times(x, t)
    flat = x.reshape(-1, *x.shape[-2:])
    return paths.read_data(flat, t, torch.full((len(flat),), x.shape[-2], device=x.device))
