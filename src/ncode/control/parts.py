"""Several controllers for one dynamics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from torch import Tensor, nn

from ..checks import check_choice
from ..errors import InputError
from .base import Controller, Shapes, State, Theta
from .motion import Free, Motion, Still

Names = str | tuple[str, ...]


class Parts(Controller):
    """A controller for each part of the control.

    Args:
        parts: By name of a control, or by a tuple of names, the controller that drives it.
        rest: The controller of all that is not named.

    >>> import torch, ncode
    >>> f = ncode.dynamics.MLP(2, hidden=16, context=2)  # wants its weights, and a context
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
        pairs = cast(Iterable[tuple[Names, Controller]], parts.items() if isinstance(parts, Mapping) else parts)
        pairs = list(pairs)
        self.names: list[tuple[str, ...]] = [(n,) if isinstance(n, str) else tuple(n) for n, _ in pairs]
        controllers = [part for _, part in pairs] + ([] if rest is None else [rest])
        for part in controllers:
            if not isinstance(part, Controller):
                raise InputError(f"Parts needs a controller for each part; given {type(part).__name__}")
        if len({id(part) for part in controllers}) < len(controllers):
            raise InputError('one controller stands at two places: name both controls together, {("a", "b"): ...}')
        named = [name for names in self.names for name in names]
        if len(set(named)) < len(named):
            raise InputError(f"Parts names a control twice: {named}")
        self.controllers, self.has_rest = nn.ModuleList(controllers), rest is not None

    def bind(self, shapes: Shapes, initial: Mapping[str, Tensor]) -> None:
        """Bind each controller to its part."""
        named = [check_choice("control to drive", name, shapes) for names in self.names for name in names]
        left = tuple(name for name in shapes if name not in named)
        if bool(left) != self.has_rest:
            raise InputError(
                f"nobody drives {', '.join(map(repr, left))}: name it in Parts, or give a controller for the rest"
                if left
                else "every control is named, so the controller for the rest has nothing to drive"
            )
        self.names = [*self.names, left] if left else self.names
        for part, names in self._each():
            part.bind({n: shapes[n] for n in names}, {n: initial[n] for n in names if n in initial})

    def start(self, context: Tensor) -> State:
        """Each part's."""
        return _join(part.start(context) for part, _ in self._each())

    def given(self, theta: Theta) -> State:
        """Each part's."""
        return _join(part.given({name: theta[name] for name in names}) for part, names in self._each())

    def control(self, t: Tensor, state: State) -> dict[str, Tensor]:
        """Each part's."""
        return {k: v for part, names in self._each() for k, v in part.control(t, _of(state, names)).items()}

    def speed(self, t: Tensor, x: Tensor, state: State) -> dict[str, Tensor]:
        """Each part's."""
        return {k: v for part, names in self._each() for k, v in part.speed(t, x, _of(state, names)).items()}

    @property
    def motion(self) -> Motion:
        """None, where no part moves."""
        return Still() if all(isinstance(part.motion, Still) for part, _ in self._each()) else Free()

    def config(self) -> dict[str, Any]:
        """parts, rest."""
        pairs = list(zip(self.names, self.controllers, strict=False))
        rest = self.controllers[-1] if self.has_rest else None
        return {"parts": pairs[: len(self.controllers) - self.has_rest], "rest": rest}

    def _each(self) -> Iterator[tuple[Controller, tuple[str, ...]]]:
        """Controllers with the names of what they drive."""
        return zip(cast(Iterable[Controller], self.controllers), self.names, strict=False)


def _of(state: State, names: tuple[str, ...]) -> State:
    """A part's state."""
    return State(*({name: part[name] for name in names if name in part} for part in state))


def _join(states: Iterable[State]) -> State:
    """The parts' states as one."""
    fixed: dict[str, Tensor] = {}
    driven: dict[str, Tensor] = {}
    for state in states:
        fixed |= state.fixed
        driven |= state.driven
    return State(fixed, driven)
