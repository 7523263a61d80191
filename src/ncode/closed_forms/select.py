"""Which closed form solves a block, by the structure of its dynamics and the motion of its control.

    dx/dt = W x, constant control W                         `LinearForm`: the matrix exponential or its action
    dx/dt = W x, W set by a piecewise constant input        `PiecewiseForm`: one matrix exponential per interval
    dx/dt = rho(gain W x) - leak x, fixed steps,            `PlasticForm`: W as a sum of outer products that is never
    dW/dt = mu * l r^T - decay W                            formed; l and r by Hebb's, Oja's or the delta rule

Each gives the result of the solver, and `exact=False` switches it off.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._modules import Theta
from .._torch_private import is_transforming
from ..control.base import Constant, FollowsPath, Motion, OuterProduct
from ..dynamics.base import ACTIVATIONS, Product, Structure, dense_rows
from ..ode.arguments import check_interval
from ..ode.options import SolveOptions
from ..ode.record import mask_like
from ..ode.step import fixed_steps
from ..ode.tableau import Tableau
from ..paths import Path
from .linear import linear_flow
from .piecewise import piecewise_linear_flow
from .plastic import PlasticEpisode, plastic_episode
from .taylor import ACTION_REACH

_MAX_KERNEL_ROWS, _MAX_KERNEL_NONZEROS = 1024, 32


class ClosedFormResult(NamedTuple):
    """What a closed form computes of a solution."""

    x: Tensor  # at t1
    xs: Tensor | None  # at the saved times
    theta: Callable[[], Theta]  # the control at t1, computed when it is needed
    thetas: Callable[[], Theta] | None = None  # and at the saved times, unless it is constant
    steps: int = 0
    nfe: int = 0


@dataclass(frozen=True, eq=False)
class LinearForm:
    """x(t) = exp(W (t - t0)) x0."""

    name = "the matrix exponential"
    product: Product
    t0: float | Tensor
    t1: float | Tensor
    second_derivatives: bool

    def solve(self, x0: Tensor, theta: Theta, save_at: Tensor | None) -> ClosedFormResult:
        """Solve from x0 (batch, m) under a constant control."""
        return ClosedFormResult(*self._flow(x0, theta[self.product.control].to(x0.dtype), save_at), lambda: theta)

    def _flow(self, x0: Tensor, w: Tensor, save_at: Tensor | None) -> tuple[Tensor, Tensor | None]:
        t0, t1, columns, blocks = self.t0, self.t1, self.product.columns, self.product.blocks
        if not isinstance(t0, Tensor) and not isinstance(t1, Tensor):
            if w.dim() == 2 and (save_at is None or save_at.dim() == 1):
                return _shared_flow(_as_blocks(w.double(), self.product), x0, float(t0), float(t1), save_at)
            if columns is not None and save_at is None and not self.second_derivatives and kernels_fit(w, columns):
                from ._linear_kernels import flow

                return flow(w.expand(len(x0), *w.shape[-2:]), columns, x0, float(t1) - float(t0)), None
        w = w.expand(len(x0), *w.shape[-2:])
        if blocks is not None:
            return _linear_by_blocks(blocks(w), x0, t0, t1, save_at)
        formulation = "matrix" if self.second_derivatives else "auto"
        return linear_flow(w, x0, t0, t1, columns=columns, save_at=save_at, formulation=formulation)


@dataclass(frozen=True, eq=False)
class PiecewiseForm:
    """x_{k+1} = exp(W_k (s_{k+1} - s_k)) x_k along a piecewise constant path."""

    name = "matrix exponentials if the path is piecewise constant"
    product: Product
    control: Callable[[Tensor], Theta]  # of an input u (n, channels)
    t0: float | Tensor
    t1: float | Tensor
    path: Path | None = None

    def along(self, inputs: Mapping[str, Path | None]) -> PiecewiseForm | None:
        """The form with the path of a solve; None unless that is piecewise constant."""
        (path,) = inputs.values()
        return replace(self, path=path) if path is not None and path.degree == 0 else None

    def solve(self, x0: Tensor, theta: Theta, save_at: Tensor | None) -> ClosedFormResult:
        """Solve from x0 (batch, m); the knots of the path and the saved times divide [t0, t1] into intervals."""
        t0, t1, ts, _ = check_interval(self.t0, self.t1, save_at, x0)
        times, place = self._divide(t0, t1, ts)
        w = self._control_at((times[:, 1:] + times[:, :-1]).detach() / 2)[self.product.control].to(x0.dtype)
        xs = _piecewise_by_blocks(_as_blocks(w, self.product), x0, times)
        end = t1.detach()[:, None]
        last = lambda: {name: value[:, 0] for name, value in self._control_at(end).items()}  # noqa: E731
        if ts is None:
            return ClosedFormResult(xs[:, -1], None, last)
        missing = ts.detach().isnan()
        saved = xs.gather(1, place[..., None].expand(-1, -1, xs.shape[2])).masked_fill(missing[..., None], torch.nan)
        at = torch.where(missing, end, ts.detach())
        return ClosedFormResult(xs[:, -1], saved, last, lambda: _masked(self._control_at(at), missing))

    def _divide(self, t0: Tensor, t1: Tensor, ts: Tensor | None) -> tuple[Tensor, Tensor]:
        """All times in the direction of the solve, (batch, K + 1), and where the saved ones are among them."""
        assert self.path is not None
        sign = torch.where(t1.detach() < t0.detach(), -1.0, 1.0)[:, None]
        begin, end = t0[:, None] * sign, t1[:, None] * sign
        knots = (self.path.knots.to(t0.dtype) * sign).clamp(begin, end)
        saved = end[:, :0] if ts is None else torch.where(ts.isnan(), end, ts * sign)
        times, order = torch.cat([begin, knots, saved, end], 1).sort(1)
        return times * sign, order.argsort(1)[:, knots.shape[1] + 1 : -1]

    def _control_at(self, times: Tensor) -> dict[str, Tensor]:
        """The control at times (batch, T), (batch, T, ...)."""
        assert self.path is not None
        control = self.control(self.path.evaluate(times).flatten(0, 1))
        return {name: value.unflatten(0, times.shape) for name, value in control.items()}


@dataclass(frozen=True, eq=False)
class PlasticForm:
    """theta as theta_0 and a sum of outer products, never formed."""

    name = "outer products"
    product: Product
    rule: OuterProduct  # its theta_0 may be (n, n) or (batch, n, n)
    t0: float
    t1: float
    method: Tableau
    dt: float

    def solve(self, x0: Tensor, theta: Theta, save_at: Tensor | None) -> ClosedFormResult:
        """Solve from x0 (batch, n); the control starts at the rule's theta_0, and times are not saved."""
        result, steps = self.episode(x0[:, None]), fixed_steps(self.t1 - self.t0, self.dt)
        nfe = steps * self.method.stages
        return ClosedFormResult(result.x, None, lambda: {self.product.control: result.trace.theta()}, None, steps, nfe)

    def episode(
        self,
        stimuli: Tensor,
        durations: Sequence[float] | None = None,
        held: Tensor | None = None,
        frozen: Sequence[bool] | None = None,
    ) -> PlasticEpisode:
        """Present stimuli (batch, P, n) one after another, for t1 - t0 each or for these durations."""
        return plastic_episode(
            stimuli,
            self.rule.theta_0,
            self.rule.mu,
            rule=self.rule.rule,
            duration=self.t1 - self.t0 if durations is None else durations,
            dt=self.dt,
            method=self.method,
            rho=self._rho,
            decay=0.0 if self.rule.decay is None else self.rule.decay,
            leak=0.0 if self.product.leak is None else self.product.leak,
            held=held,
            frozen=frozen,
        )

    @property
    def _rho(self) -> Callable[[Tensor], Tensor]:
        rho, gain = ACTIVATIONS[self.product.rho], self.product.gain
        return rho if gain is None else lambda v: rho(gain * v)


