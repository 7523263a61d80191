"""`piecewise_linear_flow`: dx/dt = theta_k x + b_k on the k-th of K intervals, solved exactly, interval by interval.

    x_{k+1} = E_k x_k + c_k,    E_k = exp(theta_k h_k),    c_k = h_k phi_1(theta_k h_k) b_k,    h_k = s_{k+1} - s_k,

where one exponential gives both, exp([[theta_k, b_k], [0, 0]] h_k) = [[E_k, c_k], [0, 1]]. The exponentials of all
intervals are computed together (taylor.py), then `linear_recurrence` gives the states at all knots, in one of two ways:

    loop    K products of a matrix and a vector, one after another
    scan    the map x -> E_k x + c_k followed by the next is such a map again, (E_{k+1} E_k, E_{k+1} c_k + c_{k+1}). So
            neighbours are joined in pairs, the recurrence of half the length gives every second state, and one product
            each gives the others: 2 log2(K) consecutive steps, but products of matrices.

The gradient is the same recurrence backward, lambda_k = E_k^T lambda_{k+1} + g_k with the gradients g_k of the states,
and dE_k = lambda_{k+1} x_k^T, dc_k = lambda_{k+1}. So it takes one pass, in the same way, and has derivatives itself.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..dynamics.base import matvec
from ..errors import InputError, check_choice, check_tensor
from ..ode.arguments import check_state, time_dtype
from .linear import largest_alpha
from .taylor import exponential, growth_of_powers, powers_of

if TYPE_CHECKING:  # shapes as jaxtyping writes them; tests/test_shapes.py checks them with its types
    from typing import Annotated as Float
    from typing import Annotated as Real

RECURRENCES = ("auto", "loop", "scan")


def piecewise_linear_flow(
    theta: Float[Tensor, "batch intervals m m"],
    x0: Float[Tensor, "batch m"],
    knots: Real[Tensor, "knots"] | Real[Tensor, "batch knots"],
    *,
    bias: Float[Tensor, "batch intervals m"] | None = None,
    recurrence: str = "auto",
) -> Float[Tensor, "batch knots m"]:
    """Solve dx/dt = theta_k x + b_k between knots k and k + 1, exactly, for a batch. Gradients reach all arguments.

    In a block, `ncode.dynamics.Linear` with an `InputControl` along a piecewise constant path is solved by it.

    Args:
        theta: The control of each interval, (batch, K, m, m).
        x0: The state at the first knot, (batch, m), float32 or float64. Computed in double precision.
        knots: The K + 1 ends of the intervals, shared (K + 1,) or per sample (batch, K + 1), in the direction of time.
        bias: b, (batch, K, m). Default: 0.
        recurrence: "loop" or "scan", as for `linear_recurrence`. Default: the one expected to be faster.

    Returns:
        The states at all knots, (batch, K + 1, m).

    >>> import math, torch
    >>> from ncode.closed_forms import piecewise_linear_flow
    >>> turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
    >>> theta = torch.stack([turn, -turn])[None]  # a quarter to the left, then one to the right
    >>> xs = piecewise_linear_flow(theta, torch.tensor([[1.0, 0.0]]), torch.tensor([0.0, 1.0, 2.0]) * math.pi / 2)
    >>> xs.round(decimals=5).abs()
    tensor([[[1., 0.],
             [0., 1.],
             [1., 0.]]])
    """
    check_choice("recurrence", recurrence, RECURRENCES)
    times = _check_flow(theta, x0, knots, bias)
    work = time_dtype(x0.device)
    batch, count, m, _ = theta.shape
    x, step = x0.to(work), times.to(work).diff(dim=1)[..., None, None]
    if batch == 0 or count == 0:
        return x0[:, None].expand(-1, count + 1, -1)
    a = theta.to(work) * step
    if bias is not None:
        column = torch.cat([bias.to(work)[..., None] * step, step.new_zeros(batch, count, 1, 1)], 2)
        a = torch.cat([torch.cat([a, a.new_zeros(batch, count, 1, m)], 2), column], 3)
    powers = powers_of(a.flatten(0, 1))
    alpha = largest_alpha(growth_of_powers(powers).reshape(batch, count).amax(1), a, x)
    e = exponential(powers, alpha, x0.dtype).unflatten(0, (batch, count))
    c = None if bias is None else e[..., :m, m]
    return linear_recurrence(e[..., :m, :m], x, c, recurrence=recurrence).to(x0.dtype)


def linear_recurrence(
    e: Float[Tensor, "batch steps m m"],
    x0: Float[Tensor, "batch m"],
    c: Float[Tensor, "batch steps m"] | None = None,
    *,
    recurrence: str = "auto",
) -> Float[Tensor, "batch states m"]:
    """The states x_0, ..., x_K of x_{k+1} = E_k x_k + c_k, (batch, K + 1, m), by one call with one backward.

    Args:
        e: The matrices, (batch, K, m, m).
        x0: The first state, (batch, m).
        c: What is added, (batch, K, m). Default: nothing.
        recurrence: "loop": step by step. "scan": with logarithmic depth, but m times as many operations. "auto": the
            one expected to be faster.

    >>> import torch
    >>> from ncode.closed_forms import linear_recurrence
    >>> linear_recurrence(torch.full((1, 3, 1, 1), 2.0), torch.ones(1, 1)).flatten()
    tensor([1., 2., 4., 8.])
    """
    check_choice("recurrence", recurrence, RECURRENCES)
    _check_recurrence(e, x0, c)
    if e.shape[1] == 0:
        return x0[:, None]
    if recurrence == "auto":
        recurrence = "scan" if scan_is_faster(e) else "loop"
    return _Recurrence.apply(e, x0, c, recurrence == "scan")  # pyright: ignore[reportReturnType]


# Seconds of one step of the loop, of one level of the scan, and per element of the products of each.
_SECONDS = {
    "cpu": (17e-6, 120e-6, 2.2e-9, 1.1e-9),  # one thread of an AMD EPYC (Zen 4), by benchmarks/probe_recurrence.py
    "cuda": (60e-6, 200e-6, 1e-12, 2e-12),  # estimated: operations of 10 to 15 us, and the products of linear.py
}


def scan_is_faster(e: Tensor) -> bool:
    """Whether a scan is expected to be faster than a loop, with its backward."""
    batch, count, m, _ = e.shape
    step, level, vector, matrix = _SECONDS.get(e.device.type, _SECONDS["cuda"])
    loop = count * (step + vector * batch * m**2)
    return math.log2(count + 1) * level + matrix * batch * count * m**3 < loop


class _Recurrence(torch.autograd.Function):
    """All states of a recurrence; backward runs the transposed one."""

    @staticmethod
    def forward(e: Tensor, x0: Tensor, c: Tensor | None, scan: bool) -> Tensor:  # pyright: ignore
        return _scanned(e, x0, c) if scan else _looped(e, x0, c)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:  # pyright: ignore
        ctx.save_for_backward(inputs[0], output)
        ctx.scan = inputs[3]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (e, xs), g = ctx.saved_tensors, grads[0]
        # Differentiable, so that second derivatives exist.
        back = _Recurrence.apply(e.mT.flip(1), g[:, -1], g[:, :-1].flip(1), ctx.scan).flip(1)  # pyright: ignore
        wanted, later = ctx.needs_input_grad, back[:, 1:]
        de = later[..., None] * xs[:, :-1, None] if wanted[0] else None
        return de, back[:, 0] if wanted[1] else None, later if wanted[2] else None, None


def _looped(e: Tensor, x0: Tensor, c: Tensor | None) -> Tensor:
    x, states = x0, [x0]
    for k, matrix in enumerate(e.unbind(1)):
        x = matvec(matrix, x) if c is None else matvec(matrix, x) + c[:, k]
        states.append(x)
    return torch.stack(states, 1)


def _scanned(e: Tensor, x0: Tensor, c: Tensor | None) -> Tensor:
    """The recurrence by one of half the length."""
    count = e.shape[1]
    if count < 4:
        return _looped(e, x0, c)
    first, second, rest = e[:, 0 : count - 1 : 2], e[:, 1::2], count % 2
    a, b = (None, None) if c is None else (c[:, 0 : count - 1 : 2], c[:, 1::2])
    both = None if a is None or b is None else _matvecs(second, a) + b
    even = _scanned(second @ first, x0, both)
    odd = _matvecs(first, even[:, :-1])
    odd = odd if a is None else odd + a
    states = torch.cat([torch.stack([even[:, :-1], odd], 2).flatten(1, 2), even[:, -1:]], 1)
    if not rest:
        return states
    last = matvec(e[:, -1], states[:, -1]) if c is None else matvec(e[:, -1], states[:, -1]) + c[:, -1]
    return torch.cat([states, last[:, None]], 1)


def _matvecs(e: Tensor, x: Tensor) -> Tensor:
    """E_k x_k for all k, (batch, K, m)."""
    return matvec(e.flatten(0, 1), x.flatten(0, 1)).unflatten(0, x.shape[:2])


def _check_flow(theta: Tensor, x0: Tensor, knots: Tensor, bias: Tensor | None) -> Tensor:
    """Check the arguments of a flow; returns the knots as (batch, K + 1)."""
    check_state(x0)
    if x0.dim() != 2 or x0.is_complex():
        raise InputError(f"x0 must be real and of shape (batch, m); given {x0.dtype} {tuple(x0.shape)}")
    batch, m = x0.shape
    if check_tensor("theta", theta).dim() != 4 or (theta.shape[0], *theta.shape[2:]) != (batch, m, m):
        raise InputError(f"theta must be ({batch}, K, {m}, {m}), one matrix per interval; given {tuple(theta.shape)}")
    _check_alike(x0, theta=theta, bias=bias)
    count = theta.shape[1]
    if bias is not None and bias.shape != (batch, count, m):
        raise InputError(f"bias must be ({batch}, {count}, {m}), as theta; given {tuple(bias.shape)}")
    if check_tensor("knots", knots).device != x0.device:
        raise InputError(f"knots are on {knots.device} and x0 on {x0.device}: move one of them")
    if knots.shape not in ((count + 1,), (batch, count + 1)):
        raise InputError(
            f"knots must be ({count + 1},) or ({batch}, {count + 1}), the ends of {count} intervals; given"
            f" {tuple(knots.shape)}"
        )
    return knots.expand(batch, count + 1)


def _check_recurrence(e: Tensor, x0: Tensor, c: Tensor | None) -> None:
    if check_tensor("x0", x0).dim() != 2 or check_tensor("e", e).dim() != 4:
        raise InputError(f"expected e (batch, K, m, m) and x0 (batch, m); given {tuple(e.shape)}, {tuple(x0.shape)}")
    (batch, m), count = x0.shape, e.shape[1]
    if e.shape != (batch, count, m, m):
        raise InputError(f"e must be ({batch}, K, {m}, {m}) for x0 {tuple(x0.shape)}; given {tuple(e.shape)}")
    if c is not None and check_tensor("c", c).shape != (batch, count, m):
        raise InputError(f"c must be ({batch}, {count}, {m}); given {tuple(c.shape)}")
    _check_alike(x0, e=e, c=c)


def _check_alike(x0: Tensor, **others: Tensor | None) -> None:
    for name, value in others.items():
        if value is not None and (check_tensor(name, value).device != x0.device or value.dtype != x0.dtype):
            raise InputError(
                f"{name} is {value.dtype} on {value.device} and x0 {x0.dtype} on {x0.device}: convert one of them"
            )
