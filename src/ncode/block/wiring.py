"""The functions that the solver is given for a block, and the solutions that it returns.

What the solver carries as theta are the driven controls or, if none is driven, the fixed ones. If there are both, the
functions capture the fixed ones. All are plain functions that capture only modules and tensors, so that the solver
finds the parameters in them, and a compiling backend recognises them in the next solve.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .._modules import Theta
from .._torch_private import is_symbolic
from ..closed_forms.select import ClosedFormResult
from ..control import Controller, State
from ..control.base import Constant, Motion, expand_shared
from ..costs import CostLike
from ..dynamics import Dynamics
from ..errors import SolveError, Status
from ..ode import Solution, Stats
from ..ode.problem import check_saved, check_time
from ..ode.system import Dynamics as Velocity
from .settings import Settings

StateOf = Callable[[Theta | None], State]
ControlFunction = Callable[[Tensor, Any], dict[str, Tensor]]
SpeedFunction = Callable[[Tensor, Tensor, Any], dict[str, Tensor]]


@dataclass(frozen=True, eq=False)
class Request:
    """One solve of a block: its checked input, and what is requested of the solution."""

    x0: Tensor  # the state at t0
    state: State  # of the controller
    given: bool  # whether the caller provided the control
    settings: Settings
    cost: CostLike | None = None
    save_at: Tensor | None = None
    dense: bool = False
    throw: bool = True
    only_x: bool = False  # whether x at t1 is all that is needed


@dataclass(frozen=True, eq=False)
class Episode:
    """The result of an episode: the states at the ends of its presentations, and the control after the last.

    >>> import torch, ncode
    >>> block = ncode.NCODE(ncode.dynamics.Recurrent(4), ncode.Hebbian(), method="rk4", dt=0.5)
    >>> result = block.episode(torch.ones(2, 3, 4))
    >>> torch.equal(result.x, result.xs[:, -1]), result.theta()["weight"].shape
    (True, torch.Size([2, 4, 4]))
    """

    x: Tensor  # at the end of the last presentation, (batch, ...)
    xs: Tensor  # at the end of each presentation, (batch, P, ...)
    make_theta: Callable[[], dict[str, Tensor]]

    def theta(self) -> dict[str, Tensor]:
        """The control after the last presentation, by name. A Hebbian control is formed only by this call."""
        return self.make_theta()


def carried_theta(state: State) -> tuple[Theta | None, StateOf]:
    """What the solver carries as theta, and a function that returns the controller's state for it."""
    if not state.driven:
        return state.fixed or None, _fixed_state
    fixed = _no_tensors
    for name, value in state.fixed.items():
        fixed = _with_tensor(fixed, name, value)
    return state.driven, lambda theta: State(fixed(), theta or {})


def velocity_function(dynamics: Dynamics, controller: Controller, state_of: StateOf) -> Velocity:
    """dx/dt."""

    def f(t: Tensor, x: Tensor, theta: Theta | None) -> Tensor:
        control = controller.control(t, state_of(theta))
        if not dynamics.shared_control:
            control = expand_shared(control, dynamics.control_shapes, x.shape[0])
        return undo_autocast(dynamics(t, x, control), x)

    return f


def control_function(dynamics: Dynamics, controller: Controller, state_of: StateOf) -> ControlFunction:
    """The control by name, with a batch dimension."""

    def control(t: Tensor, theta: Theta | None) -> dict[str, Tensor]:
        return expand_shared(controller.control(t, state_of(theta)), dynamics.control_shapes, t.shape[0])

    return control


def speed_function(controller: Controller, state_of: StateOf, driven_only: bool = False) -> SpeedFunction:
    """dtheta/dt by name, of the driven controls alone or of all that change; the others are constant."""

    def g(t: Tensor, x: Tensor, theta: Theta | None) -> dict[str, Tensor]:
        speed = controller.control_speed(t, x, state_of(theta))
        names = (theta or {}) if driven_only else speed
        return {name: undo_autocast(speed[name], x) for name in names}

    return g