ClosedForm = LinearForm | PiecewiseForm | PlasticForm


def closed_form(
    structure: Structure, motion: Motion, t0: float | Tensor, t1: float | Tensor, options: SolveOptions
) -> ClosedForm | None:
    """The closed form of a block, or None."""
    match structure, motion:
        # A step size requests the discretisation, not what it approximates.
        case Product(rho="identity", gain=None, leak=None), Constant() if options.dt is None:
            return LinearForm(structure, t0, t1, second_derivatives=options.gradient == "autograd")
        case Product(rho="identity", gain=None, leak=None), FollowsPath() if options.dt is None:
            return PiecewiseForm(structure, motion.control, t0, t1)
        case Product(columns=None, blocks=None), OuterProduct() if structure.control == motion.control:
            # Steps must be explicit, fixed, forward in time and not too many.
            method = options.tableau
            if isinstance(t0, Tensor) or isinstance(t1, Tensor) or options.dt is None or not t1 > t0:
                return None
            if not isinstance(method, Tableau):
                return None
            if options.gradient == "discrete" and fixed_steps(t1 - t0, options.dt) <= options.max_steps:
                return PlasticForm(structure, motion, float(t0), float(t1), method, options.dt)
    return None


def _masked(theta: Theta, missing: Tensor) -> dict[str, Tensor]:
    """The control with nan where a saved time is missing, (batch, T)."""
    return {name: it.masked_fill(mask_like(missing, it[:, 0]), torch.nan) for name, it in theta.items()}


