"""`plastic_episode`: plastic weights without their matrices.

The equations are dx/dt = rho(theta x) - leak x, dtheta/dt = mu * l r^T - decay * theta, where * is elementwise, and

    Hebb's rule   l = x,            r = x
    Oja's rule    l = x,            r = x - theta^T x
    delta rule    l = x - theta x,  r = x.

Let an explicit Runge-Kutta method take steps of size h on (x, theta), with stages x_i, theta_i and slopes

    s_i = rho(theta_i x_i) - leak x_i,    G_i = mu * l_i r_i^T - decay theta_i.

Given the vectors l_i and r_i, the equation of theta is linear in theta, so its stages have a closed form. With the
method's a (strictly lower triangular), b, and L = (I + h decay a)^-1,

    theta_i = phi_i theta + sum_j psi_ij mu * l_j r_j^T,      phi = L 1,    psi = L h a,
    theta'  = keep theta + sum_j new_j mu * l_j r_j^T,        keep = 1 - h decay b.phi,    new = h (b - decay psi^T b).

So at every evaluation e theta is a known multiple of theta_0 plus a weighted sum over the earlier products, with
weights independent of the stimuli, and since (mu * l r^T) x = l * (mu (r * x)),

    v_e = theta x_e = scale_e theta_0 x_e + sum_{k < e} W_ek l_k * (mu (r_k * x_e)).                            (1)

theta^T x_e is the same with transposed matrices, and l and r exchanged. l_e and r_e then follow from x_e and these
products: the rules differ in nothing else. This equals `ncode.solve` with the same steps up to rounding. Backward,
with v'_e the gradient of v_e, adds for each e, from the last to the first,

    x'_e += scale_e theta_0^T v'_e + sum_k r_k * y_k,      y_k = W_ek mu^T (l_k * v'_e),
    l'_k += W_ek v'_e * (mu (r_k * x_e)),                  r'_k += x_e * y_k,                                   (2)
    mu' += sum_k W_ek (l_k * v'_e) (r_k * x_e)^T,          theta_0' += scale_e v'_e x_e^T,

and the gradients of l_e and r_e, complete by then, reach x_e and v_e (or theta^T x_e) as the rule says.

There are two formulations, with K evaluations in all:

    vectors   (1) and (2) as they are. theta is never formed: memory is K vectors per sample, the work is one product of
              (batch k, n) with mu per evaluation. The products mu (r_k * x_e), K^2 / 2 of them per sample, are not kept
              but recomputed in backward.
    matrix    theta is formed at the start of each step, so that the sums in (1) and (2) run over this step alone, and
              its gradient is carried from step to step: with T' that after the step,

                  l'_j += new_j (mu * T') r_j,    r'_j += new_j (mu * T')^T l_j,    mu' += T' * sum_j new_j l_j r_j^T,
                  T' <- keep T' + sum_i phi_i v'_i x_i^T.

              Backward recomputes theta from the vectors. The work is K matrix-vector products per sample instead of
              K^2 / 2, and memory four more matrices per sample.

"auto" takes the second if n <= 3 K: four matrices are then no larger than the dozen vectors per evaluation that the
first holds. So memory grows with K n, never with n squared per sample.

This file has the public function and the weights; plastic_passes.py has the forward and the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import InputError, check_choice, check_count, check_number
from ..ode.arguments import check_finite, check_state
from ..ode.step import fixed_steps
from ..ode.tableau import METHODS, Tableau
from .plastic_passes import RULES, Plan, Weights, outer_sum, product, run_episode

FORMULATIONS = ("auto", "vectors", "matrix")


@dataclass(frozen=True, eq=False)
class Trace:
    """theta at the end of an episode, as scale * theta_0 + mu * sum_k w_k l_k r_k^T, with gradients."""

    theta0: Tensor  # (n, n) or (batch, n, n)
    mu: Tensor  # (n, n)
    scale: Tensor  # ()
    weights: Tensor  # (K,)
    lefts: Tensor  # l, (K, batch, n)
    rights: Tensor  # r, (K, batch, n)

    def theta(self) -> Tensor:
        """The matrices, (batch, n, n)."""
        return self.scale * self.theta0 + self.mu * outer_sum(self.weights, self.lefts, self.rights)

    def times(self, x: Tensor) -> Tensor:
        """theta x for x (batch, n), without the matrices."""
        mapped = self.lefts * ((self.rights * x) @ self.mu.mT)
        return self.scale * product(self.theta0, x) + torch.einsum("k,kbn->bn", self.weights, mapped)


class PlasticEpisode(NamedTuple):
    """The result of an episode."""

    x: Tensor  # at the end of the last presentation, (batch, n)
    xs: Tensor  # at the end of each presentation, (batch, P, n)
    trace: Trace  # theta after the last presentation


def plastic_episode(
    stimuli: Tensor,
    theta0: Tensor,
    mu: Tensor,
    *,
    rule: str = "hebb",
    duration: float | Sequence[float] = 0.5,
    dt: float | None = None,
    steps: int | None = None,
    method: str | Tableau = "rk4",
    rho: Callable[[Tensor], Tensor] = torch.tanh,
    decay: float | Tensor = 0.0,
    leak: float | Tensor = 0.0,
    held: Tensor | None = None,
    frozen: Sequence[bool] | None = None,
    formulation: str = "auto",
) -> PlasticEpisode:
    """Present stimuli one after another: x starts from each and evolves for `duration`, and theta is carried on.

    dx/dt = rho(theta x) - leak x, dtheta/dt = mu * x x^T - decay * theta, or with another rule in place of x x^T.
    Equal, up to rounding, to one `ncode.solve` with feedback per presentation, but theta is not kept for each step, and
    the whole episode has one backward pass.

    Args:
        stimuli: The initial x of each presentation, (batch, P, n), float32 or float64.
        theta0: The initial coupling, (n, n), or per sample, (batch, n, n).
        mu: The learning rates, (n, n).
        rule: What drives theta, as for `ncode.control.Plastic`: "hebb" for x x^T, "oja" for x (x - theta^T x)^T, or
            "delta" for (x - theta x) x^T.
        duration: Duration of each presentation: a number, or a sequence of P numbers.
        dt, steps: Give one: the step size (the last step of a presentation may be shorter), or the number of equal
            steps per presentation.
        method: A method name or a `Tableau` of an explicit method. Memory grows with the number of stages: few stages
            and large steps are cheapest.
        rho: A function of (batch, n) to the same shape. Gradients also reach its parameters.
        decay: The decay rate of theta, a number or a tensor () that may require a gradient.
        leak: The decay rate of x, a number or a tensor () that may require a gradient.
        held: Which elements keep their initial value during a presentation, a boolean tensor (batch, P, n).
        frozen: Whether theta is constant during a presentation, P values. Default: it never is.
        formulation: "vectors", "matrix" or "auto", see the module's docstring. All are equal up to rounding.

    Returns:
        PlasticEpisode(x, xs, trace). Gradients reach stimuli, theta0, mu, decay, leak and the parameters of rho. There
        are no second derivatives: use `ncode.solve` with gradient="autograd" for those.

    >>> import torch
    >>> patterns = torch.tensor([[[1.0, -1.0, 1.0], [1.0, -1.0, 0.0]]])  # complete, then with one bit missing
    >>> from ncode.closed_forms import plastic_episode
    >>> recalled = plastic_episode(patterns, torch.zeros(3, 3), torch.ones(3, 3), steps=1)
    >>> recalled.x.sign()
    tensor([[ 1., -1.,  1.]])
    """
    tableau = method if isinstance(method, Tableau) else METHODS[check_choice("method", method, METHODS)]
    check_choice("formulation", formulation, FORMULATIONS)
    _check(stimuli, theta0, mu)
    sizes = [_sizes(number, dt, steps) for number in _per_presentation("duration", duration, stimuli.shape[1])]
    # A constant theta is one that takes steps of size 0.
    moves = [not still for still in _per_presentation("frozen", frozen or False, stimuli.shape[1])]
    spans = [h * moving for presentation, moving in zip(sizes, moves, strict=True) for h in presentation]
    weights = plan_weights(tableau, spans, _number("decay", decay))
    formed = formulation == "matrix" or (formulation == "auto" and stimuli.shape[2] <= 3 * len(weights.phi))
    numbers = (weights.phi if formed else weights.scale, weights.scale, weights.keep)
    plan = Plan(check_choice("rule", rule, RULES), tableau, sizes, rho, formed, *(part.tolist() for part in numbers))
    ends, *vectors = run_episode(plan, stimuli, theta0, mu, weights, _leak(leak, stimuli), _free(held, stimuli))
    last = (part.to(stimuli.device, stimuli.dtype) for part in (weights.last_scale, weights.last))
    return PlasticEpisode(ends[-1], ends.transpose(0, 1), Trace(theta0, mu, *last, *vectors))


def _per_presentation(name: str, value: Any, presentations: int) -> Sequence[Any]:
    if not isinstance(value, (list, tuple)):
        return [value] * presentations
    if len(value) != presentations:
        raise InputError(f"{name} must be one value per presentation: given {len(value)} for {presentations}")
    return value


def _sizes(duration: float, dt: float | None, steps: int | None) -> list[float]:
    """The step sizes of one presentation, the same as those of `ncode.solve`."""
    duration = check_number("duration", duration, low=0.0, strict=True)
    if dt is not None and steps is None:
        dt = check_number("dt", dt, low=0.0, strict=True)
        count = fixed_steps(duration, dt)
        return [dt] * (count - 1) + [duration - dt * (count - 1)]
    if steps is not None and dt is None:
        count = check_count("steps", steps)
        return [duration / count] * count
    raise InputError(
        f"give either a step size dt or the number of steps per presentation; given dt={dt}, steps={steps}"
    )


def _number(name: str, value: Any) -> Tensor:
    """A rate in double precision, on the CPU."""
    if isinstance(value, Tensor):
        # This synchronises with a GPU once: the weights are many tiny operations, faster on the CPU.
        return _scalar(name, value).to("cpu", torch.float64)
    return torch.tensor(check_number(name, value, low=0.0), dtype=torch.float64)


def _scalar(name: str, value: Tensor) -> Tensor:
    if value.numel() != 1 or not value.is_floating_point():
        raise InputError(f"{name} must be a number or a tensor of shape (); given {value.dtype} {tuple(value.shape)}")
    return value.reshape(())


def _leak(leak: Any, stimuli: Tensor) -> Tensor | None:
    """The leak as the passes take it; None for 0."""
    if isinstance(leak, Tensor):
        return _scalar("leak", leak).to(stimuli.device, stimuli.dtype)
    number = check_number("leak", leak, low=0.0)
    return stimuli.new_tensor(number) if number else None


def _free(held: Any, stimuli: Tensor) -> Tensor | None:
    """1 where x moves and 0 where it is held, (P, batch, n); None if it moves everywhere."""
    if held is None:
        return None
    if not isinstance(held, Tensor) or held.dtype != torch.bool or held.shape != stimuli.shape:
        given = f"{held.dtype} {tuple(held.shape)}" if isinstance(held, Tensor) else type(held).__name__
        raise InputError(f"held must be boolean and of the stimuli's shape {tuple(stimuli.shape)}; given {given}")
    return (~held).to(stimuli.device, stimuli.dtype).transpose(0, 1)


def _check(stimuli: Any, theta0: Any, mu: Any) -> None:
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


def plan_weights(tableau: Tableau, sizes: Sequence[float], decay: Tensor) -> Weights:
    """The weights for steps of theta of these sizes, as a function of the decay."""
    b = torch.tensor(tableau.b, dtype=decay.dtype)
    a = torch.tensor([(*row, *[0.0] * (len(b) - len(row))) for row in tableau.a], dtype=decay.dtype)
    count, identity = len(sizes), torch.eye(len(sizes), dtype=decay.dtype)
    known = {h: _step_weights(a, b, h, decay) for h in set(sizes)}
    phi, psi, keep, new = (torch.stack([known[h][part] for h in sizes]) for part in range(4))
    # left[n, m]: the factor, before step n, of what step m has added; scale[n]: that of theta_0.
    left, scale = [torch.zeros_like(keep)], [torch.ones_like(decay)]
    for kept, unit in zip(keep, identity, strict=True):
        left.append(left[-1] * kept + unit)
        scale.append(scale[-1] * kept)
    earlier = phi[:, :, None, None] * torch.stack(left[:-1])[:, None, :, None] * new
    within = identity[:, None, :, None] * psi[:, :, None, :]
    evaluations = count * len(b)
    return Weights(
        vectors=(earlier + within).reshape(evaluations, evaluations),
        scale=(phi * torch.stack(scale[:-1])[:, None]).flatten(),
        phi=phi.flatten(),
        keep=keep,
        last=(left[-1][:, None] * new).flatten(),
        last_scale=scale[-1],
    )


def _step_weights(a: Tensor, b: Tensor, h: float, decay: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """phi (s,), psi (s, s), keep () and new (s,) of one step."""
    identity = torch.eye(len(b), dtype=b.dtype)
    right = torch.cat([torch.ones_like(b)[:, None], h * a], 1)
    solved = torch.linalg.solve_triangular(identity + h * decay * a, right, upper=False, unitriangular=True)
    phi, psi = solved[:, 0], solved[:, 1:]
    return phi, psi, 1 - h * decay * (b @ phi), h * (b - decay * (b @ psi))
