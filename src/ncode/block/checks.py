"""Whether the state, the control and the dynamics of a block fit together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .._modules import Shape, Shapes, Theta, format_shape, format_shapes
from ..dynamics import Dynamics
from ..errors import InputError


def check_state_shape(dynamics: Dynamics, x: Tensor, x0: Tensor) -> None:
    """Check the state x0, which the dynamics made of x."""
    expected = dynamics.state_shape
    if expected is None or _matches(x0.shape[1:], expected):
        return
    became = "" if x0.shape == x.shape else f", which became {format_shape(x0.shape[1:])}"
    raise InputError(
        f"{type(dynamics).__name__} expects a state of shape {format_shape(expected)} per sample; given x of shape"
        f" {tuple(x.shape)}, that is {format_shape(x.shape[1:])} per sample{became}"
    )


def check_precision(block: nn.Module, x: Tensor) -> None:
    """Check that the block and x have the same device and precision."""
    for parameter in block.parameters():
        if parameter.device != x.device:
            raise InputError(f"the block is on {parameter.device} and x on {x.device}: move one of them")
        if parameter.is_floating_point() and not x.is_complex() and parameter.dtype != x.dtype:
            raise InputError(
                f"the block is {parameter.dtype} and x {x.dtype}: use x.to({parameter.dtype}), or block.to({x.dtype})"
            )
        return  # all parameters of a block have the same


def check_context(context: Tensor, x: Tensor) -> Tensor:
    """Check that a context has one entry per sample."""
    if not isinstance(context, Tensor) or context.dim() == 0 or context.shape[0] != x.shape[0]:
        raise InputError(f"context must be a tensor ({x.shape[0]}, ...), one entry per sample; given {_shown(context)}")
    return context


def check_times(ts: Any, x: Tensor) -> Tensor:
    """Times as a tensor; a list becomes double precision."""
    return ts.to(x.device) if isinstance(ts, Tensor) else torch.as_tensor(ts, dtype=torch.float64, device=x.device)


def check_stimuli(stimuli: Tensor) -> None:
    """Check that stimuli are (batch, P, ...) with at least one presentation."""
    if not isinstance(stimuli, Tensor) or stimuli.dim() < 3 or stimuli.shape[1] == 0:
        raise InputError(f"stimuli must be (batch, P, ...), P presentations per sample; given {_shown(stimuli)}")


def check_given_control(theta: Theta | Tensor, shapes: Shapes, batch: int) -> Theta:
    """Check a control that the caller of the block provides, and return it by name."""
    if isinstance(theta, Tensor):
        if len(shapes) != 1:
            raise InputError(
                f"theta must be a dict by name, since the dynamics take {format_shapes(shapes)}; given one tensor"
            )
        theta = dict.fromkeys(shapes, theta)
    given = {name: tuple(value.shape) for name, value in theta.items()}
    if set(given) != set(shapes) or not all(_matches(given[name], (batch, *shapes[name])) for name in given):
        raise _mismatch(shapes, batch, "given              ", given)
    return theta


def check_control(theta: Theta, shapes: Shapes, batch: int) -> None:
    """Check the controller's control, per sample or shared by all."""
    given = {name: tuple(value.shape) for name, value in theta.items()}
    if set(given) != set(shapes) or not all(
        _matches(given[name], (batch, *shapes[name])) or _matches(given[name], shapes[name]) for name in given
    ):
        raise _mismatch(shapes, batch, "the controller gave", given)


def _matches(shape: tuple[int, ...], expected: Shape) -> bool:
    return len(shape) == len(expected) and all(e is None or n == e for n, e in zip(shape, expected, strict=True))


def _mismatch(shapes: Shapes, batch: int, label: str, given: Shapes) -> InputError:
    expected = {name: (batch, *shape) for name, shape in shapes.items()}
    return InputError(
        "the control does not fit the dynamics:\n"
        f"  the dynamics take   {format_shapes(expected)}\n"
        f"  {label} {format_shapes(given)}"
    )


def _shown(value: Any) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__