def can_solve(form: ClosedForm, x0: Tensor, cost: Any, save_at: Tensor | None, dense: bool) -> bool:
    """Whether a closed form gives what is requested of a solve from x0."""
    if cost is not None or dense or is_transforming() or x0.dim() != 2 or x0.is_complex():
        return False
    return not isinstance(form, PlasticForm) or save_at is None


def kernels_fit(theta: Tensor, columns: Tensor) -> bool:
    """Whether the Triton kernels can solve a flow with these sparse rows."""
    if theta.device.type != "cuda" or theta.dtype not in ACTION_REACH or theta.numel() == 0:
        return False
    m, k = columns.shape
    return m <= _MAX_KERNEL_ROWS and k <= _MAX_KERNEL_NONZEROS and _has_triton(theta.device.index or 0)


@functools.cache
def _has_triton(device: int) -> bool:
    return find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= (7, 0)


def _as_blocks(w: Tensor, product: Product) -> Tensor:
    """The matrices of a control as blocks (..., n, b, b); one block (..., 1, m, m) unless they are block-diagonal."""
    if product.blocks is not None:
        return product.blocks(w)
    return (w if product.columns is None else dense_rows(w, product.columns)).unsqueeze(-3)


def _shared_flow(a: Tensor, x0: Tensor, t0: float, t1: float, ts: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The flow of one matrix that all samples share, given by its blocks (n, b, b): one exponential per time."""
    x = x0.double().unflatten(1, (len(a), -1))
    end = torch.einsum("nij,bnj->bni", torch.linalg.matrix_exp(a * (t1 - t0)), x).flatten(1).to(x0.dtype)
    if ts is None:
        return end, None
    missing = ts.detach().isnan()
    since = torch.where(missing, t0, ts.to(a)) - t0  # nan would reach gradients, even multiplied by 0
    e = torch.linalg.matrix_exp(a * since[:, None, None, None])
    xs = torch.einsum("tnij,bnj->btni", e, x).flatten(2).to(x0.dtype)
    return end, torch.where(missing[:, None], torch.nan, xs)


def _linear_by_blocks(
    a: Tensor, x0: Tensor, t0: float | Tensor, t1: float | Tensor, save_at: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The flow of block-diagonal matrices with blocks (batch, n, b, b): each block is a sample of its own."""
    n, b = a.shape[1:3]
    t0, t1 = (t.repeat_interleave(n) if isinstance(t, Tensor) and t.dim() else t for t in (t0, t1))
    ts = save_at.repeat_interleave(n, 0) if save_at is not None and save_at.dim() == 2 else save_at
    flow = linear_flow(a.flatten(0, 1), x0.reshape(-1, b), t0, t1, save_at=ts)
    return flow.x.reshape(x0.shape), None if flow.xs is None else _join_blocks(flow.xs, n)


def _piecewise_by_blocks(a: Tensor, x0: Tensor, times: Tensor) -> Tensor:
    """The same for matrices that change from interval to interval, with blocks (batch, K, n, b, b)."""
    n, b = a.shape[2:4]
    xs = piecewise_linear_flow(a.transpose(1, 2).flatten(0, 1), x0.reshape(-1, b), times.repeat_interleave(n, 0))
    return _join_blocks(xs, n)


def _join_blocks(xs: Tensor, n: int) -> Tensor:
    """The states (batch n, T, b) of n blocks per sample as states (batch, T, m)."""
    return xs.reshape(xs.shape[0] // n, n, *xs.shape[1:]).transpose(1, 2).flatten(2)
