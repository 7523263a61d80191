"""What lies between a block and the solver: its settings, the checks of its input, and the functions it integrates.

What the solver carries as theta are the driven controls or, if none is driven, the fixed ones and the input paths. If
there are both, the functions capture the latter. All are plain functions that capture only modules and tensors, so that
the solver finds the parameters in them, and a compiling backend recognises them in the next solve.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from .._modules import Shape, Shapes, Theta, format_shape, format_shapes
from .._torch_private import is_symbolic, pytree
from ..closed_forms.select import ClosedForm, ClosedFormResult, closed_form
from ..control import Controller, State
from ..control.base import Constant, Motion, expand_shared
from ..costs import CostLike
from ..dynamics import Dynamics
from ..errors import (
    InputError,
    SolveError,
    Status,
    check_choice,
    check_flag,
    check_number,
    check_tensor,
    format_value,
    nearest,
)
from ..ode import Event, Solution, SolveOptions, Stats
from ..ode.arguments import check_interval
from ..ode.record import mask_like
from ..ode.system import Dynamics as Velocity
from ..paths import Path

StateOf = Callable[[Any], State]
ControlFunction = Callable[[Tensor, Any], dict[str, Tensor]]
SpeedFunction = Callable[[Tensor, Tensor, Any], dict[str, Tensor]]

_OWN = ("t0", "t1", "exact")


@dataclass(frozen=True)
class Settings:
    """The interval of a block, the options of the solver, and whether closed forms may replace it.

    >>> settings = Settings(t1=2.0).changed({"method": "rk4", "dt": 0.5})
    >>> settings.t1, settings.options.method, settings.options.dt
    (2.0, 'rk4', 0.5)
    """

    t0: float | Tensor = 0.0
    t1: float | Tensor = 1.0
    exact: bool = True
    options: SolveOptions = field(default_factory=SolveOptions)

    def __post_init__(self) -> None:
        for name in ("t0", "t1"):
            value = getattr(self, name)
            _ = check_tensor(name, value) if isinstance(value, Tensor) else check_number(name, value, low=-math.inf)
        check_flag("exact", self.exact)

    def changed(self, changes: Mapping[str, Any]) -> Settings:
        """The same settings with other values of t0, t1, exact, or options of the solver."""
        for name in changes:
            check_choice("setting", name, [*_OWN, *self.options.as_dict()])
        own = {name: value for name, value in changes.items() if name in _OWN}
        options = {name: value for name, value in changes.items() if name not in _OWN}
        return replace(self, **own, options=self.options.changed(**options)) if changes else self

    def as_dict(self) -> dict[str, Any]:
        """All settings by name: the keyword arguments of `NCODE`."""
        return {**{name: getattr(self, name) for name in _OWN}, **self.options.as_dict()}

    def closed_form(self, dynamics: Dynamics, controller: Controller) -> ClosedForm | None:
        """The closed form that may replace the solver, or None."""
        if not self.exact:
            return None
        return closed_form(dynamics.structure, controller.motion, self.t0, self.t1, self.options)

    def changes_from(self, base: Settings) -> dict[str, Any]:
        """The settings that differ from those of `base`, as the keyword arguments of `NCODE` that files can hold."""
        before, now = base.as_plain_dict(), self.as_plain_dict()
        return {name: value for name, value in now.items() if value != before[name]}

    def as_plain_dict(self) -> dict[str, Any]:
        """All settings by name, tolerances per component as lists."""
        settings = self.as_dict()
        for name in ("rtol", "atol"):
            settings[name] = settings[name].tolist() if isinstance(settings[name], Tensor) else settings[name]
        return settings

    def for_export(self) -> Settings:
        """The settings with which a block is exported or traced, as `SolveOptions.for_export` changes them."""
        fix = 'export block.with_options(method="rk4", dt=0.1), which shares its weights and takes fixed steps'
        options = self.options.for_export((self.t0, self.t1), fix)
        return self if options is self.options else replace(self, options=options, exact=False)


def check_settings(solver: Any) -> Mapping[str, Any]:
    """Return settings of a block by name, as a model takes them; None for none."""
    if solver is not None and not isinstance(solver, Mapping):
        raise InputError(f'solver must be a dict such as {{"method": "rk4", "dt": 0.1}}; given {format_value(solver)}')
    return solver or {}


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
    events: Sequence[Event] = ()
    jump_ts: Any = None
    throw: bool = True
    keep_last: bool = False
    callback: Callable[[Tensor, Tensor, Tensor], Any] | None = None
    save_steps: bool = False
    only_x: bool = False  # whether x at t1 is all that is needed

    @property
    def needs_steps(self) -> bool:
        """Whether something is requested that only the steps of the solver give: a closed form has none."""
        stops = bool(self.events) or self.jump_ts is not None
        return stops or self.keep_last or self.save_steps or self.callback is not None


@dataclass(frozen=True, eq=False)
class Episode:
    """The result of `NCODE.episode`: the states at the ends of its presentations, and the control after the last."""

    x: Tensor  # at the end of the last presentation, (batch, ...)
    xs: Tensor  # at the end of each presentation, (batch, P, ...)
    make_theta: Callable[[], dict[str, Tensor]]

    def theta(self) -> dict[str, Tensor]:
        """The control after the last presentation, by name. A `Plastic` control is formed only by this call."""
        return self.make_theta()


def check_state_shape(dynamics: Dynamics, x: Tensor, x0: Tensor) -> None:
    expected = dynamics.state_shape
    if expected is None or _matches(x0.shape[1:], expected):
        return
    became = "" if x0.shape == x.shape else f", which became {format_shape(x0.shape[1:])}"
    hint = ": for one sample use x[None]" if _matches(x.shape, expected) else ""
    raise InputError(
        f"{type(dynamics).__name__} expects a state of shape {format_shape(expected)} per sample; given x of shape"
        f" {tuple(x.shape)}, that is {format_shape(x.shape[1:])} per sample{became}{hint}"
    )


def check_precision(block: nn.Module, x: Tensor) -> None:
    for parameter in block.parameters():
        if parameter.device != x.device:
            raise InputError(f"the block is on {parameter.device} and x on {x.device}: move one of them")
        if parameter.is_floating_point() and not x.is_complex() and parameter.dtype != x.dtype:
            hint = f"x.to({parameter.dtype}), or block.to({x.dtype})"
            if parameter.dtype in (torch.float16, torch.bfloat16):  # a state of 16 bits is too coarse to step in
                hint = f"block.to({x.dtype}), and torch.autocast for networks in 16 bits"
            raise InputError(f"the block is {parameter.dtype} and x {x.dtype}: use {hint}")
        return  # all parameters of a block have the same


def check_gathered(block: nn.Module) -> None:
    """Refuse parameters that FSDP2 has sharded and will not gather: it does so only for the `forward` of modules."""
    if not any(type(parameter).__name__ == "DTensor" for parameter in block.parameters()):
        return
    from torch.distributed.fsdp import FSDPModule

    # A controller is no such module: the block calls other methods of it.
    inner = [it for it in block.modules() if it is not block and not isinstance(it, Controller)]
    gathered = {id(p) for module in inner if isinstance(module, FSDPModule) for p in module.parameters()}
    if any(type(p).__name__ == "DTensor" and id(p) not in gathered for p in block.parameters()):
        raise InputError(
            "the parameters of this block are sharded (DTensor), and FSDP2 gathers them only for the forward of the"
            " module that was given to fully_shard: call that module, give the whole block to fully_shard, or name"
            ' another method by torch.distributed.fsdp.register_fsdp_forward_method(module, "solve")'
        )


def check_context(context: Tensor, x: Tensor) -> Tensor:
    if check_tensor("context", context).dim() == 0 or context.shape[0] != x.shape[0]:
        raise InputError(
            f"context must be a tensor ({x.shape[0]}, ...), one entry per sample; given {_shown(context)}. For x at"
            " times ts use block.trajectory(x, ts)"
        )
    return context


def fill_inputs(state: State, path: Any, x0: Tensor) -> State:
    """The controller's state with the path of this solve, where the controller has none of its own."""
    if path is not None and not isinstance(path, Path):
        raise InputError(f"path must be one of ncode.paths, such as linear(values); given {format_value(path)}")
    if path is not None and None not in state.inputs.values():
        raise InputError(
            "a path was given, but no controller takes one: use InputControl(map), without a path of its own"
        )
    inputs = {name: path if own is None else own for name, own in state.inputs.items()}
    dtype = x0.real.dtype if x0.is_complex() else x0.dtype
    for used in inputs.values():
        if used is None:
            raise InputError("the controller takes a path: block(x, path=...), with a path of ncode.paths")
        if used.coefficients.dtype != dtype or used.coefficients.device != x0.device:
            raise InputError(
                f"the path is {used.coefficients.dtype} on {used.coefficients.device}, and x {x0.dtype} on {x0.device}:"
                " convert it with path.to(...)"
            )
    return state._replace(inputs={name: used.expand(len(x0)) for name, used in inputs.items() if used is not None})


