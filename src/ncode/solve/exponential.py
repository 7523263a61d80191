"""The exact flow of linear dynamics under a constant control: dx/dt = theta x, so x(t) = exp(theta (t - t0)) x0.

With A = theta (t1 - t0), one number decides the cost: alpha, a bound on the growth of the powers of A. Al-Mohy and
Higham (2009, 2011) show that ||A^p||^(1/p) may stand for the norm in the error of Taylor's series, so

    alpha = min(||A||, max(||A^2||^(1/2), ||A^3||^(1/3)), max(||A^3||^(1/3), ||A^4||^(1/4)), ...)

is near the spectral radius where ||A|| may be far above it, and Taylor's polynomial T_K of degree K obeys

    T_K(A) = exp(A + dA),    ||dA|| <= alpha * alpha^K e^alpha / (K + 1)!                                       (1)

Two formulations take the same n equal parts of [t0, t1], each so short that (1) is below the precision asked for:

    matrix    P_0 = T_16(A / n) by Paterson and Stockmeyer's scheme (six products), n = 2^S, P_{i+1} = P_i P_i, and
              x(t1) = P_{S-1} P_{S-1} x0. A saved time t0 + (j + r) (t1 - t0) / n multiplies the P_i that the binary
              digits of j name, all times at once, and then takes r of a step by Taylor's series on the vector.
    action    x_{j+1} = T_K(A / n) x_j, term by term on the vector: no matrix is formed, and a row of k non-zeros
              costs k multiplications. Saved times start from the nearest x_j before them, all at once.

Both compute in double precision whatever precision is given, and (1) is then asked to be below 1e-9 for single and
2^-53 for double: rounding in single precision would be amplified by ||A||, up to 100 in what this is made for, and a
decaying solution loses e^(2 alpha / n) to cancellation in Taylor's series.

Gradients are those of these very polynomials, so exact to rounding; they reach theta, x0 and all times. The matrix
formulation is an ordinary graph. The action keeps one state a step and computes the terms of a step again during
backward; it has no second derivatives (ask for the matrix).

Which one, by measurement (benchmarks/probe_exponential.py): see `_action_is_faster`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .problem import check_finite, check_number, check_saved, check_state, check_time, choose, symbolic
from .status import InputError

FORMULATIONS = ("auto", "matrix", "action")

_DEGREE = 16  # of the matrix formulation: 4 * 4, so that three powers and three Horner steps make it
_MATRIX_REACH = {torch.float32: 1.95, torch.float64: 0.78}  # the largest alpha / n that (1) allows at that degree
_ACTION_REACH = {torch.float32: 6.0, torch.float64: 2.0}  # cancellation costs e^(2 reach): 2e5 and 55 units of 1e-16
_POWERS = 6  # how many powers the action looks at for alpha


class Flow(NamedTuple):
    """Where a linear flow leads."""

    x: Tensor  # at t1, (batch, m)
    xs: Tensor | None  # at save_at, (batch, T, m)


class _Times(NamedTuple):
    """The interval as it is used, in double precision."""

    span: Tensor  # t1 - t0, (batch,)
    sigma: Tensor | None  # saved times as fractions of the span, (batch, T)


def linear_flow(
    theta: Tensor,
    x0: Tensor,
    t0: float | Tensor,
    t1: float | Tensor,
    *,
    columns: Tensor | None = None,
    save_at: Tensor | None = None,
    formulation: str = "auto",
    bound: float | None = None,
) -> Flow:
    """Solve dx/dt = theta x for a batch, exactly: x(t) = exp(theta (t - t0)) x0.

    Args:
        theta: The control, a matrix a sample: dense (batch, m, m), or with `columns` its non-zeros (batch, m, k).
        x0: The state at t0, (batch, m), float32 or float64.
        t0, t1: Numbers, or tensors () or (batch,). t1 < t0 goes backward in time.
        columns: The pattern (m, k), the same for all: theta[b, i, j] stands in row i and column columns[i, j]. Entries
            of a row that share a column add up.
        save_at: Times to return the state at, shared (T,) or a sample's own (batch, T), from t0 towards t1.
        formulation: "matrix", "action" (sparse rows only) or "auto", which takes the one that was measured to be faster.
        bound: A number that ||theta (t1 - t0)|| never exceeds, in the norm of largest row sums. With it no value is
            looked at, so the GPU is not waited for, and the flow can be mapped by torch.func.vmap, exported, or captured
            as a CUDA graph. Without, the number of parts follows from the largest alpha of the batch; companions then
            change a sample by rounding in double precision and no more.

    Returns:
        Flow(x, xs): the states at t1 and, where asked for, at the saved times. A solution too large for its precision
        is inf or nan.

    >>> import math, torch
    >>> turn = torch.tensor([[[0.0, -1.0], [1.0, 0.0]]])
    >>> linear_flow(turn, torch.tensor([[1.0, 0.0]]), 0.0, math.pi / 2).x.round(decimals=5).abs()
    tensor([[0., 1.]])
    """
    choose("formulation", formulation, FORMULATIONS)
    _check(theta, x0, columns, formulation)
    work = torch.float32 if x0.device.type == "mps" else torch.float64
    t0_given, t0_all = check_time("t0", t0, x0, work)
    t1_given, t1_all = check_time("t1", t1, x0, work)
    del t0_given, t1_given
    if bound is not None:
        bound = check_number("bound", bound, low=0.0)
    ts = None if save_at is None else check_saved(save_at, t0_all.detach(), t1_all.detach())[1]
    if len(x0) == 0:
        return Flow(x0, None if ts is None else x0.new_zeros(0, ts.shape[1], x0.shape[1]))
    span = t1_all - t0_all
    sigma = None if ts is None else (ts - t0_all[:, None]) / torch.where(span == 0, 1.0, span)[:, None]
    times = _Times(span, sigma)
    scaled, start = theta.to(work) * span[:, None, None], x0.to(work)
    if columns is None:
        x, xs = _by_matrix(scaled, start, times.sigma, bound, x0.dtype)
    else:
        x, xs = _by_rows(scaled, start, times.sigma, columns, formulation, bound, x0.dtype)
    return Flow(x.to(x0.dtype), None if xs is None else xs.to(x0.dtype))
