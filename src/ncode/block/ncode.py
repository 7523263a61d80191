"""`NCODE`: the module that joins a dynamics and a controller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..control import Controller, State, Static
from ..control.base import Theta
from ..costs import Regulariser, System, total
from ..dynamics import Dynamics, usual
from ..ode import PID, InputError, Solution, solve
from ..ode.field import Cost
from ..ode.problem import check_state
from .describe import describe
from .episode import Episode
from .family import FAMILY, Member
from .fit import (
    as_times,
    check_context,
    check_control_fits,
    check_given,
    check_precision,
    check_state_shape,
    check_stimuli,
)
from .outcome import named, reached_solution
from .pretrained import from_pretrained, save_pretrained
from .registry import register
from .request import Request
from .settings import Settings
from .shortcuts import Reached, plastic_way, shortcut
from .tracing import check_export, traceable
from .wiring import Once, Velocity, carry, cast, control, feedback, speed, spread, velocity


class NCODE(nn.Module):
    """A neurally controlled ODE: dx/dt = f(t, x, theta), with theta set, and maybe driven, by a controller.

    A module like any other: `block(x)` is x at t1, and gradients reach all parameters and x. `block.solve(x)` tells
    more: the trajectory, the control, a running cost, how many evaluations it took.

    Args:
        dynamics: f, of `ncode.dynamics`; `ncode.dynamics.Function` makes one of any function.
        controller: Who sets theta, of `ncode.control`. `Static()`, a plain NODE, unless told.
        t0, t1: The interval.
        method, rtol, atol, dt, step, gradient, compile, max_steps, checkpoint_every, pid: As for `ncode.solve`.
        exact: Use closed forms where there are: linear dynamics under a control that stands still are solved by the
            matrix exponential, unless a step size dt is given. False: always the solver.

    Every model of the paper, and those it compares with, is a choice of both: see `NCODE.family()`.

    >>> import torch, ncode
    >>> f = ncode.dynamics.MLP(2, hidden=16)  # f.control_shapes says what it wants to be given
    >>> trunk = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh())
    >>> block = ncode.NCODE(f, ncode.OpenLoop(trunk))
    >>> x = torch.randn(5, 2)
    >>> block(x).shape
    torch.Size([5, 2])
    >>> sol = block.solve(x, save_at=torch.linspace(0, 1, 11))
    >>> sol.xs.shape, sol.theta["weight 1"].shape
    (torch.Size([5, 11, 2]), torch.Size([5, 16, 2]))
    """

    def __init__(
        self,
        dynamics: Dynamics,
        controller: Controller | None = None,
        t0: float = 0.0,
        t1: float = 1.0,
        *,
        method: str = "dopri5",
        rtol: float = 1e-3,
        atol: float = 1e-6,
        dt: float | None = None,
        step: str = "sample",
        gradient: str = "discrete",
        compile: bool = False,
        max_steps: int = 10_000,
        checkpoint_every: int = 1,
        pid: PID | None = None,
        exact: bool = True,
    ):
        super().__init__()
        if not isinstance(dynamics, Dynamics):
            raise InputError(
                f"dynamics must be one of ncode.dynamics; given {type(dynamics).__name__}: wrap a function or module"
                " f(t, x, theta) with ncode.dynamics.Function(f, control_shapes)"
            )
        controller = Static() if controller is None else controller
        if not isinstance(controller, Controller):
            raise InputError(
                f"controller must be one of ncode.control; given {type(controller).__name__}: a trunk goes into"
                " ncode.OpenLoop(trunk)"
            )
        self.dynamics, self.controller = dynamics, controller
        self.settings = Settings(
            *(t0, t1, method, rtol, atol, dt, step, gradient, compile),
            *(max_steps, checkpoint_every, pid, exact),
        )
        shapes = dynamics.control_shapes
        controller.bind(shapes, usual(shapes))

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """The state at t1.

        Args:
            x: What the dynamics start from, (batch, ...).
            context: What the controller is shown, where it is not x: an image, and x the start of a latent flow.
        """
        return self._answer(self._request(x, context, None, self.settings, whole=False)).x

    def trajectory(self, x: Tensor, ts: Tensor, context: Tensor | None = None) -> Tensor:
        """The state at times ts, shared (T,) or a sample's own (batch, T): (batch, T, ...).

        It is solved from t0 to the last of them.
        """
        times = as_times(ts, x)
        if times.dim() == 0 or times.shape[-1] == 0:
            raise InputError(f"ts must hold at least one time, (T,) or (batch, T); given {tuple(times.shape)}")
        solution = self.solve(x, context=context, save_at=times, t1=times[..., -1])
        assert solution.xs is not None
        return solution.xs

    def solve(
        self,
        x: Tensor,
        *,
        context: Tensor | None = None,
        theta: Theta | Tensor | None = None,
        cost: Cost | Regulariser | Sequence[Cost | Regulariser] | None = None,
        save_at: Tensor | None = None,
        dense: bool = False,
        throw: bool = True,
        **changes: Any,
    ) -> Solution:
        """Solve, and tell all about it.

        Args:
            x: What the dynamics start from, (batch, ...).
            context: What the controller is shown, where it is not x.
            theta: A control to start from in place of the controller's own: a dict by name, or a tensor where there
                is one control only. `sol.theta` of one solve carries over to the next.
            cost: A running cost l(t, x, theta), theta a dict by name; a regulariser of `ncode.costs`; or a list of
                those, to be added.
            save_at, dense, throw: As for `ncode.solve`.
            changes: Other settings for this solve alone: t1=2.0, rtol=1e-6, gradient="adjoint", ...

        Returns:
            The solution; `sol.theta` and `sol.thetas` are dicts by name of the control.
        """
        settings = self.settings.changed(changes)
        saved = None if save_at is None else as_times(save_at, x)
        return self._answer(
            self._request(x, context, theta, settings, cost=cost, save_at=saved, dense=dense, throw=throw)
        )

    def episode(
        self,
        stimuli: Tensor,
        *,
        context: Tensor | None = None,
        theta: Theta | Tensor | None = None,
        **changes: Any,
    ) -> Episode:
        """Present stimuli one after another: x starts from each and runs from t0 to t1, and theta is carried on.

        For controls that are driven. Hebbian control of `Recurrent` or `Linear`, with a fixed step size dt, is never
        formed here: memory grows with the number of evaluations times n, and not with n^2 a sample.

        Args:
            stimuli: Where x starts in each presentation, (batch, P, ...).
            context: What the controller is shown at first, where it is not the first stimulus.
            theta: A control to start from in place of the controller's own.
            changes: Other settings for this episode alone.

        >>> import torch, ncode
        >>> block = ncode.NCODE(ncode.dynamics.Recurrent(8), ncode.Hebbian(), t1=0.5, method="rk4", dt=0.25)
        >>> patterns = torch.randn(2, 3, 8).sign()
        >>> shown = block.episode(patterns)
        >>> shown.x.shape, shown.xs.shape, shown.theta()["weight"].shape
        (torch.Size([2, 8]), torch.Size([2, 3, 8]), torch.Size([2, 8, 8]))
        """
        settings = self.settings.changed(changes)
        check_stimuli(stimuli)
        first = self._request(stimuli[:, 0], context, theta, settings)
        if not first.state.driven:
            raise InputError(
                "an episode carries the control from one presentation to the next, and"
                f" {type(self.controller).__name__} does not drive it: use ClosedLoop or Hebbian"
            )
        way = plastic_way(self.dynamics, self.controller, first)
        if way is not None:
            return way(torch.stack([self.dynamics.lift(x) for x in stimuli.unbind(1)], 1))
        ends: list[Tensor] = []
        control: dict[str, Tensor] = dict(first.state.driven)
        for number, x in enumerate(stimuli.unbind(1)):
            solution = self.solve(x, context=context, theta=control if number else theta, **changes)
            ends.append(solution.x)
            control = solution.theta
        return Episode(ends[-1], torch.stack(ends, 1), lambda: control)

    @staticmethod
    def family() -> dict[str, Member]:
        """The models of the paper, and those it compares with, as one table of choices.

        Each is a dynamics and a controller; `check_choice(dim)` gives both for x (batch, dim).

        >>> import torch, ncode
        >>> for name, member in ncode.NCODE.family().items():
        ...     print(f"{name:21} {member.controller:32} {member.dynamics}")
        NODE                  Static()                         MLP(dim)
        ANODE                 Static()                         Augmented(MLP(dim + 5), zeros=5)
        data-controlled NODE  DataControl()                    MLP(dim, controlled=(), context=dim)
        ANODEV2               ClosedLoop(Drift(q))             MLP(dim)
        depth-varying NODE    TimeVarying("fourier", terms=5)  MLP(dim)
        second-order NODE     Static()                         SecondOrder(MLP(2 * dim, out=dim), velocity="zero")
        open-loop N-CODE      OpenLoop(trunk)                  MLP(dim)
        closed-loop N-CODE    ClosedLoop(Feedback(trunk))      MLP(dim)
        plastic N-CODE        Hebbian()                        Recurrent(dim)
        >>> block = ncode.NCODE(*ncode.NCODE.family()["open-loop N-CODE"].choose(2), t1=2.0)
        >>> block(torch.zeros(3, 2)).shape
        torch.Size([3, 2])
        """
        return dict(FAMILY)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the block into a folder: config.json says what to build, model.safetensors holds the weights.

        Needs the package safetensors. Modules and functions of your own must be known by name: see `ncode.register`.

        >>> import tempfile, torch, ncode
        >>> block = ncode.NCODE(ncode.dynamics.MLP(2), ncode.OpenLoop(torch.nn.Linear(2, 8)))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     block.save_pretrained(folder)
        ...     again = ncode.NCODE.from_pretrained(folder)
        >>> torch.equal(again(torch.ones(3, 2)), block(torch.ones(3, 2)))
        True
        """
        save_pretrained(self, folder)

    @classmethod
    def from_pretrained(cls, folder: str | Path, revision: str | None = None) -> NCODE:
        """The block that was written into a folder, in evaluation mode.

        What is no folder here is taken for a repository of the Hugging Face hub (and needs the package
        huggingface_hub).
        """
        block = from_pretrained(folder, revision)
        if not isinstance(block, cls):
            raise InputError(f"{folder} holds a {type(block).__name__}, and not a block")
        return block

    def config(self) -> dict[str, Any]:
        """The arguments that build this block again."""
        return {"dynamics": self.dynamics, "controller": self.controller, **self.settings.all()}

    def extra_repr(self) -> str:
        """The equations, the interval and how it is solved, as they show in `print(block)`."""
        return describe(self.dynamics, self.controller, self.settings)

    def _request(
        self, x: Tensor, context: Tensor | None, theta: Theta | Tensor | None, settings: Settings, **more: Any
    ) -> Request:
        """Check what is given, and set the state and the control at t0."""
        check_state(x)
        check_precision(self, x)
        x0 = self.dynamics.lift(x)
        check_state_shape(self.dynamics, x, x0)
        shapes, batch = self.dynamics.control_shapes, x0.shape[0]
        if theta is None:
            state = self.controller.start(x if context is None else check_context(context, x))
        else:
            state = self.controller.given(check_given(theta, shapes, batch))
        state = State(*({name: cast(value, x0) for name, value in part.items()} for part in state))
        check_control_fits(self.controller.control(x0.new_zeros(batch), state), shapes, batch)
        return Request(x0, state, theta is not None, settings, **more)

    def _answer(self, request: Request) -> Solution:
        return traceable(self._solve)(request)

    def _solve(self, request: Request) -> Solution:
        """By a shortcut where there is one, by the solver otherwise."""
        check_export(request.settings)
        way = shortcut(self.dynamics, self.controller, request)
        return self._integrate(request) if way is None else self._follow(way, request)

    def _follow(self, way: Callable[[], Reached], request: Request) -> Solution:
        """By a shortcut."""
        reached = way()
        theta = spread(reached.theta(), self.dynamics.control_shapes, request.batch) if request.whole else {}
        return reached_solution(reached, theta, request)

    def _integrate(self, request: Request) -> Solution:
        """By the solver."""
        x0, state, settings, cost = request.x0, request.state, request.settings, request.cost
        carried, state_of = carry(state)
        f: Velocity = velocity(self.dynamics, self.controller, state_of)
        theta_at = control(self.dynamics, self.controller, state_of)
        if cost is not None:
            # A compiler sees for itself that the solver and the cost ask for the same.
            f = f if settings.compile else Once(f, self.dynamics, self.controller)
            cost = total(cost, System(f, theta_at, speed(self.controller, state_of)), x0)
        solution = solve(
            f,
            x0,
            settings.t0,
            settings.t1,
            theta=carried,
            feedback=feedback(self.controller, state_of) if state.driven else None,
            cost=cost,
            save_at=request.save_at,
            dense=request.dense,
            throw=request.throw,
            **settings.solver(),
        )
        return named(solution, theta_at, self.controller.motion, request) if request.whole else solution


register(NCODE, name="ncode.NCODE")