def check_times(name: str, ts: Any, x: Any) -> Tensor:
    """Times as a tensor; a list becomes double precision."""
    device = check_tensor("x", x).device
    if isinstance(ts, Tensor):
        return check_tensor(name, ts).to(device)
    try:
        return torch.as_tensor(ts, dtype=torch.float64, device=device)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(f"{name} must be a tensor of times, or a list; given {format_value(ts)} ({error})") from error


def last_time(ts: Tensor, t0: float | Tensor) -> Tensor:
    """The last of times (T,) or (batch, T), nan apart; t0 where there is none."""
    if is_symbolic() or not ts.is_floating_point():
        return ts[..., -1]
    places = torch.arange(ts.shape[-1], device=ts.device)
    last = torch.where(ts.detach().isnan(), -1, places).amax(-1)
    found = ts.gather(-1, last.clamp_min(0)[..., None])[..., 0]
    return torch.where(last < 0, t0, found)


def check_stimuli(stimuli: Tensor, durations: Sequence[float] | None) -> None:
    if check_tensor("stimuli", stimuli).dim() < 3 or stimuli.shape[1] == 0:
        raise InputError(f"stimuli must be (batch, P, ...), P presentations per sample; given {_shown(stimuli)}")
    if durations is None:
        return
    if not isinstance(durations, (list, tuple)) or len(durations) != stimuli.shape[1]:
        raise InputError(
            f"durations must be a list of {stimuli.shape[1]} numbers, one per presentation; given"
            f" {format_value(durations)}"
        )
    for duration in durations:
        check_number("durations", duration, low=0.0, strict=True)


