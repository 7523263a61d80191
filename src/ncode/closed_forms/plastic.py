"""Hebbian control without its matrices: dx/dt = rho(theta x), dtheta/dt = mu * x x^T - decay * theta (* elementwise).

Let an explicit Runge-Kutta method take steps of size h on (x, theta), with stages x_i, theta_i and slopes

    s_i = rho(theta_i x_i),    G_i = mu * x_i x_i^T - decay theta_i.

theta's equation is linear in theta, so its stages can be solved for by hand. With the method's a (strictly lower
triangular), b, and L = (I + h decay a)^-1,

    theta_i = phi_i theta + sum_j psi_ij mu * x_j x_j^T,      phi = L 1,    psi = L h a,
    theta'  = keep theta + sum_j new_j mu * x_j x_j^T,        keep = 1 - h decay b.phi,    new = h (b - decay psi^T b).

So at every evaluation e theta is a known multiple of theta_0 plus a weighted sum over the stage vectors before it,
whatever the presentations were, and since (mu * x_k x_k^T) x = x_k * (mu (x_k * x)),

    v_e = theta x_e = scale_e theta_0 x_e + sum_{k < e} W_ek x_k * (mu (x_k * x_e)).                            (1)

This is the very discretisation that `ncode.solve` makes of the same steps, and equal to it up to rounding. Backward,
with v'_e the gradient of v_e, adds for each e, from the last to the first,

    x'_e += scale_e theta_0^T v'_e + sum_k x_k * y_k,      y_k = W_ek mu^T (x_k * v'_e),
    x'_k += W_ek v'_e * (mu (x_k * x_e)) + x_e * y_k,                                                           (2)
    mu' += sum_k W_ek (x_k * v'_e) (x_k * x_e)^T,          theta_0' += scale_e v'_e x_e^T.

There are two formulations, with K evaluations in all:

    vectors   (1) and (2) as they stand. theta is never formed: memory is K vectors a sample, the work is one product
              of (batch k, n) with mu an evaluation. The products mu (x_k * x_e), K^2 / 2 of them a sample, are computed
              again in backward and not kept; the rows of mu' are gathered, so that few large products make it.
    matrix    theta is formed at the start of each step, so that the sums in (1) and (2) run over this step alone, and
              its gradient is carried from step to step: with T' that after the step,

                  x'_j += new_j (mu * T' + (mu * T')^T) x_j,    mu' += T' * sum_j new_j x_j x_j^T,
                  T' <- keep T' + sum_i phi_i v'_i x_i^T.

              Backward makes theta again from the vectors. The work is K matrix-vector products a sample instead of
              K^2 / 2, and memory four matrices a sample on top.

"auto" takes the second where n <= 3 K: four matrices are then no larger than the dozen vectors an evaluation that the
first holds. So memory grows with K n, and never with n squared a sample.

Steps are fixed here. For steps chosen by the error use `ncode.solve` with feedback.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InputError
from ..ode.problem import check_choice, check_count, check_finite, check_number, check_state
from ..ode.stepsize import fixed_steps
from ..ode.tableau import METHODS
from .plastic_parts import Plan, outer_sum, product
from .plastic_pass import present
from .plastic_weights import plan_weights

FORMULATIONS = ("auto", "vectors", "matrix")


@dataclass(frozen=True, eq=False)
class Trace:
    """theta at the end of an episode, as scale * theta_0 + mu * sum_k w_k x_k x_k^T. Takes part in autograd."""

    theta0: Tensor  # (n, n) or (batch, n, n)
    mu: Tensor  # (n, n)
    scale: Tensor  # ()
    weights: Tensor  # (K,)
    vectors: Tensor  # (K, batch, n)

    def theta(self) -> Tensor:
        """The matrices themselves, (batch, n, n)."""
        return self.scale * self.theta0 + self.mu * outer_sum(self.weights, self.vectors)

    def times(self, x: Tensor) -> Tensor:
        """theta x for x (batch, n), without the matrices."""
        seen = self.vectors * ((self.vectors * x) @ self.mu.mT)
        return self.scale * product(self.theta0, x) + torch.einsum("k,kbn->bn", self.weights, seen)


class Episode(NamedTuple):
    """What an episode leaves."""

    x: Tensor  # at the end of the last presentation, (batch, n)
    xs: Tensor  # at the end of each, (batch, P, n)
    trace: Trace  # theta after the last


def episode(
    stimuli: Tensor,
    theta0: Tensor,
    mu: Tensor,
    *,
    duration: float = 0.5,
    dt: float | None = None,
    steps: int | None = None,
    method: str = "rk4",
    rho: Callable[[Tensor], Tensor] = torch.tanh,
    decay: float | Tensor = 0.0,
    formulation: str = "auto",
) -> Episode:
    """Present stimuli one after another: x starts from each and runs free for `duration`, and theta is carried on.

    dx/dt = rho(theta x), dtheta/dt = mu * x x^T - decay * theta. Equal, up to rounding, to one `ncode.solve` with
    feedback a presentation, but theta is not kept for each step, and the whole has one backward.

    Args:
        stimuli: Where x starts in each presentation, (batch, P, n), float32 or float64.
        theta0: The coupling at first, (n, n), or a sample's own, (batch, n, n).
        mu: The rates of learning, (n, n).
        duration: How long each presentation lasts.
        dt, steps: Give one: the step size (a presentation's last step may be shorter), or the number of equal steps.
        method: Any of `METHODS`. Every stage is a vector to remember: few stages and large steps are cheapest.
        rho: A function of (batch, n) to the same shape. Gradients also reach the parameters it may have.
        decay: The rate at which theta decays, a number or a tensor () that may want a gradient.
        formulation: "vectors", "matrix" or "auto": see the module. All give the same up to rounding.

    Returns:
        Episode(x, xs, trace). Gradients reach stimuli, theta0, mu, decay and rho's parameters; there are no second
        derivatives: use `ncode.solve` with gradient="autograd" for those.

    >>> import torch
    >>> patterns = torch.tensor([[[1.0, -1.0, 1.0], [1.0, -1.0, 0.0]]])  # shown whole, then with a hole
    >>> recalled = episode(patterns, torch.zeros(3, 3), torch.ones(3, 3), steps=1)
    >>> recalled.x.sign()
    tensor([[ 1., -1.,  1.]])
    """
    tableau = METHODS[check_choice("method", method, METHODS)]
    check_choice("formulation", formulation, FORMULATIONS)
    _check(stimuli, theta0, mu)
    sizes = _sizes(duration, dt, steps)
    weights = plan_weights(tableau, sizes * stimuli.shape[1], _rate(decay))
    formed = formulation == "matrix" or (formulation == "auto" and stimuli.shape[2] <= 3 * len(weights.phi))
    scale, total, keep = ((weights.phi if formed else weights.scale), weights.scale, weights.keep)
    plan = Plan(tableau, sizes, rho, formed, *(numbers.tolist() for numbers in (scale, total, keep)))
    ends, vectors = present(plan, stimuli, theta0, mu, weights)
    last_scale, last = (part.to(stimuli.device, stimuli.dtype) for part in (weights.last_scale, weights.last))
    return Episode(ends[-1], ends.transpose(0, 1), Trace(theta0, mu, last_scale, last, vectors))


def _sizes(duration: float, dt: float | None, steps: int | None) -> list[float]:
    """The steps of one presentation, as `ncode.solve` makes them."""
    duration = check_number("duration", duration, low=0.0, strict=True)
    if dt is not None and steps is None:
        dt = check_number("dt", dt, low=0.0, strict=True)
        count = fixed_steps(duration, dt)
        return [dt] * (count - 1) + [duration - dt * (count - 1)]
    if steps is not None and dt is None:
        count = check_count("steps", steps)
        return [duration / count] * count
    raise InputError(f"give either a step size dt or the number of steps a presentation; given dt={dt}, steps={steps}")


def _rate(decay: Any) -> Tensor:
    """The rate of decay in double precision, where the small matrices are solved."""
    if isinstance(decay, Tensor):
        if decay.numel() != 1 or not decay.is_floating_point():
            raise InputError(
                f"decay must be a number or a tensor of shape (); given {decay.dtype} {tuple(decay.shape)}"
            )
        # On a GPU this waits once: the table below is many tiny operations, quicker on the CPU.
        return decay.reshape(()).to("cpu", torch.float64)
    return torch.tensor(check_number("decay", decay, low=0.0), dtype=torch.float64)


def _check(stimuli: Any, theta0: Any, mu: Any) -> None:
    """Refuse what does not fit, with a sentence."""
    if not isinstance(stimuli, Tensor) or stimuli.dim() != 3 or stimuli.is_complex() or 0 in stimuli.shape[1:]:
        given = f"{stimuli.dtype} {tuple(stimuli.shape)}" if isinstance(stimuli, Tensor) else type(stimuli).__name__
        raise InputError(
            f"stimuli must be real and of shape (batch, P, n), P presentations of n elements; given {given}"
        )
    check_state(stimuli)
    batch, _, n = stimuli.shape
    for name, given, known in (("theta0", theta0, ((n, n), (batch, n, n))), ("mu", mu, ((n, n),))):
        if not isinstance(given, Tensor):
            raise InputError(f"{name} must be a tensor; given {type(given).__name__}")
        if tuple(given.shape) not in known:
            raise InputError(
                f"{name} must be {' or '.join(map(str, known))} for stimuli of {n} elements; given {tuple(given.shape)}"
            )
        if given.dtype != stimuli.dtype or given.device != stimuli.device:
            raise InputError(
                f"{name} must be {stimuli.dtype} on {stimuli.device} like the stimuli;"
                f" given {given.dtype} on {given.device}"
            )
        check_finite(name, given)
    check_finite("stimuli", stimuli)
