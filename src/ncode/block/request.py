"""What is asked of a block: one solve as a `Request`, and the checks of its input."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .._modules import Shape, Shapes, Theta, format_shape, format_shapes
from .._torch_private import is_symbolic
from ..control import Controller, State
from ..costs import CostLike
from ..dynamics import Dynamics
from ..errors import InputError, check_number, check_tensor, format_value, nearest
from ..ode import Event
from ..ode.arguments import check_state
from ..paths import Path
from .settings import Settings
from .wiring import undo_autocast

if TYPE_CHECKING:
    from .ncode import NCODE


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


def make_request(
    block: NCODE,
    x: Tensor,
    context: Tensor | None,
    theta: Theta | Tensor | None,
    settings: Settings,
    path: Path | None = None,
    **more: Any,
) -> Request:
    """Check the input, and set the state and the control at t0."""
    dynamics, controller, settings = block.dynamics, block.controller, settings.for_export()
    if isinstance(x, (dict, tuple, list)):
        raise InputError(
            f"the state of a block is one tensor; given a {type(x).__name__}: concatenate its parts, and split them in"
            " the dynamics; or use ncode.solve, which takes nested states (and an input path as theta)"
        )
    check_state(check_tensor("x", x), "x")
    _check_precision(block, x)
    _check_gathered(block)
    x0 = dynamics.lift(x)
    _check_state_shape(dynamics, x, x0)
    shapes, batch = dynamics.control_shapes, x0.shape[0]
    if theta is None:
        state = controller.start(x if context is None else _check_context(context, x))
    else:
        given = _control_by_name(theta, shapes, x0)
        _check_control(given, shapes, batch, from_controller=False)
        state = controller.start_from(given)
    fixed, driven = ({name: undo_autocast(value, x0) for name, value in part.items()} for part in state[:2])
    state = _fill_inputs(State(fixed, driven, state.inputs), path, x0)
    _check_control(controller.control(x0.new_zeros(batch), state), shapes, batch, from_controller=True)
    return Request(x0, state, theta is not None, settings, **more)


def jump_times(controller: Controller, request: Request) -> Any:
    """The jumps that the caller names, or else those of the control, unless steps have a fixed size."""
    if request.jump_ts is not None or request.settings.options.dt is not None:
        return request.jump_ts
    times = controller.jump_times(request.state)
    if times is None or not request.settings.options.shared_step:
        return times
    same = bool((times == times[:1]).all())
    return times[0] if same else None


def _check_state_shape(dynamics: Dynamics, x: Tensor, x0: Tensor) -> None:
    expected = dynamics.state_shape
    if expected is None or _matches(x0.shape[1:], expected):
        return
    became = "" if x0.shape == x.shape else f", which became {format_shape(x0.shape[1:])}"
    hint = ": for one sample use x[None]" if _matches(x.shape, expected) else ""
    raise InputError(
        f"{type(dynamics).__name__} expects a state of shape {format_shape(expected)} per sample; given x of shape"
        f" {tuple(x.shape)}, that is {format_shape(x.shape[1:])} per sample{became}{hint}"
    )


def _check_precision(block: nn.Module, x: Tensor) -> None:
    for parameter in block.parameters():
        if parameter.device != x.device:
            raise InputError(f"the block is on {parameter.device} and x on {x.device}: move one of them")
        if parameter.is_floating_point() and not x.is_complex() and parameter.dtype != x.dtype:
            hint = f"x.to({parameter.dtype}), or block.to({x.dtype})"
            if parameter.dtype in (torch.float16, torch.bfloat16):  # a state of 16 bits is too coarse to step in
                hint = f"block.to({x.dtype}), and torch.autocast for networks in 16 bits"
            raise InputError(f"the block is {parameter.dtype} and x {x.dtype}: use {hint}")
        return  # all parameters of a block have the same


def _check_gathered(block: nn.Module) -> None:
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


def _check_context(context: Tensor, x: Tensor) -> Tensor:
    if check_tensor("context", context).dim() == 0 or context.shape[0] != x.shape[0]:
        raise InputError(
            f"context must be a tensor ({x.shape[0]}, ...), one entry per sample; given {_shown(context)}. For x at"
            " times ts use block.trajectory(x, ts)"
        )
    return context


def _fill_inputs(state: State, path: Any, x0: Tensor) -> State:
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


def _control_by_name(theta: Any, shapes: Shapes, x: Tensor) -> Theta:
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


def _check_control(theta: Theta, shapes: Shapes, batch: int, from_controller: bool) -> None:
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