def control_by_name(theta: Any, shapes: Shapes, x: Tensor) -> Theta:
    """A control that the caller of the block provides, as a dict; a single control may be a tensor."""
    if isinstance(theta, Tensor) and len(shapes) == 1:
        theta = dict.fromkeys(shapes, theta)
    if not isinstance(theta, Mapping):
        given = "one tensor" if isinstance(theta, Tensor) else format_value(theta)
        raise InputError(
            f"theta must be a dict by name, since the dynamics take {format_shapes(shapes)}; given {given}"
        )
    for name, value in theta.items():
        if check_tensor(f"theta[{name!r}]", value).device != x.device:
            raise InputError(f"theta[{name!r}] is on {value.device} and x on {x.device}: move one of them")
    return theta


def check_control(theta: Theta, shapes: Shapes, batch: int, from_controller: bool) -> None:
    """Check the shapes of a control. One from the controller may be shared, without a batch dimension."""
    given = {name: tuple(value.shape) for name, value in theta.items()}
    expected = {name: (batch, *shape) for name, shape in shapes.items()}
    if set(given) == set(shapes) and all(
        _matches(shape, expected[name]) or (from_controller and _matches(shape, shapes[name]))
        for name, shape in given.items()
    ):
        return
    unknown = [name for name in given if name not in shapes]
    hint = nearest(unknown[0], shapes).replace("; d", "\nd", 1) if unknown else ""
    raise InputError(
        "the control does not fit the dynamics:\n"
        f"  the dynamics take   {format_shapes(expected)}\n"
        f"  {'the controller gave' if from_controller else 'given              '} {format_shapes(given)}{hint}"
    )


