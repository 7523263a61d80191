"""What every controller is: who sets theta at t0, and what drives it from there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from .motion import Motion, Still

Shape = tuple[int | None, ...]  # None: any size
Shapes = Mapping[str, Shape]
Theta = Mapping[str, Tensor]


class State(NamedTuple):
    """What a controller keeps while a batch is solved: tensors (batch, ...) by name of the control.

    >>> import torch, ncode
    >>> block = ncode.NCODE(ncode.dynamics.Linear(2), ncode.OpenLoop(torch.nn.Linear(2, 4)))
    >>> state = block.controller.start(torch.zeros(5, 2))
    >>> state.fixed["weight"].shape, state.driven
    (torch.Size([5, 2, 2]), {})
    """

    fixed: Theta  # stays as it is
    driven: Theta  # is integrated beside x


class Controller(nn.Module, ABC):
    """Who sets the control of a dynamics: theta(t0) = gamma(x0), and dtheta/dt = g(t, x, theta).

    Abstract. A block binds its controller to the shapes that its dynamics want, once. In each solve it asks for the
    state at t0, for the control that a state stands for at a time, and for the speed of the control.

    >>> import torch, ncode
    >>> class Aim(ncode.control.Controller):  # at the mean of the batch
    ...     equation = "theta = mean of x0"
    ...     motion = ncode.control.Still()
    ...     def bind(self, shapes, initial):
    ...         (self.name,) = shapes
    ...     def start(self, context):
    ...         return ncode.control.State({self.name: context.mean(0).expand_as(context)}, {})
    ...     def given(self, theta):
    ...         return ncode.control.State(theta, {})
    ...     def control(self, t, state):
    ...         return dict(state.fixed)
    ...     def speed(self, t, x, state):
    ...         return {}
    ...     def config(self):
    ...         return {}
    >>> f = ncode.dynamics.Function(lambda t, x, theta: theta["goal"] - x, {"goal": (1,)})
    >>> ncode.NCODE(f, Aim(), t1=20.0)(torch.tensor([[0.0], [4.0]])).round(decimals=2)
    tensor([[2.],
            [2.]])
    """

    equation: str
    """What sets or drives theta, for a reader."""

    @abstractmethod
    def bind(self, shapes: Shapes, initial: Mapping[str, Tensor]) -> None:
        """Make what is needed to control these shapes.

        `initial` holds where a static weight of each shape would start; a shape that is left open has none.
        """

    @abstractmethod
    def start(self, context: Tensor) -> State:
        """The state at t0, from what the controller is shown: what the block was given, unless told otherwise."""

    @abstractmethod
    def given(self, theta: Theta) -> State:
        """The state that stands for a control given from outside, in place of `start`."""

    @abstractmethod
    def control(self, t: Tensor, state: State) -> dict[str, Tensor]:
        """The control at t (batch,): (batch, ...) each, or without a batch dimension where all samples share it."""

    @abstractmethod
    def speed(self, t: Tensor, x: Tensor, state: State) -> dict[str, Tensor]:
        """dtheta/dt at t (batch,), (batch, ...) each. What is not named stands still; what is driven is named."""

    @property
    @abstractmethod
    def motion(self) -> Motion:
        """How the control moves, for solvers that use it."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The arguments that build this object again."""

    def extra_repr(self) -> str:
        """The arguments that are neither modules nor functions, as they show in `print(block)`."""
        return ", ".join(f"{name}={value!r}" for name, value in self.config().items() if not callable(value))


class StillController(Controller, ABC):
    """A controller whose control is set at t0 and stands still from there.

    Abstract: a subclass says how it is set.
    """

    def given(self, theta: Theta) -> State:
        """Another control, in place of the controller's own."""
        return State(theta, {})

    def speed(self, t: Tensor, x: Tensor, state: State) -> dict[str, Tensor]:
        """None."""
        return {}

    @property
    def motion(self) -> Motion:
        """None."""
        return Still()
