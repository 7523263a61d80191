"""Continuous normalising flows: `Flow`, a density that an ODE transports.

With dx/dt = f(t, x, theta), x(t0) = z drawn from a base density and x = x(t1), the density of x follows from the
divergence of f, the trace of df/dx (Chen et al., 2018):

    log p(x) = log base(z) - integral of div f(t, x(t), theta) over t from t0 to t1

`Flow.to_base` and `Flow.to_data` solve in one of the two directions, with the divergence as the running cost. The
integral in the direction of the solve is the log-determinant of the map from start to end, so that

    log p(x) = log base(z) + log |det dz/dx|     by to_base, from t1 to t0
             = log base(z) - log |det dx/dz|     by to_data, from t0 to t1
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Independent, Normal

from ._divergence import with_divergence
from ._modules import format_shape
from ._torch_private import in_dual_level, in_transform
from .block import NCODE, Settings, wiring
from .block.request import Request, make_request
from .block.results import with_named_control
from .control import Controller, InputControl, Parts, Static, TimeVarying, Zero
from .dynamics import Dynamics, Function
from .errors import InputError, check_choice, check_count, check_function, format_value
from .ode import Solution, solve
from .ode.api import outside_inference_mode
from .ode.system import Dynamics as Velocity
from .paths import Path

if TYPE_CHECKING:  # shapes as jaxtyping writes them; tests/test_shapes.py checks them with its types
    from typing import Annotated as Float
    from typing import Annotated as Shaped

__all__ = ["Flow", "standard_normal"]

_WITHOUT_CONTEXT = (Static, Zero, InputControl, TimeVarying, Parts)  # those inside of the last two are looked at too
_HOW = ("save_at", "dense", "jump_ts", "throw", "keep_last", "callback", "save_steps")  # arguments of `solve`


def standard_normal(*shape: int) -> Distribution:
    """The standard normal distribution of tensors of this shape, as a base of a flow.

    >>> import ncode
    >>> ncode.flows.standard_normal(3, 8, 8).event_shape
    torch.Size([3, 8, 8])
    """
    sizes = tuple(check_count("a size of the shape", size) for size in shape)
    return Independent(Normal(torch.zeros(sizes), torch.ones(sizes), False), len(sizes), False)


class Flow(nn.Module):
    """A continuous normalising flow: samples of a base density, moved by dx/dt = f(t, x, theta) from t0 to t1.

    Gradients of `log_prob` and `rsample` reach x, the context and all parameters, by default exactly those of the
    discrete steps, with one state per step in memory beyond the graphs of short solves (`keep="states"` keeps no graph,
    `checkpoint_every=k` every k-th state, `gradient="adjoint"` none). A flow that was trained by other means, such as
    flow matching on `velocity`, has the same likelihoods.

    Args:
        dynamics: f, one of `ncode.dynamics` or a function f(t, x, theta), with t (batch,) and x (batch, ...). It treats
            every sample by itself (no batch norm), and is smooth (no relu): training differentiates its divergence.
        base: The density at t0: a `torch.distributions.Distribution` of one sample's shape, or a module without
            arguments that returns one, whose parameters are then learned. Default: a standard normal of the dynamics'
            `state_shape`.
        controller: What sets theta, of `ncode.control`, for a density p(x | context): theta is computed from the
            context, never from x. Default: `Static()`, no context.
        t0, t1: The interval.
        divergence: "exact" takes one vector-Jacobian product per element of x: for small dimensions. "hutchinson" is an
            unbiased estimate e^T (df/dx) e of the divergence, at the cost of one product per noise vector e. The noise
            is drawn once per solve, so that the solve and its gradient are those of one smooth function.
        noise: "rademacher" (+1 or -1, the smaller variance) or "gaussian", for "hutchinson".
        samples: Noise vectors per sample, for "hutchinson".
        rtol, atol: Tolerances of x and of log p, with norms of their own. Default: 1e-5.
        options: Further options of `ncode.solve`: method, dt, step, gradient, compile, ...

    >>> import torch, ncode
    >>> flow = ncode.flows.Flow(ncode.dynamics.MLP(2, hidden=16, time=True))
    >>> x = flow.sample(5)
    >>> loss = -flow.log_prob(x).mean()
    >>> loss.backward()
    >>> x.shape, all(p.grad is not None for p in flow.parameters())
    (torch.Size([5, 2]), True)
    """

    def __init__(
        self,
        dynamics: Dynamics | Velocity,
        base: Distribution | nn.Module | None = None,
        controller: Controller | None = None,
        t0: float = 0.0,
        t1: float = 1.0,
        *,
        divergence: str = "exact",
        noise: str = "rademacher",
        samples: int = 1,
        rtol: float | Tensor = 1e-5,
        atol: float | Tensor = 1e-5,
        **options: Any,
    ):
        super().__init__()
        if not isinstance(dynamics, Dynamics):
            dynamics = Function(check_function("dynamics", dynamics, ("t", "x", "theta")))
        for name in options:
            check_choice("option of a flow", name, Settings().as_dict())
        self.block = NCODE(dynamics, controller, t0, t1, rtol=rtol, atol=atol, **options)
        self.divergence = check_choice("divergence", divergence, ("exact", "hutchinson"))
        self.noise = check_choice("noise", noise, ("rademacher", "gaussian"))
        self.samples = check_count("samples", samples)
        if self.samples > 1 and divergence == "exact":
            raise InputError(
                f'samples={samples} are noise vectors of divergence="hutchinson"; an exact divergence needs no noise:'
                " leave samples out, or ask for Hutchinson's estimate"
            )
        self.base = _default_base(dynamics) if base is None else base
        if not isinstance(self.base, (Distribution, nn.Module)):
            raise InputError(
                "base must be a torch.distributions.Distribution or a module that returns one; given"
                f" {format_value(base)}: for a standard normal, use ncode.flows.standard_normal(2)"
            )
        if isinstance(self.base, nn.Module):
            check_function("base", self.base, ())
        self._base()

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """The same as `log_prob`: wrappers such as DistributedDataParallel act on the call of a module."""
        return self.log_prob(x, context)

    def log_prob(
        self, x: Float[Tensor, "batch ..."], context: Shaped[Tensor, "batch ..."] | None = None, **changes: Any
    ) -> Float[Tensor, "batch"]:
        """The log-density of x (batch, ...), one number per sample.

        Args:
            x: Points, (batch, *event_shape).
            context: The input of the controller, (batch, ...).
            changes: Other options for this solve: rtol=1e-8, or throw=False for nan where the solve of a sample fails.
        """
        solution = self.to_base(x, context, **changes)
        ok = None if changes.get("throw", True) else solution.ok  # a failure has raised an error
        return self._log_base(solution.x, ok) + _log_determinant(solution)

    def sample(self, n: int, context: Tensor | None = None, **changes: Any) -> Tensor:
        """Draw n samples, (n, *event_shape), without gradients; context is (n, ...), one row per sample."""
        with torch.no_grad():
            return self._transport(self._base().sample((check_count("n", n, low=0),)), context, changes)

    def rsample(self, n: int, context: Tensor | None = None, **changes: Any) -> Tensor:
        """Draw n samples with gradients: they are differentiable functions of the parameters and of the context."""
        return self._transport(self._rsample_base(n), context, changes)

    def rsample_and_log_prob(self, n: int, context: Tensor | None = None, **changes: Any) -> tuple[Tensor, Tensor]:
        """Draw n samples with gradients and their log-densities, in one solve: for variational inference.

        >>> import torch, ncode
        >>> flow = ncode.flows.Flow(ncode.dynamics.MLP(2))
        >>> x, log_prob = flow.rsample_and_log_prob(5)
        >>> bool((log_prob - flow.log_prob(x)).abs().max() < 1e-3)
        True
        """
        z = self._rsample_base(n)
        solution = self.to_data(z, context, **changes)
        return solution.x, self._log_base(z) - _log_determinant(solution)

    def velocity(self, t: float | Tensor, x: Tensor, context: Tensor | None = None, path: Path | None = None) -> Tensor:
        """f(t, x, theta) with the theta of the context (or path), for flow matching; t is a number or (batch,).

        >>> import torch, ncode
        >>> flow = ncode.flows.Flow(ncode.dynamics.MLP(2, time=True))
        >>> data, noise, t = torch.randn(64, 2), torch.randn(64, 2), torch.rand(64, 1)
        >>> v = flow.velocity(t[:, 0], (1 - t) * noise + t * data)
        >>> loss = (v - (data - noise)).square().mean()
        """
        request = self._request(x, context, self.block.settings, path=path)
        time = torch.as_tensor(t, dtype=x.dtype, device=x.device)
        if time.dim() > 1 or (time.dim() == 1 and len(time) != len(x)):
            raise InputError(f"t must be a number or a tensor () or ({len(x)},); given shape {tuple(time.shape)}")
        theta, state_of = wiring.carried_theta(request.state)
        return wiring.velocity_function(self.block.dynamics, self.block.controller, state_of)(
            time.expand(len(x)), x, theta
        )

    def to_base(self, x: Tensor, context: Tensor | None = None, **changes: Any) -> Solution:
        """Solve from t1 to t0, from data to the base: the whole solution, with statuses and numbers of evaluations.

        Args:
            x: Points, (batch, *event_shape).
            context: The input of the controller, (batch, ...).
            changes: `save_at`, `dense`, `jump_ts`, `throw`, `callback` and so on of `ncode.solve`, a `path` for
                `InputControl`, and other options for this solve.

        Returns:
            The solution: `sol.x` is z, `sol.cost` is log |det dz/dx|, (batch,), and `sol.theta` the control by name.
        """
        return self._solve(x, context, changes, backward=True)

    def to_data(self, z: Tensor, context: Tensor | None = None, **changes: Any) -> Solution:
        """Solve from t0 to t1, from the base to data, as `to_base` does back: `sol.cost` is log |det dx/dz|."""
        return self._solve(z, context, changes, backward=False)

    def extra_repr(self) -> str:
        """The base and the divergence, for `print(flow)`."""
        estimate = f"({self.samples} {self.noise})" if self.divergence == "hutchinson" else ""
        base = "" if isinstance(self.base, nn.Module) else f"base={self.base}, "
        return f"{base}divergence={self.divergence}{estimate}"

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> Flow:
        """Let `.to`, `.double` and so on convert the tensors of a base that is not a module."""
        if isinstance(self.base, Distribution):
            self.base = _convert(self.base, fn)
        return super()._apply(fn, *args, **kwargs)

    def _base(self) -> Distribution:
        return _check_base(self.base if isinstance(self.base, Distribution) else self.base())

    def _rsample_base(self, n: int) -> Tensor:
        base = self._base()
        if not base.has_rsample:
            raise InputError(f"the base, {type(base).__name__}, has no rsample: its samples have no gradient")
        return base.rsample((check_count("n", n, low=0),))

    def _log_base(self, z: Tensor, ok: Tensor | None = None) -> Tensor:
        """log base(z), and nan for samples that are not ok: distributions raise an error at nan."""
        if ok is None or bool(ok.all()):
            return self._base().log_prob(z)
        rows = ok.nonzero()[:, 0]
        some = self._base().log_prob(z[rows])
        return some.new_full(ok.shape, torch.nan).index_copy(0, rows, some)

    def _request(self, x: Tensor, context: Tensor | None, settings: Settings, **more: Any) -> Request:
        """Check the input of one solve, and set the control."""
        event_shape, controller = tuple(self._base().event_shape), self.block.controller
        if not isinstance(x, Tensor) or x.dim() == 0 or tuple(x.shape[1:]) != event_shape:
            given = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            hint = ": use x[None]" if given == event_shape else ""
            raise InputError(f"x must be (batch, *{event_shape}), as the base of the flow is; given {given}{hint}")
        if x.is_complex():
            raise InputError("the divergence of a flow is defined for real x; given a complex one: use view_as_real")
        if context is None and any(not isinstance(it, _WITHOUT_CONTEXT) for it in _controllers(controller)):
            raise InputError(
                f"{type(controller).__name__} computes the control from a context, which for a density of x cannot be x"
                " itself: pass context, (batch, ...)"
            )
        request = make_request(self.block, x, context, None, settings, **more)
        if request.x0 is not x:
            raise InputError(
                f"{type(self.block.dynamics).__name__} changes the state at t0 (lift): a flow must be invertible"
            )
        if request.state.driven:
            raise InputError(
                f"{type(controller).__name__} drives the control along the trajectory, so that the state alone has no"
                " density that the divergence of f gives: use a control that is constant or a function of time"
            )
        return request

    def _transport(self, z: Tensor, context: Tensor | None, changes: dict[str, Any]) -> Tensor:
        """x for z, without the divergence."""
        how = {name: changes.pop(name) for name in ("path", "jump_ts", "throw") if name in changes}
        request = self._request(z, context, self.block.settings.changed(changes), only_x=True, **how)
        return self.block._solve(request).x

    @outside_inference_mode  # which forbids derivatives, and the divergence is one
    def _solve(self, x: Tensor, context: Tensor | None, changes: dict[str, Any], backward: bool) -> Solution:
        """Solve with the divergence as the running cost."""
        if in_dual_level() or in_transform():
            raise InputError(
                "the likelihood of a flow contains a derivative of its dynamics by autograd, which forward mode and"
                " torch.func transforms do not follow: use backward() or torch.autograd.grad, which also take second"
                ' derivatives with gradient="autograd"'
            )
        path, how = changes.pop("path", None), {name: changes.pop(name) for name in _HOW if name in changes}
        dynamics, controller = self.block.dynamics, self.block.controller
        settings = self.block.settings.changed(changes)
        if backward:
            settings = settings.changed({"t0": settings.t1, "t1": settings.t0})
        request = self._request(x, context, settings, path=path)
        carried, state_of = wiring.carried_theta(request.state)
        theta = {"carried": carried or {}}
        if self.divergence == "hutchinson":
            theta["noise"] = self._draw(x)
        f, cost = with_divergence(wiring.velocity_function(dynamics, controller, state_of))
        options = {**how, **settings.options.as_dict()}
        solution = solve(f, x, settings.t0, settings.t1, theta=theta, cost=cost, **options)
        thetas = None if solution.thetas is None else solution.thetas["carried"]
        solution = replace(solution, theta=solution.theta["carried"], thetas=thetas)
        control = wiring.control_function(dynamics, controller, state_of)
        return with_named_control(solution, control, controller.motion, request)

    def _draw(self, x: Tensor) -> Tensor:
        """Noise (batch, samples, *event_shape)."""
        noise = torch.randn(x.shape[0], self.samples, *x.shape[1:], dtype=x.dtype, device=x.device)
        return torch.where(noise < 0, -1.0, 1.0).to(x.dtype) if self.noise == "rademacher" else noise


def _log_determinant(solution: Solution) -> Tensor:
    assert solution.cost is not None
    return solution.cost


def _controllers(controller: Controller) -> list[Controller]:
    """The controller and those inside of it."""
    return [module for module in controller.modules() if isinstance(module, Controller)]


def _default_base(dynamics: Dynamics) -> Distribution:
    shape = dynamics.state_shape
    if shape is None or any(size is None for size in shape):
        known = "unknown" if shape is None else format_shape(shape)
        raise InputError(
            f"the shape of a sample is {known} to {type(dynamics).__name__}: give the flow a base, such as"
            " ncode.flows.standard_normal(2)"
        )
    return standard_normal(*(size for size in shape if size is not None))


def _check_base(base: Any) -> Distribution:
    if not isinstance(base, Distribution):
        raise InputError(f"the module given as base must return a Distribution; returned {type(base).__name__}")
    if base.batch_shape:
        count = len(base.batch_shape)
        raise InputError(
            f"the base, {type(base).__name__}, is a batch {tuple(base.batch_shape)} of distributions; expected one of"
            f" whole samples: use torch.distributions.Independent(base, {count})"
        )
    return base


def _convert(value: Any, fn: Callable[[Tensor], Tensor]) -> Any:
    """A copy of a distribution with `fn` applied to its tensors; those with a gradient belong to somebody else."""
    if isinstance(value, Tensor):
        return value if value.requires_grad else fn(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_convert(it, fn) for it in value)
    if not isinstance(value, (Distribution, torch.distributions.Transform)):
        return value
    converted = copy.copy(value)
    converted.__dict__.update({name: _convert(it, fn) for name, it in vars(value).items()})
    return converted
