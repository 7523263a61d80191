"""`linear_flow`: the exact solution of dx/dt = theta x for a constant control theta, x(t) = exp(theta (t - t0)) x0.

With A = theta (t1 - t0), the cost depends on alpha, a bound on the growth of the powers of A. Al-Mohy and Higham (2009,
2011) show that in the error of the Taylor series the norm of A can be replaced by

    alpha = min(||A||, max(||A^2||^(1/2), ||A^3||^(1/3)), max(||A^3||^(1/3), ||A^4||^(1/4))),

which is often near the spectral radius where ||A|| is far above it. The Taylor polynomial of degree K >= 5 satisfies

    T_K(A) = exp(A + dA),    ||dA|| / ||A|| <= alpha^K e^alpha / (K + 1)!  to leading order.                    (1)

Two formulations, both in taylor.py, divide [t0, t1] into n equal parts, so short that (1) with alpha / n is small:

    matrix    P_0 = T_16(A / n) in six products (Paterson and Stockmeyer), n = 2^S, P_{i+1} = P_i P_i, and then
              x(t1) = P_{S-1} P_{S-1} x0. A saved time t0 + (j + r) (t1 - t0) / n multiplies x0 by those P_i that the
              binary digits of j select, and takes the fraction r of a part by the Taylor series applied to the vector;
              all times at once.
    action    x_{j+1} = T_K(A / n) x_j on the vector, so no matrix is formed, and a row of k non-zeros costs k
              multiplications per term. Saved times start from the x_j before them, all times at once.

Both compute in double precision and require (1) to be below 1e-9 for single and 2^-53 for double precision results. In
single precision, rounding errors would be amplified by ||A||, up to 100 in practice.

Gradients are those of these polynomials, exact up to rounding, and reach theta, x0 and all times. The action keeps one
state per part, recomputes the terms during backward, and has no second derivatives, unlike the matrix formulation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .._torch_private import is_symbolic
from ..dynamics.base import dense_rows
from ..errors import InputError, check_choice, check_number
from ..ode.arguments import check_finite, check_interval, check_state
from .taylor import act, growth_of_powers, growth_of_rows, plan_action, powers_of, square_and_multiply

if TYPE_CHECKING:  # shapes as jaxtyping writes them; tests/test_shapes.py checks them with its types
    from typing import Annotated as Float
    from typing import Annotated as Int64
    from typing import Annotated as Real

FORMULATIONS = ("auto", "matrix", "action")

_SECONDS = {
    "cpu": (45e-6, 6e-6, 3e-9, 0.7e-3, 2.6e-9),  # one thread of an AMD EPYC (Zen 4)
    "cuda": (230e-6, 35e-6, 3e-11, 4.2e-3, 2e-12),  # an H200; its host takes 10 to 15 us per operation
}

_MAX_ALPHA = 1e15  # rounding is amplified by alpha
_MAX_PARTS = 100_000  # more parts of an action indicate a mistake


class LinearFlow(NamedTuple):
    """The states of a linear flow."""

    x: Float[Tensor, "batch m"]  # at t1
    xs: Float[Tensor, "batch times m"] | None  # at save_at


def linear_flow(
    theta: Float[Tensor, "batch m k"],
    x0: Float[Tensor, "batch m"],
    t0: float | Real[Tensor, ""] | Real[Tensor, "batch"],
    t1: float | Real[Tensor, ""] | Real[Tensor, "batch"],
    *,
    columns: Int64[Tensor, "m k"] | None = None,
    save_at: Real[Tensor, "times"] | Real[Tensor, "batch times"] | None = None,
    formulation: str = "auto",
    bound: float | None = None,
) -> LinearFlow:
    """Solve dx/dt = theta x for a batch, exactly: x(t) = exp(theta (t - t0)) x0.

    Args:
        theta: The control, one matrix per sample: dense (batch, m, m), or with `columns` its non-zeros (batch, m, k).
        x0: The state at t0, (batch, m), float32 or float64.
        t0, t1: Numbers, or tensors () or (batch,). t1 < t0 goes backward in time.
        columns: The sparsity pattern (m, k), the same for all samples: theta[b, i, j] is the entry in row i and column
            columns[i, j]. Entries of a row with the same column add up.
        save_at: Times at which to return the state, shared (T,) or per sample (batch, T), from t0 towards t1; nan where
            a sample has fewer.
        formulation: "matrix", "action" (sparse rows only), or "auto": the one expected to be faster.
        bound: An upper bound of ||theta (t1 - t0)||, the largest row sum. With it, with numbers for t0 and t1, and
            without saved times, no value is read: there is no synchronisation with a GPU, and the flow can be mapped by
            torch.func.vmap, exported or captured as a CUDA graph. Without it, n follows from the largest alpha of the
            batch, so that other samples change a result by no more than rounding in double precision.

    Returns:
        LinearFlow(x, xs): the states at t1 and, with `save_at`, at the saved times. Values that overflow are inf or
        nan.

    >>> import math, torch
    >>> from ncode.closed_forms import linear_flow
    >>> turn = torch.tensor([[[0.0, -1.0], [1.0, 0.0]]])
    >>> linear_flow(turn, torch.tensor([[1.0, 0.0]]), 0.0, math.pi / 2).x.round(decimals=5).abs()
    tensor([[0., 1.]])
    """
    check_choice("formulation", formulation, FORMULATIONS)
    _check(theta, x0, columns, formulation)
    start, end, ts, _ = check_interval(t0, t1, save_at, x0)
    missing = None
    if ts is not None:
        missing = ts.detach().isnan()
        ts = torch.where(missing, start.detach()[:, None], ts)  # nan would reach gradients, even multiplied by 0
    if bound is not None:
        bound = check_number("bound", bound, low=0.0)
    if len(x0) == 0:
        return LinearFlow(x0, None if ts is None else x0[:, None].expand(-1, ts.shape[1], -1))

    span = end - start
    sigma = None if ts is None else (ts - start[:, None]) / torch.where(span == 0, 1.0, span)[:, None]
    flow = _flow(theta.to(start.dtype) * span[:, None, None], x0, columns, sigma, formulation, bound)
    if flow.xs is None or missing is None:
        return LinearFlow(flow.x.to(x0.dtype), None)
    return LinearFlow(flow.x.to(x0.dtype), torch.where(missing[:, :, None], torch.nan, flow.xs.to(x0.dtype)))


def _flow(
    a: Tensor, x0: Tensor, columns: Tensor | None, sigma: Tensor | None, formulation: str, bound: float | None
) -> LinearFlow:
    """exp(sigma A) x0 at sigma = 1 and at the saved fractions sigma (batch, T)."""
    x = x0.to(a.dtype)
    if columns is None or formulation == "matrix":
        return _by_matrix(a if columns is None else dense_rows(a, columns), x, sigma, bound, x0.dtype)
    alpha = largest_alpha(growth_of_rows(a.detach(), columns), a, x) if bound is None else bound
    parts, degree = plan_action(alpha, x0.dtype, 0 if sigma is None else sigma.shape[1])
    if formulation == "auto" and not _action_is_faster(a, parts * degree):
        return _by_matrix(dense_rows(a, columns), x, sigma, alpha, x0.dtype)
    if parts > _MAX_PARTS:
        raise InputError(
            f"the action would take {parts:.3g} parts, since theta (t1 - t0) is as large as {alpha:.3g}:"
            ' use formulation="matrix"'
        )
    return LinearFlow(*act(a, columns, x, sigma, parts, degree))


def _action_is_faster(values: Tensor, products: int) -> bool:
    """Whether the action, with this number of consecutive products, is expected to be faster than the matrix.

    Seconds for forward and backward, fitted to the measurements of benchmarks/probe_exponential.py:

        action    products * (c_0 + c_1 k + c_2 batch m k)        matrix    c_3 + c_4 batch m^3

    On a CPU the action is faster from about m = 32, since it needs m / k times less work. On a GPU its products are
    small consecutive kernels, while the matrix formulation is about ninety kernels in all and faster until m^3 fills
    the device.
    """
    batch, m, k = values.shape
    c = _SECONDS.get(values.device.type, _SECONDS["cuda"])
    return products * (c[0] + c[1] * k + c[2] * batch * m * k) < c[3] + c[4] * batch * m**3


def _by_matrix(a: Tensor, x: Tensor, sigma: Tensor | None, bound: float | None, dtype: torch.dtype) -> LinearFlow:
    powers = powers_of(a)
    alpha = largest_alpha(growth_of_powers(powers), a, x) if bound is None else bound
    return LinearFlow(*square_and_multiply(powers, x, sigma, alpha, dtype))


def largest_alpha(alpha: Tensor, a: Tensor, x: Tensor) -> float:
    """The largest alpha of the batch; raises for input that is not finite."""
    # The only synchronisation with a GPU. A finite x adds 0, any other makes the sum nan.
    largest = float((alpha + (x.detach() * 0).sum(1)).amax())
    if not largest < _MAX_ALPHA:
        check_finite("x0", x)
        check_finite("theta (t1 - t0)", a)
        raise InputError(f"theta (t1 - t0) is as large as {largest:.3g}: no digit of the flow would be right")
    return largest


def _check(theta: Tensor, x0: Tensor, columns: Tensor | None, formulation: str) -> None:
    check_state(x0)
    if x0.dim() != 2 or x0.is_complex():
        raise InputError(f"x0 must be real and of shape (batch, m); given {x0.dtype} {tuple(x0.shape)}")
    batch, m = x0.shape
    if not isinstance(theta, Tensor):
        raise InputError(f"theta must be a tensor; given {type(theta).__name__}")
    if theta.device != x0.device:
        raise InputError(f"theta is on {theta.device} and x0 on {x0.device}: move one of them")
    if theta.dtype != x0.dtype:
        raise InputError(f"theta is {theta.dtype} and x0 {x0.dtype}: convert one of them")
    if columns is None:
        if formulation == "action":
            raise InputError('formulation="action" is for sparse rows: give their columns, or use "matrix"')
        if theta.shape != (batch, m, m):
            raise InputError(
                f"theta must be ({batch}, {m}, {m}), one matrix per sample; given {tuple(theta.shape)}."
                " For sparse rows give their columns too"
            )
        return
    if not isinstance(columns, Tensor) or columns.dtype != torch.int64 or columns.device != x0.device:
        raise InputError(f"columns must be an int64 tensor on {x0.device}, as x0 is")
    if columns.dim() != 2 or len(columns) != m or columns.shape[1] == 0:
        raise InputError(f"columns must be ({m}, k), one per non-zero of each row; given {tuple(columns.shape)}")
    # Checking on a GPU would synchronise, and torch itself stops at an index out of range there.
    if columns.device.type == "cpu" and not is_symbolic() and not bool(((columns >= 0) & (columns < m)).all()):
        raise InputError(f"columns must be between 0 and {m - 1}; given {int(columns.min())} to {int(columns.max())}")
    if theta.shape != (batch, *columns.shape):
        raise InputError(
            f"theta must be {(batch, *columns.shape)}, one per entry of columns {tuple(columns.shape)};"
            f" given {tuple(theta.shape)}"
        )
