"""What dynamics and controllers share: named shapes, constructor arguments, control names of earlier versions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from .errors import InputError, format_value

Shape = tuple[int | None, ...]
"""The shape of one sample's tensor. None: any size."""

Shapes = Mapping[str, Shape]
"""The shape of each control, by name."""

Theta = Mapping[str, Tensor]
"""A control: tensors (batch, ...) by name."""

_KERNELS = {"1x1 in": "conv_in", "3x3": "conv_3x3", "1x1 out": "conv_out"}


def format_shape(shape: Shape) -> str:
    """Return a shape as text, such as "(3, any)"."""
    sizes = ["any" if size is None else str(size) for size in shape]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def format_shapes(shapes: Shapes) -> str:
    """Return named shapes as text, such as "'weight' (3, 2), 'image' (1, any, any)"."""
    return ", ".join(f"{name!r} {format_shape(shape)}" for name, shape in shapes.items()) or "none"


def check_shapes(owner: str, shapes: Any) -> dict[str, Shape]:
    """Return the shapes of the control that dynamics take, by name.

    >>> check_shapes("MyDynamics", {"goal": [2]})
    {'goal': (2,)}
    """
    if not isinstance(shapes, Mapping) or not all(isinstance(name, str) for name in shapes):
        raise InputError(
            f"the control_shapes of {owner} must be a dict of shapes by name; given {format_value(shapes)}: for example"
            ' {"goal": (2,)}'
        )
    return {name: check_shape(f"the shape of control {name!r}", shape) for name, shape in shapes.items()}


def check_shape(name: str, shape: Any) -> Shape:
    """Return the shape of one sample's tensor, a tuple of sizes; None stands for any size."""
    if not isinstance(shape, (tuple, list)) or not all(size is None or _is_size(size) for size in shape):
        raise InputError(f"{name} must be a tuple of sizes; given {format_value(shape)}")
    return tuple(shape)


def _is_size(size: Any) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and 0 < size < 2**63


def check_names(argument: str, names: Any) -> tuple[str, ...]:
    """Return a tuple of names of controls, given in any sequence."""
    if isinstance(names, str):
        raise InputError(f"{argument} must be a tuple of names; given the string {names!r}: use ({names!r},)")
    if not isinstance(names, Iterable) or isinstance(names, Tensor):
        raise InputError(f"{argument} must be a tuple of names; given {format_value(names)}")
    names = tuple(names)
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"{argument} must be a tuple of names; {format_value(name)} is not a name")
    return names


class Configurable(nn.Module):
    """A module that can return the arguments of its constructor."""

    def config(self) -> dict[str, Any]:
        """Return the arguments that build this object again.

        By default they are read from the attributes of the same names; override this where they are kept differently.
        """
        return constructor_arguments(self)

    def extra_repr(self) -> str:
        """Show the arguments that are neither modules nor functions."""
        try:
            arguments = self.config()
        except InputError:
            return ""
        return ", ".join(f"{name}={value!r}" for name, value in arguments.items() if not callable(value))


def check_built(module: nn.Module) -> None:
    """Refuse a module whose own constructor has not called that of torch."""
    if "_parameters" not in vars(module):
        name = type(module).__name__
        raise InputError(f"{name}.__init__ does not call super().__init__(): make it the first line of {name}.__init__")


def constructor_arguments(module: nn.Module, skip: Sequence[str] = ()) -> dict[str, Any]:
    """Return the constructor arguments of a module that keeps each as an attribute of the same name."""
    arguments = {}
    for name, parameter in list(inspect.signature(type(module).__init__).parameters.items())[1:]:
        if name in skip or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        try:
            arguments[name] = getattr(module, name)
        except AttributeError:
            raise InputError(
                f"cannot find the argument {name!r} of {type(module).__name__}: in a class of your own, keep it as"
                f" self.{name}, or define config(), which returns the constructor's arguments"
            ) from None
    return arguments


def current_name(name: str) -> str:
    """Return the present name of a control that earlier versions called, for example, "weight 1" or "3x3 bias".

    >>> current_name("weight 1"), current_name("3x3 bias"), current_name("goal")
    ('weight_1', 'conv_3x3_bias', 'goal')
    """
    kernel = name.removesuffix(" bias")
    if kernel in _KERNELS:
        return _KERNELS[kernel] + ("_bias" if name.endswith(" bias") else "")
    return re.sub(r"^(weight|bias) (\d+)$", r"\1_\2", name)


def accept_old_names(module: nn.Module) -> None:
    """Let `load_state_dict` of this module take keys with control names of earlier versions."""
    module.register_load_state_dict_pre_hook(_rename_keys)


def _rename_keys(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    for key in [key for key in state_dict if key.startswith(prefix)]:
        parts = key.removeprefix(prefix).split(".")
        state_dict[prefix + ".".join(map(current_name, parts))] = state_dict.pop(key)
