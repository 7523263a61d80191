"""Several controllers for one dynamics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from .._modules import Shapes, Theta, check_names, current_name
from ..errors import InputError, check_choice, format_value
from .base import Constant, Controller, General, Motion, State, by_name

Names = str | tuple[str, ...]


class Parts(Controller):
    """One controller for each part of the control.

    Args:
        parts: The controller of each control, by its name or by a tuple of names.
        rest: The controller of all other controls.

    >>> import torch, ncode
    >>> f = ncode.dynamics.MLP(2, hidden=16, context=2)  # takes its weights and a context
    >>> block = ncode.NCODE(f, ncode.control.Parts({"context": ncode.DataControl()}, rest=ncode.Static()))
    >>> block(torch.zeros(5, 2)).shape
    torch.Size([5, 2])
    """

    equation = "theta in parts"

    def __init__(
        self,
        parts: Mapping[Names, Controller] | Iterable[tuple[Names, Controller]],
        rest: Controller | None = None,
    ):
        super().__init__()
        pairs = _check_parts(parts)
        self.names = [tuple(map(current_name, names)) for names, _ in pairs]
        controllers = [part for _, part in pairs] + ([] if rest is None else [rest])
        for part in controllers:
            if not isinstance(part, Controller):
                raise InputError(f"Parts needs a controller for each part; given {type(part).__name__}")
        if len({id(part) for part in controllers}) < len(controllers):
            raise InputError('Parts has one controller in two places: name both controls together, {("a", "b"): ...}')
        named = [name for names in self.names for name in names]
        if len(set(named)) < len(named):
            raise InputError(f"Parts names a control twice: {named}")
        self.controllers, self.has_rest = nn.ModuleList(controllers), rest is not None

    def build(self, shapes: Shapes, defaults: Theta) -> None:
        named = [check_choice("control", name, shapes) for names in self.names for name in names]
        others = tuple(name for name in shapes if name not in named)
        if others and not self.has_rest:
            raise InputError(f"Parts sets no {', '.join(map(repr, others))}: name it, or give a controller as rest=...")
        if self.has_rest and not others:
            raise InputError("Parts names every control, so the controller given as rest has nothing to control")
        self.names = [*self.names, others] if others else self.names
        for part, names in self._parts():
            part.bind({n: shapes[n] for n in names}, {n: defaults[n] for n in names if n in defaults})

    def initial_theta(self, context: Tensor) -> Theta:
        return _merge(
            by_name(part.initial_theta(context), names, f"{type(part).__name__}.initial_theta")
            for part, names in self._parts()
        )

    def start(self, context: Tensor) -> State:
        return _join(part.start(context) for part, _ in self._parts())

    def start_from(self, theta: Theta) -> State:
        return _join(part.start_from({name: theta[name] for name in names}) for part, names in self._parts())

    def control(self, t: Tensor, state: State) -> dict[str, Tensor]:
        return _merge(part.control(t, _select(state, names)) for part, names in self._parts())

    def control_speed(self, t: Tensor, x: Tensor, state: State) -> dict[str, Tensor]:
        return _merge(part.control_speed(t, x, _select(state, names)) for part, names in self._parts())

    def jump_times(self, state: State) -> Tensor | None:
        found = [part.jump_times(_select(state, names)) for part, names in self._parts()]
        jumps = [times for times in found if times is not None]
        return torch.cat(jumps, 1) if jumps else None

    def driven_speed(self, t: Tensor, x: Tensor, state: State) -> dict[str, Tensor]:
        return _merge(part.driven_speed(t, x, _select(state, names)) for part, names in self._parts())

    @property
    def motion(self) -> Motion:
        controllers = cast(Iterable[Controller], self.controllers)
        return Constant() if all(isinstance(part.motion, Constant) for part in controllers) else General()

    def config(self) -> dict[str, Any]:
        rest = self.controllers[-1] if self.has_rest else None
        named = self.controllers[: len(self.controllers) - self.has_rest]
        return {"parts": list(zip(self.names, named, strict=False)), "rest": rest}

    def extra_repr(self) -> str:
        return ", ".join(map(repr, self.names))

    def _parts(self) -> Iterator[tuple[Controller, tuple[str, ...]]]:
        return zip(cast(Iterable[Controller], self.controllers), self.names, strict=False)


def _check_parts(parts: Any) -> list[tuple[tuple[str, ...], Controller]]:
    """Return the names of each part and its controller."""
    given = parts.items() if isinstance(parts, Mapping) else parts
    pairs: list[Any] = list(given) if isinstance(given, Iterable) and not isinstance(given, Tensor) else [None]
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):
        raise InputError(
            f"parts must be a dict of controllers by name of the control; given {format_value(parts)}: for example"
            ' {"context": DataControl()}'
        )
    return [((key,) if isinstance(key, str) else check_names("a key of parts", key), part) for key, part in pairs]


def _select(state: State, names: tuple[str, ...]) -> State:
    parts = cast(Iterable[Mapping[str, Any]], state)
    return State(*({name: part[name] for name in names if name in part} for part in parts))


def _join(states: Iterable[State]) -> State:
    return State(*map(_merge, zip(*states, strict=True)))


def _merge(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}
