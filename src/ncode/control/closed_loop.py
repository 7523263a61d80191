"""Closed loop: the state drives the control on its way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ..checks import check_choice
from ..errors import InputError
from .base import Controller, Shapes, State, Theta
from .feedback import Feedback
from .motion import Free, Motion, Still
from .static import Static
from .zero import Zero

STARTS: dict[str, Callable[[], Controller]] = {"learned": Static, "zero": Zero}


class ClosedLoop(Controller):
    """dtheta/dt = g(t, x, theta): the state drives the control, which drives the state.

    Args:
        feedback: g, a `Feedback` network whose heads the block makes, or any function or module g(t, x, theta) that
            returns dtheta/dt; theta and the result are dicts by name of the control, (batch, ...) each.
        initial: The control at t0: "learned", the same for all samples; "zero"; or a controller that stands still, such
            as an `OpenLoop`.

    >>> import torch, ncode
    >>> f = ncode.dynamics.Function(lambda t, x, theta: theta["v"], {"v": (1,)})
    >>> g = lambda t, x, theta: {"v": -x}
    >>> block = ncode.NCODE(f, ncode.ClosedLoop(g, initial="zero"), t1=torch.pi, rtol=1e-6)
    >>> block(torch.tensor([[1.0], [2.0]])).round(decimals=3)  # x(0) cos(pi), as in Proposition 1
    tensor([[-1.],
            [-2.]])
    """

    equation = "dtheta/dt = g(t, x, theta)"

    def __init__(
        self,
        feedback: Callable[[Tensor, Tensor, dict[str, Tensor]], Mapping[str, Tensor]],
        initial: Controller | str = "learned",
    ):
        super().__init__()
        if not callable(feedback):
            raise InputError(f"feedback must be a function of (t, x, theta); given {type(feedback).__name__}")
        if not isinstance(initial, Controller):
            initial = STARTS[check_choice("initial control", initial, STARTS)]()
        if not isinstance(initial.motion, Still):
            raise InputError(f"initial must be a controller that stands still; given {type(initial).__name__}")
        self.feedback, self.initial = feedback, initial

    def bind(self, shapes: Shapes, initial: Mapping[str, Tensor]) -> None:
        """Bind what sets the control at t0, and the feedback's heads where the block is to make them."""
        if not shapes:
            raise InputError("ClosedLoop has nothing to control: the dynamics want no control")
        self.initial.bind(shapes, initial)
        if isinstance(self.feedback, Feedback):
            self.feedback.bind(shapes, initial)

    def start(self, context: Tensor) -> State:
        """The initial control, a copy a sample, since each takes its own way."""
        state = self.initial.start(context)
        theta = self.initial.control(context.new_zeros(context.shape[0]), state)
        own = {
            name: value if name in state.fixed else value.expand(context.shape[0], *value.shape)
            for name, value in theta.items()
        }
        return State({}, own)

    def given(self, theta: Theta) -> State:
        """Another control to start from."""
        return State({}, theta)

    def control(self, t: Tensor, state: State) -> dict[str, Tensor]:
        """As it was driven."""
        return dict(state.driven)

    def speed(self, t: Tensor, x: Tensor, state: State) -> dict[str, Tensor]:
        """g(t, x, theta)."""
        speed = self.feedback(t, x, dict(state.driven))
        if not isinstance(speed, Mapping) or set(speed) != set(state.driven):
            shown = sorted(speed) if isinstance(speed, Mapping) else type(speed).__name__
            raise InputError(
                f"the feedback returned {shown}; expected a dict with the speed of each control: {sorted(state.driven)}"
            )
        return {name: speed[name] for name in state.driven}

    @property
    def motion(self) -> Motion:
        """Free."""
        return Free()

    def config(self) -> dict[str, Any]:
        """feedback, initial."""
        return {"feedback": self.feedback, "initial": self.initial}