def _matches(shape: tuple[int, ...], expected: Shape) -> bool:
    return len(shape) == len(expected) and all(e is None or n == e for n, e in zip(shape, expected, strict=True))


def _shown(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def undo_autocast(value: Tensor, x: Tensor) -> Tensor:
    """Under autocast, networks return less precision than that in which the state is integrated."""
    return value.to(x.dtype) if torch.is_autocast_enabled(x.device.type) else value


def carried_theta(state: State) -> tuple[Any, StateOf]:
    """What the solver carries as theta, and a function that returns the controller's state for it."""
    if state.inputs and not state.driven:
        return (state.fixed, state.inputs), lambda theta: State(theta[0], {}, theta[1])
    if not state.driven:
        return state.fixed or None, lambda theta: State(theta or {}, {})
    fixed = inputs = _nothing
    for name, value in state.fixed.items():
        fixed = _with_tensor(fixed, name, value)
    for name, path in state.inputs.items():
        assert path is not None
        inputs = _with_path(inputs, name, *path)
    return state.driven, lambda theta: State(fixed(), theta or {}, inputs())


def jump_times(controller: Controller, request: Request) -> Any:
    """The jumps that the caller names, or else those of the control, unless steps have a fixed size."""
    if request.jump_ts is not None or request.settings.options.dt is not None:
        return request.jump_ts
    times = controller.jump_times(request.state)
    if times is None or not request.settings.options.shared_step:
        return times
    same = bool((times == times[:1]).all())
    return times[0] if same else None


def velocity_function(dynamics: Dynamics, controller: Controller, state_of: StateOf) -> Velocity:
    def f(t: Tensor, x: Tensor, theta: Theta | None) -> Tensor:
        control = controller.control(t, state_of(theta))
        if not dynamics.shared_control:
            control = expand_shared(control, dynamics.control_shapes, x.shape[0])
        try:
            return undo_autocast(dynamics(t, x, control), x)
        except KeyError as error:
            refuse_unknown_name(type(dynamics).__name__, error, control)
            raise

    supplied = getattr(dynamics, "jacobian", None)
    if supplied is not None:  # methods for stiff problems use it
        f.jacobian = lambda t, x, theta: supplied(t, x, controller.control(t, state_of(theta)))  # pyright: ignore
    return f


def refuse_unknown_name(owner: str, error: KeyError, control: Theta) -> None:
    """Raise `InputError` if the key that was looked up in vain can be a wrong name of a control."""
    name = error.args[0] if error.args else None
    if not isinstance(name, str) or name in control:
        return
    hint = f"{nearest(name, control)} (there are: {', '.join(control)})"
    if not control:
        hint = f": give the dynamics control_shapes, as in control_shapes={{{name!r}: (2,)}} for two numbers per sample"
    raise InputError(f"{owner} looked up {name!r}, and no control has this name{hint}") from error


def control_function(dynamics: Dynamics, controller: Controller, state_of: StateOf) -> ControlFunction:
    """The control by name, with a batch dimension."""

    def control(t: Tensor, theta: Theta | None) -> dict[str, Tensor]:
        return expand_shared(controller.control(t, state_of(theta)), dynamics.control_shapes, t.shape[0])

    return control


def speed_function(controller: Controller, state_of: StateOf, driven_only: bool = False) -> SpeedFunction:
    """dtheta/dt by name, of the driven controls alone or of all that change; the others are constant."""

    def g(t: Tensor, x: Tensor, theta: Theta | None) -> dict[str, Tensor]:
        try:
            speed = (controller.driven_speed if driven_only else controller.control_speed)(t, x, state_of(theta))
        except KeyError as error:
            refuse_unknown_name("dtheta/dt", error, theta if isinstance(theta, Mapping) else {})
            raise
        names = (theta or {}) if driven_only else speed
        return {name: undo_autocast(speed[name], x) for name in names}

    return g


class CachedVelocity(nn.Module):
    """A velocity that the solver and a cost both evaluate at each point, computed once."""

    def __init__(self, f: Velocity, dynamics: Dynamics, controller: Controller):
        super().__init__()
        self.f, self.dynamics, self.controller = f, dynamics, controller
        self.inputs: tuple[Any, ...] = ()
        self.output: Any = None

    def forward(self, t: Tensor, x: Tensor, theta: Theta | None) -> Tensor:
        inputs = (t, x, theta, torch.is_grad_enabled())
        if not self.inputs or any(a is not b for a, b in zip(inputs, self.inputs, strict=True)):
            self.inputs, self.output = inputs, self.f(t, x, theta)
        return self.output


def named_events(events: Sequence[Event], control: ControlFunction) -> list[Event]:
    """Events whose functions receive the control by name; their resets return x alone."""

    def named(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(t: Tensor, x: Any, theta: Any) -> Any:
            found = function(t, x, control(t, theta))
            if isinstance(found, tuple):
                raise InputError("the reset of an Event of a block must return x alone: its controller sets theta")
            return found

        return call

    return [
        replace(event, function=named(event.function), reset=None if event.reset is None else named(event.reset))
        for event in events
    ]


def with_named_control(solution: Solution, control: ControlFunction, motion: Motion, request: Request) -> Solution:
    """The solver's solution with the control by name, in place of what the solver carried."""
    x, ts, t1 = solution.x, solution.ts, request.settings.t1
    # `full` writes a number on the device; copying it there would synchronise.
    t1 = t1 if isinstance(t1, Tensor) else torch.full((), t1, dtype=x.real.dtype, device=x.device)
    t1 = t1.to(x.device, x.real.dtype).expand(x.shape[0])
    if request.keep_last or request.events:
        t1 = solution.t.to(t1)
    theta = control(t1, solution.theta)
    if ts is None:
        return replace(solution, theta=theta)
    if isinstance(motion, Constant) or not ts.shape[1]:
        return replace(solution, theta=theta, thetas=_repeated(theta, ts.shape[1]))
    columns, missing = [], ts.detach().isnan()
    times = torch.where(missing, 0.0, ts).to(x.real.dtype)  # nan would reach gradients, even multiplied by 0
    for column in range(ts.shape[1]):
        carried = pytree.tree_map(lambda value, column=column: value[:, column], solution.thetas or {})
        columns.append(control(times[:, column], carried))
    thetas = {name: torch.stack([column[name] for column in columns], 1) for name in theta}
    thetas = {name: torch.where(mask_like(missing, it[:, 0]), torch.nan, it) for name, it in thetas.items()}
    return replace(solution, theta=theta, thetas=thetas)


def closed_form_solution(result: ClosedFormResult, theta: Theta, request: Request) -> Solution:
    """The solution by a closed form, with the statuses that the solver would return."""
    x0, settings = request.x0, request.settings
    _, t1, full, given = check_interval(settings.t0, settings.t1, request.save_at, x0)
    none = torch.zeros(x0.shape[0], dtype=torch.int32, device=x0.device)
    finite = result.x.detach().isfinite().flatten(1).all(1)
    codes = torch.where(finite, Status.OK.value, Status.NOT_FINITE.value).to(torch.int32)
    solution = Solution(
        x=torch.where(finite[:, None], result.x, torch.nan),
        theta=dict(theta),
        cost=None,
        ts=None if given is None or full is None else given.expand(full.shape),
        xs=result.xs,
        thetas=None if full is None else result.thetas() if result.thetas else _repeated(theta, full.shape[1]),
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


def _nothing() -> dict[str, Any]:
    return {}


def _with_tensor(others: Callable[[], dict[str, Any]], name: str, value: Tensor) -> Callable[[], dict[str, Any]]:
    return lambda: {**others(), name: value}


def _with_path(
    others: Callable[[], dict[str, Any]], name: str, edges: Tensor, end: Tensor, coefficients: Tensor
) -> Callable[[], dict[str, Any]]:
    return lambda: {**others(), name: Path(edges, end, coefficients)}