class CachedVelocity(nn.Module):
    """A velocity that the solver and a cost both evaluate at each point, computed once."""

    def __init__(self, f: Velocity, dynamics: Dynamics, controller: Controller):
        super().__init__()
        self.f, self.dynamics, self.controller = f, dynamics, controller
        self.inputs: tuple[Any, ...] = ()
        self.output: Tensor | None = None

    def forward(self, t: Tensor, x: Tensor, theta: Theta | None) -> Tensor:
        """dx/dt; the last result if all inputs are the same objects."""
        inputs = (t, x, theta, torch.is_grad_enabled())
        same = len(self.inputs) == 4 and all(a is b for a, b in zip(inputs, self.inputs, strict=True))
        output = self.output if same else None
        if output is None:
            output = self.f(t, x, theta)
            self.inputs, self.output = inputs, output
        return output


def undo_autocast(value: Tensor, x: Tensor) -> Tensor:
    """Under autocast, networks return less precision than that in which the state is integrated."""
    return value.to(x.dtype) if torch.is_autocast_enabled(x.device.type) else value


def with_named_control(solution: Solution, control: ControlFunction, motion: Motion, request: Request) -> Solution:
    """The solver's solution with the control by name, in place of what the solver carried."""
    x, ts, t1 = solution.x, solution.ts, request.settings.t1
    # `full` writes a number on the device; copying it there would synchronise.
    t1 = t1 if isinstance(t1, Tensor) else torch.full((), t1, dtype=x.real.dtype, device=x.device)
    theta = control(t1.to(x.device, x.real.dtype).expand(len(x)), solution.theta)
    if ts is None:
        return replace(solution, theta=theta)
    if isinstance(motion, Constant) or not ts.shape[1]:
        return replace(solution, theta=theta, thetas=_repeated(theta, ts.shape[1]))
    columns = []
    for column in range(ts.shape[1]):
        carried = {name: value[:, column] for name, value in (solution.thetas or {}).items()}
        columns.append(control(ts[:, column].to(x.real.dtype), carried))
    thetas = {name: torch.stack([column[name] for column in columns], 1) for name in theta}
    return replace(solution, theta=theta, thetas=thetas)


def closed_form_solution(result: ClosedFormResult, theta: Theta, request: Request) -> Solution:
    """The solution by a closed form, with the statuses that the solver would return."""
    x0, settings = request.x0, request.settings
    time = torch.float32 if x0.device.type == "mps" else torch.float64
    (_, t0), (_, t1) = check_time("t0", settings.t0, x0, time), check_time("t1", settings.t1, x0, time)
    given, full = (None, None) if request.save_at is None else check_saved(request.save_at, t0.detach(), t1.detach())
    none = torch.zeros(len(x0), dtype=torch.int32, device=x0.device)
    finite = result.x.detach().isfinite().flatten(1).all(1)
    codes = torch.where(finite, Status.OK.value, Status.NOT_FINITE.value).to(torch.int32)
    solution = Solution(
        x=torch.where(finite[:, None], result.x, torch.nan),
        theta=dict(theta),
        cost=None,
        ts=None if given is None or full is None else given.expand(full.shape),
        xs=result.xs,
        thetas=None if full is None else _repeated(theta, full.shape[1]),
        stats=Stats(none + result.nfe, none + result.steps, none),
        codes=codes,
        t=t1.detach(),
    )
    # The only synchronisation with a GPU.
    if request.throw and not is_symbolic() and not bool(finite.all()):
        failed = (~finite).nonzero().flatten().tolist()
        raise SolveError(failed, t1[failed].tolist(), [Status.NOT_FINITE] * len(failed), solution, len(x0))
    return solution


def _repeated(theta: Theta, count: int) -> dict[str, Tensor]:
    """A constant control at `count` times, as views."""
    return {name: value[:, None].expand(-1, count, *value.shape[1:]) for name, value in theta.items()}


def _fixed_state(theta: Theta | None) -> State:
    return State(theta or {}, {})


def _no_tensors() -> dict[str, Tensor]:
    return {}


def _with_tensor(others: Callable[[], dict[str, Tensor]], name: str, value: Tensor) -> Callable[[], dict[str, Tensor]]:
    return lambda: {**others(), name: value}
