"""`NCODE`: the module that joins a dynamics and a controller."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .._modules import Theta, check_built, check_shapes, format_shapes
from ..closed_forms.select import ClosedForm, PiecewiseForm, PlasticForm, can_solve
from ..control import Controller, Static
from ..control.base import expand_shared
from ..costs import CostLike, System, total
from ..dynamics.base import Dynamics, default_initial
from ..errors import InputError, allocating, check_flag, check_function, format_type
from ..ode import Backend, Event, Solution, SolveOptions, StepSizeRule, solve
from ..ode.arguments import check_jacobian
from ..ode.events import check_events
from ..ode.methods import Method
from ..paths import Path
from . import wiring
from .family import FAMILY, Family
from .pretrained import Pretrained
from .request import Request, check_stimuli, check_times, jump_times, last_time, make_request
from .results import Episode, closed_form_solution, with_named_control
from .settings import Settings

if TYPE_CHECKING:  # shapes as jaxtyping writes them; tests/test_shapes.py checks them with its types
    from typing import Annotated as Inexact
    from typing import Annotated as Real
    from typing import Annotated as Shaped


class NCODE(Pretrained):
    """A neurally controlled ODE: dx/dt = f(t, x, theta), with theta set, and possibly driven, by a controller.

    `block(x)` is x at t1, and gradients reach x and all parameters. `block.solve(x)` returns more: the trajectory, the
    control, a running cost, and the number of evaluations. `save_pretrained` and `from_pretrained` keep it in a folder.

    Args:
        dynamics: f, of `ncode.dynamics`; `ncode.dynamics.Function` wraps any function.
        controller: What sets theta, of `ncode.control`. Default: `Static()`, a plain NODE.
        t0, t1: The interval.
        method, rtol, atol, dt, min_dt, max_dt, step, gradient, compile, max_steps, checkpoint_every, keep, step_rule:
            As for `ncode.solve`.
        exact: Whether closed forms replace the solver where they apply: linear dynamics under a constant control are
            solved by the matrix exponential, unless a step size dt is given.

    Every model of the paper, and those it is compared with, is a choice of both: see `NCODE.family()`.

    >>> import torch, ncode
    >>> f = ncode.dynamics.MLP(2, hidden=16)  # f.control_shapes: the control that it takes
    >>> trunk = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh())
    >>> block = ncode.NCODE(f, ncode.OpenLoop(trunk))
    >>> x = torch.randn(5, 2)
    >>> block(x).shape
    torch.Size([5, 2])
    >>> sol = block.solve(x, save_at=torch.linspace(0, 1, 11))
    >>> sol.xs.shape, sol.theta["weight_1"].shape
    (torch.Size([5, 11, 2]), torch.Size([5, 16, 2]))
    """

    def __init__(
        self,
        dynamics: Dynamics,
        controller: Controller | None = None,
        t0: float = 0.0,
        t1: float = 1.0,
        *,
        method: str | Method = "dopri5",
        rtol: float | Tensor = 1e-3,
        atol: float | Tensor = 1e-6,
        dt: float | None = None,
        min_dt: float | None = None,
        max_dt: float | None = None,
        step: str = "sample",
        gradient: str = "discrete",
        compile: bool | str | Backend = False,
        max_steps: int = 10_000,
        checkpoint_every: int = 1,
        keep: str | int = "auto",
        step_rule: StepSizeRule | None = None,
        exact: bool = True,
    ):
        super().__init__()
        if not isinstance(dynamics, Dynamics):
            hint = ": wrap a function or module f(t, x, theta) with ncode.dynamics.Function(f, control_shapes)"
            raise InputError(f"dynamics must be one of ncode.dynamics; given {format_type(dynamics, hint)}")
        hint = ": add theta, a dict of its controls by name, to its forward"
        check_built(dynamics)
        check_function("dynamics", dynamics, ("t", "x", "theta"), hint)
        check_jacobian(dynamics)
        controller = Static() if controller is None else controller
        if not isinstance(controller, Controller):
            hint = ": wrap a trunk with ncode.OpenLoop(trunk)"
            raise InputError(f"controller must be one of ncode.control; given {format_type(controller, hint)}")
        check_built(controller)
        self.dynamics, self.controller = dynamics, controller
        options = SolveOptions(
            method=method,
            rtol=rtol,
            atol=atol,
            dt=dt,
            min_dt=min_dt,
            max_dt=max_dt,
            step=step,
            gradient=gradient,
            compile=compile,
            max_steps=max_steps,
            checkpoint_every=checkpoint_every,
            keep=keep,
            step_rule=step_rule,
        )
        self.settings = Settings(t0, t1, exact, options)
        shapes = check_shapes(type(dynamics).__name__, dynamics.control_shapes)
        with allocating(f"the weights of {type(controller).__name__}"):
            controller.bind(shapes, default_initial(shapes))

    def forward(
        self,
        x: Inexact[Tensor, "batch ..."],
        context: Shaped[Tensor, "batch ..."] | None = None,
        path: Path | None = None,
    ) -> Inexact[Tensor, "batch ..."]:
        """The state at t1.

        Args:
            x: The input of the dynamics, (batch, ...).
            context: The input of the controller, if it is not x: for example an image.
            path: The path u(t) of an `InputControl` without one of its own.
        """
        return self._solve(make_request(self, x, context, None, self.settings, path, only_x=True)).x

    def trajectory(
        self,
        x: Inexact[Tensor, "batch ..."],
        ts: Real[Tensor, "times"] | Real[Tensor, "batch times"],
        context: Shaped[Tensor, "batch ..."] | None = None,
        path: Path | None = None,
    ) -> Inexact[Tensor, "batch times ..."]:
        """The state at times ts, shared (T,) or per sample (batch, T), solved from t0 to the last: (batch, T, ...).

        Samples with fewer times are padded with nan.
        """
        times = check_times("ts", ts, x)
        if times.dim() == 0 or times.shape[-1] == 0:
            raise InputError(f"ts must hold at least one time, (T,) or (batch, T); given {tuple(times.shape)}")
        t1 = last_time(times, self.settings.t0)
        solution = self.solve(x, context=context, path=path, save_at=times, t1=t1)
        assert solution.xs is not None
        return solution.xs

    def solve(
        self,
        x: Tensor,
        *,
        context: Tensor | None = None,
        path: Path | None = None,
        theta: Theta | Tensor | None = None,
        cost: CostLike | None = None,
        save_at: Tensor | None = None,
        dense: bool = False,
        events: Event | Sequence[Event] | None = None,
        jump_ts: Tensor | Sequence[float] | None = None,
        throw: bool = True,
        keep_last: bool = False,
        callback: Callable[[Tensor, Tensor, Tensor], Any] | None = None,
        save_steps: bool = False,
        **changes: Any,
    ) -> Solution:
        """Solve, and return the whole solution.

        Args:
            x: The input of the dynamics, (batch, ...).
            context: The input of the controller, if it is not x.
            path: The path u(t) of an `InputControl` without one of its own. The block stops at its t1, wherever the
                path ends: t0=path.start, t1=path.end follows each path from its first knot to its last.
            theta: A control to start from in place of the controller's own, such as `sol.theta` of an earlier solve: a
                dict by name, or a tensor if there is one control.
            cost: A running cost l(t, x, theta), a regulariser of `ncode.costs`, or a list of these, to be added.
            save_at, dense, jump_ts, throw, keep_last, callback, save_steps: As for `ncode.solve`. The last three need
                steps, and so the solver where a closed form would do.
            events: As for `ncode.solve`; their functions receive the control by name, and resets return x alone.
            changes: Other settings for this solve: t1=2.0, rtol=1e-6, gradient="adjoint", ... Here t0 and t1 may be
                tensors (batch,), one time per sample.

        Returns:
            The solution; `sol.theta` and `sol.thetas` are dicts by name of the control.
        """
        settings = self.settings.changed(changes)
        flags = {"dense": dense, "throw": throw, "keep_last": keep_last, "save_steps": save_steps}
        flags = {name: check_flag(name, value) for name, value in flags.items()}
        saved = None if save_at is None else check_times("save_at", save_at, x)
        asked = {"cost": cost, "save_at": saved, "callback": callback, "jump_ts": jump_ts, **flags}
        asked["events"] = check_events(events or ())
        return self._solve(make_request(self, x, context, theta, settings, path, **asked))

    def episode(
        self,
        stimuli: Tensor,
        *,
        context: Tensor | None = None,
        theta: Theta | Tensor | None = None,
        durations: Sequence[float] | None = None,
        held: Tensor | None = None,
        frozen: Sequence[bool] | None = None,
        **changes: Any,
    ) -> Episode:
        """Present stimuli one after another: x starts from each and evolves from t0 to t1, and theta is carried on.

        For controls that are driven. A `Plastic` control with a fixed step size dt is never formed here: memory grows
        with the number of evaluations times n, not with n^2 per sample.

        Args:
            stimuli: The initial x of each presentation, (batch, P, ...).
            context: The input of the controller at first, if it is not the first stimulus.
            theta: A control to start from in place of the controller's own.
            durations: Duration of each presentation, P numbers, in place of t1 - t0.
            held: Which elements of x keep their initial value during a presentation, a boolean tensor (batch, P, n).
                Only for `Plastic` controls of `Recurrent` with a fixed step size dt.
            frozen: Whether theta is constant during a presentation, P values; only where `held` can be given.
            changes: Other settings for this episode.

        >>> import torch, ncode
        >>> block = ncode.NCODE(ncode.dynamics.Recurrent(8), ncode.Hebbian(), t1=0.5, method="rk4", dt=0.25)
        >>> patterns = torch.randn(2, 3, 8).sign()
        >>> result = block.episode(patterns)
        >>> result.x.shape, result.xs.shape, result.theta()["weight"].shape
        (torch.Size([2, 8]), torch.Size([2, 3, 8]), torch.Size([2, 8, 8]))
        """
        settings = self.settings.changed(changes)
        check_stimuli(stimuli, durations)
        first = make_request(self, stimuli[:, 0], context, theta, settings)
        if not first.state.driven:
            raise InputError(
                "an episode carries the control from one presentation to the next, and"
                f" {type(self.controller).__name__} does not drive it: use ClosedLoop or Plastic"
            )
        form = self._closed_form(first)
        if isinstance(form, PlasticForm):
            shown = torch.stack([self.dynamics.lift(x) for x in stimuli.unbind(1)], 1)
            result = form.episode(shown, durations, held, frozen)
            return Episode(result.x, result.xs, lambda: {form.product.control: result.trace.theta()})
        if held is not None or frozen is not None:
            raise InputError(
                "only a closed form can hold elements of x or freeze theta: held and frozen need Recurrent dynamics"
                " with a Plastic control, an explicit method with a step size dt, and exact=True"
            )
        ends: list[Tensor] = []
        control: dict[str, Tensor] = dict(first.state.driven)
        for number, x in enumerate(stimuli.unbind(1)):
            if durations is not None:
                changes = {**changes, "t1": settings.t0 + durations[number]}
            solution = self.solve(x, context=context, theta=control if number else theta, **changes)
            ends.append(solution.x)
            control = solution.theta
        return Episode(ends[-1], torch.stack(ends, 1), lambda: control)

    @staticmethod
    def family() -> Family:
        """The models of the paper, and those it is compared with, as a dict by name that prints as a table.

        `choose(dim)` of each gives its dynamics and its controller for x (batch, dim).

        >>> import torch, ncode
        >>> ncode.NCODE.family()
        model                 controller                       dynamics ...
        NODE                  Static()                         MLP(dim) ...
        ANODE                 Static()                         Augmented(MLP(dim + 5), zeros=5) ...
        data-controlled NODE  DataControl()                    MLP(dim, controlled=(), context=dim) ...
        ANODEV2               ClosedLoop(Drift(q))             MLP(dim) ...
        depth-varying NODE    TimeVarying("fourier", terms=5)  MLP(dim) ...
        second-order NODE     Static()                         SecondOrder(MLP(2 * dim, out=dim), velocity="zero") ...
        open-loop N-CODE      OpenLoop(trunk)                  MLP(dim) ...
        closed-loop N-CODE    ClosedLoop(Feedback(trunk))      MLP(dim) ...
        plastic N-CODE        Hebbian()                        Recurrent(dim) ...
        >>> block = ncode.NCODE(*ncode.NCODE.family()["open-loop N-CODE"].choose(2), t1=2.0)
        >>> block(torch.zeros(3, 2)).shape
        torch.Size([3, 2])
        """
        return Family(FAMILY)

    def config(self) -> dict[str, Any]:
        """The arguments that build this block again."""
        return {"dynamics": self.dynamics, "controller": self.controller, **self.settings.as_plain_dict()}

    def extra_repr(self) -> str:
        """The equations, the interval and how it is solved, for `print(block)`."""
        shapes, settings, name = self.dynamics.control_shapes, self.settings, type(self.dynamics).__name__
        lines = [f"dx/dt = {name}(t, x)"]
        if shapes:
            lines = [f"dx/dt = {name}(t, x, theta), {self.controller.equation}", f"theta: {format_shapes(shapes)}"]
        form = settings.closed_form(self.dynamics, self.controller)
        options = {"method": settings.options.method, **settings.options.non_default()}
        solver = ", ".join(f"{key}={value!r}" for key, value in options.items())
        lines.append(f"t from {settings.t0} to {settings.t1}, {f'by {form.name}; else ' if form else ''}{solver}")
        return "\n".join(lines)

    def _solve(self, request: Request) -> Solution:
        # torch.compile must not trace a solve, whose operations depend on values; torch.export may.
        compiling = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
        run: Any = torch.compiler.disable(self._solve_request) if compiling else self._solve_request
        return run(request)

    def _solve_request(self, request: Request) -> Solution:
        """Solve by a closed form if there is one, otherwise by the solver."""
        form = self._closed_form(request)
        if form is None:
            return self._integrate(request)
        batch = request.x0.shape[0]
        control = self.controller.control(request.x0.new_zeros(batch), request.state)
        result = form.solve(request.x0, control, request.save_at)
        theta = {} if request.only_x else expand_shared(result.theta(), self.dynamics.control_shapes, batch)
        return closed_form_solution(result, theta, request)

    def _closed_form(self, request: Request) -> ClosedForm | None:
        """The closed form that gives what is requested, or None."""
        form = request.settings.closed_form(self.dynamics, self.controller)
        if form is None or request.needs_steps:
            return None
        if not can_solve(form, request.x0, request.cost, request.save_at, request.dense):
            return None
        if isinstance(form, PiecewiseForm):
            return form.along(request.state.inputs)
        if isinstance(form, PlasticForm) and request.given:
            return replace(form, rule=replace(form.rule, theta_0=request.state.driven[form.rule.control]))
        return form

    def _integrate(self, request: Request) -> Solution:
        """Solve by `ncode.solve`."""
        dynamics, controller, x0, settings = self.dynamics, self.controller, request.x0, request.settings
        theta, state_of = wiring.carried_theta(request.state)
        f = wiring.velocity_function(dynamics, controller, state_of)
        control = wiring.control_function(dynamics, controller, state_of)
        cost = None
        if request.cost is not None:
            # A compiler merges the evaluations of the solver and of the cost by itself.
            f = f if settings.options.backend.fuses else wiring.CachedVelocity(f, dynamics, controller)
            cost = total(request.cost, System(f, control, wiring.speed_function(controller, state_of)), x0)
        solution = solve(
            f,
            x0,
            settings.t0,
            settings.t1,
            theta=theta,
            feedback=wiring.speed_function(controller, state_of, driven_only=True) if request.state.driven else None,
            cost=cost,
            save_at=request.save_at,
            dense=request.dense,
            events=wiring.named_events(request.events, control) or None,
            jump_ts=jump_times(controller, request),
            throw=request.throw,
            keep_last=request.keep_last,
            callback=request.callback,
            save_steps=request.save_steps,
            **settings.options.as_dict(),
        )
        if request.only_x:
            return solution
        return with_named_control(solution, control, controller.motion, request)
