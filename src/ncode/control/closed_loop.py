"""Closed loop: the control is driven during the solve, by the state or by an ODE of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from .._modules import Configurable, Shapes, Theta, check_names
from ..errors import InputError, check_choice, check_function, check_number
from .base import Constant, Controller, check_bound, check_closed
from .open_loop import Heads, features_of, trunk_width
from .static import Static, Zero

INITIAL: dict[str, Callable[[], Controller]] = {"learned": Static, "zero": Zero}
INPUTS = ("x", "theta", "t")


class ClosedLoop(Controller):
    """dtheta/dt = g(t, x, theta): the state drives the control, which drives the state.

    Args:
        feedback: g, a `Feedback` network, whose heads the block makes, or any function or module g(t, x, theta) that
            returns dtheta/dt. theta and the result are dicts by name of the control, each (batch, ...).
        initial: The control at t0: "learned", the same for all samples; "zero"; or a controller whose control is
            constant, such as `OpenLoop`.

    >>> import torch, ncode
    >>> f = ncode.dynamics.Function(lambda t, x, theta: theta["v"], {"v": (1,)})
    >>> g = lambda t, x, theta: {"v": -x}
    >>> block = ncode.NCODE(f, ncode.ClosedLoop(g, initial="zero"), t1=torch.pi, rtol=1e-6)
    >>> block(torch.tensor([[1.0], [2.0]])).round(decimals=3)  # x(0) cos(pi), as in Proposition 1
    tensor([[-1.],
            [-2.]])
    """

    equation = "dtheta/dt = g(t, x, theta)"

    def __init__(self, feedback: Callable[..., Theta], initial: Controller | str = "learned"):
        super().__init__()
        hint = ": wrap a network of x with ncode.control.Feedback(trunk)"
        check_function("feedback", feedback, ("t", "x", "theta"), hint)
        if not isinstance(initial, Controller):
            initial = INITIAL[check_choice("initial control", initial, INITIAL)]()
        if not isinstance(initial.motion, Constant):
            raise InputError(f"initial must be a controller with a constant control; given {type(initial).__name__}")
        self.feedback, self.initial = feedback, initial

    def build(self, shapes: Shapes, defaults: Theta) -> None:
        if not shapes:
            raise InputError(
                "ClosedLoop has nothing to control: the dynamics take no control. Give them one (controlled=..., or"
                " control_shapes in dynamics of your own)"
            )
        self.initial.bind(shapes, defaults)
        if isinstance(self.feedback, Feedback):
            self.feedback.bind(shapes, defaults)

    def initial_theta(self, context: Tensor) -> Tensor | Theta:
        return self.initial.initial_theta(context)

    def speed(self, t: Tensor, x: Tensor, theta: dict[str, Tensor]) -> Theta:
        return self.feedback(t, x, theta)


class Feedback(Configurable):
    """g(t, x, theta) for `ClosedLoop`: a trunk with one linear head per control, made by the block.

    The heads start small and without a bias, so that at first the control hardly moves, as in a plain NODE.

    Args:
        trunk: A module that maps its input to (batch, width) features.
        sees: The input of the trunk: any of "x", "theta" and "t". x alone is passed as it is; otherwise all are
            flattened and concatenated in this order, theta in the order of `dynamics.control_shapes`.
        width: Number of features that the trunk returns. Default: that of the last linear layer in it.
        scale: The initial size of dtheta/dt, relative to that of a static weight.

    >>> import torch, ncode
    >>> trunk = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh())
    >>> loop = ncode.ClosedLoop(ncode.control.Feedback(trunk))
    >>> ncode.NCODE(ncode.dynamics.MLP(2, hidden=16), loop)(torch.zeros(5, 2)).shape
    torch.Size([5, 2])
    """

    def __init__(self, trunk: nn.Module, sees: tuple[str, ...] = ("x",), width: int | None = None, scale: float = 0.1):
        super().__init__()
        self.sees = tuple(check_choice("input of a feedback", name, INPUTS) for name in check_names("sees", sees))
        if not self.sees:
            raise InputError(f"sees must name at least one of {', '.join(INPUTS)}")
        self.width, self.scale = trunk_width(trunk, width), check_number("scale", scale, low=0.0)
        self.trunk = trunk
        self.heads = Heads(self.width, {}, self.scale)

    def bind(self, shapes: Shapes, defaults: Theta) -> None:
        """Make one head per control. Called by `ClosedLoop`."""
        if len(self.heads):
            raise InputError(
                f"this Feedback already controls {', '.join(self.heads)} of another block: give each block its own"
            )
        check_closed("Feedback", shapes, defaults)
        self.heads = Heads(self.width, defaults, self.scale)
        for name in defaults:
            nn.init.zeros_(self.heads[name].get_parameter("bias"))

    def forward(self, t: Tensor, x: Tensor, theta: Theta) -> dict[str, Tensor]:
        check_bound(self, len(self.heads) > 0)
        return self.heads(features_of("Feedback", self.trunk, self._input(t, x, theta), self.width))

    def _input(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        if self.sees == ("x",):
            return x
        inputs = {"x": [x], "theta": [theta[name] for name in self.heads], "t": [t]}
        return torch.cat([value.reshape(x.shape[0], -1) for name in self.sees for value in inputs[name]], 1)


class Drift(Configurable):
    """dtheta/dt = q(t, theta) for `ClosedLoop`: the control has an ODE of its own, independent of x.

    This is the coupled system of ANODEV2 (Zhang et al., 2019).

    Args:
        q: A function or module q(t, theta) that returns dtheta/dt. theta and the result are dicts by name of the
            control, each (batch, ...).

    >>> import torch, ncode
    >>> decay = ncode.control.Drift(lambda t, theta: {name: -value for name, value in theta.items()})
    >>> ncode.NCODE(ncode.dynamics.MLP(2), ncode.ClosedLoop(decay))(torch.zeros(5, 2)).shape
    torch.Size([5, 2])
    """

    def __init__(self, q: Callable[[Tensor, dict[str, Tensor]], Theta]):
        super().__init__()
        self.q: Callable[..., Any] = check_function("q", q, ("t", "theta"))

    def forward(self, t: Tensor, x: Tensor, theta: dict[str, Tensor]) -> Theta:
        return self.q(t, theta)
