"""Do the state, the control and the dynamics fit? If not, a sentence that shows both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..control.base import Theta
from ..dynamics.base import Dynamics, Shape, Shapes
from ..errors import InputError


def fits(shape: tuple[int, ...], wanted: Shape) -> bool:
    """Whether a shape is the wanted one, None standing for any size."""
    return len(shape) == len(wanted) and all(w is None or n == w for n, w in zip(shape, wanted, strict=True))


def check_state_shape(dynamics: Dynamics, given: Tensor, lifted: Tensor) -> None:
    """The state must be one that the dynamics are made for."""
    wanted = dynamics.state_shape
    if wanted is None or fits(tuple(lifted.shape[1:]), wanted):
        return
    became = "" if lifted.shape == given.shape else f", which became {show(lifted.shape[1:])}"
    raise InputError(
        f"{type(dynamics).__name__} wants a state of shape {show(wanted)} a sample; given x of shape"
        f" {tuple(given.shape)}, that is {show(given.shape[1:])} a sample{became}"
    )


def check_precision(block: nn.Module, x: Tensor) -> None:
    """The block and the state must be of one precision, unless autocast converts."""
    for parameter in block.parameters():
        if parameter.device != x.device:
            raise InputError(f"the block is on {parameter.device} and x on {x.device}: move one of them")
        if parameter.is_floating_point() and not x.is_complex() and parameter.dtype != x.dtype:
            raise InputError(
                f"the block is {parameter.dtype} and x {x.dtype}: use x.to({parameter.dtype}), or block.to({x.dtype})"
            )
        return  # all parameters of a block move together


def check_context(context: Tensor, x: Tensor) -> Tensor:
    """A context must have one entry a sample."""
    if not isinstance(context, Tensor) or context.dim() == 0 or context.shape[0] != x.shape[0]:
        shown = tuple(context.shape) if isinstance(context, Tensor) else type(context).__name__
        raise InputError(f"context must be a tensor ({x.shape[0]}, ...), one entry a sample of x; given {shown}")
    return context


def as_times(ts: Any, x: Tensor) -> Tensor:
    """Times as a tensor; those given as a list are not rounded to single precision."""
    return ts.to(x.device) if isinstance(ts, Tensor) else torch.as_tensor(ts, dtype=torch.float64, device=x.device)


def check_stimuli(stimuli: Tensor) -> None:
    """Stimuli must be at least one presentation."""
    if not isinstance(stimuli, Tensor) or stimuli.dim() < 3 or stimuli.shape[1] == 0:
        shown = tuple(stimuli.shape) if isinstance(stimuli, Tensor) else type(stimuli).__name__
        raise InputError(f"stimuli must be (batch, P, ...), P presentations a sample; given {shown}")


def check_given(theta: Theta | Tensor, shapes: Shapes, batch: int) -> Theta:
    """A control from outside, by name."""
    if isinstance(theta, Tensor):
        if len(shapes) != 1:
            raise InputError(f"theta must be a dict by name, since the dynamics want {table(shapes)}; given one tensor")
        theta = dict.fromkeys(shapes, theta)
    given = {name: tuple(value.shape) for name, value in theta.items()}
    if set(given) != set(shapes) or not all(fits(given[name], (batch, *shapes[name])) for name in given):
        raise InputError(
            "the control does not fit the dynamics:\n"
            f"  the dynamics want {table({name: (batch, *shape) for name, shape in shapes.items()})}\n"
            f"  given             {table(given)}"
        )
    return theta


def check_control_fits(theta: Theta, shapes: Shapes, batch: int) -> None:
    """The control must be the one that the dynamics want, a sample's own or shared by all."""
    right = set(theta) == set(shapes) and all(
        fits(tuple(value.shape), (batch, *shapes[name])) or fits(tuple(value.shape), shapes[name])
        for name, value in theta.items()
    )
    if not right:
        raise InputError(
            "the control does not fit the dynamics:\n"
            f"  the dynamics want   {table({name: (batch, *shape) for name, shape in shapes.items()})}\n"
            f"  the controller gave {table({name: tuple(value.shape) for name, value in theta.items()})}"
        )


def table(shapes: Mapping[str, Shape]) -> str:
    """Shapes by name."""
    return ", ".join(f"{name!r} {show(shape)}" for name, shape in shapes.items()) or "none"


def show(shape: Shape) -> str:
    """A shape for a reader."""
    sizes = ["any" if size is None else str(size) for size in shape]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
