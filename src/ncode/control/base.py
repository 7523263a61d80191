"""The interface of controllers: what sets the control at t0, and what drives it from there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from .._modules import Configurable, Shapes, Theta, format_shape
from ..errors import InputError, format_value
from ..paths import Path

if TYPE_CHECKING:  # shapes as jaxtyping writes them; tests/test_shapes.py checks them with its types
    from typing import Annotated as Float
    from typing import Annotated as Inexact
    from typing import Annotated as Shaped


@dataclass(frozen=True)
class Constant:
    """The control is constant in time."""


@dataclass(frozen=True)
class General:
    """The control changes in time, in no special form."""


@dataclass(frozen=True, eq=False)
class OuterProduct:
    """dtheta/dt = mu * l r^T - decay * theta for one control, from the same theta_0 (n, n) for all samples.

    l and r are vectors that follow from x and theta by one of the rules of `Plastic`.
    """

    control: str
    mu: Tensor
    theta_0: Tensor
    decay: Tensor | None = None
    rule: str = "hebb"


@dataclass(frozen=True, eq=False)
class FollowsPath:
    """theta(t) = control(u(t)) for an input path u and a function of u (n, channels)."""

    control: Callable[[Tensor], Theta]


Motion = Constant | General | OuterProduct | FollowsPath
"""How a control moves. Closed forms of the solution are selected by it."""


class State(NamedTuple):
    """What a controller keeps during one solve: tensors (batch, ...), and paths, by name of the control.

    >>> import torch, ncode
    >>> block = ncode.NCODE(ncode.dynamics.Linear(2), ncode.OpenLoop(torch.nn.Linear(2, 4)))
    >>> block.controller.start(torch.zeros(5, 2)).fixed["weight"].shape
    torch.Size([5, 2, 2])
    """

    fixed: Theta  # constant during the solve
    driven: Theta  # integrated together with x
    inputs: Mapping[str, Path | None] = {}  # paths; the block fills in its own for None


class Controller(Configurable, ABC):
    """Sets the control of a dynamics: theta(t0), and dtheta/dt if it changes in time.

    Abstract. A subclass defines `initial_theta`; and `speed`, if the control is to be integrated together with x;
    `build`, if it needs weights that depend on the shapes of the control; `equation`, which `print(block)` shows.

    The block calls `bind` once, then in each solve `start` (or `start_from`), `control` and `control_speed`. Only
    controllers whose control is more than the integral of a speed, such as `TimeVarying`, override those.

    >>> import torch, ncode
    >>> class DecayingMean(ncode.control.Controller):
    ...     def initial_theta(self, context):
    ...         return context.mean(0).expand_as(context)
    ...     def speed(self, t, x, theta):  # without it, the control is constant
    ...         return {"goal": -theta["goal"]}
    >>> f = ncode.dynamics.Function(lambda t, x, theta: theta["goal"] - x, {"goal": (1,)})
    >>> block = ncode.NCODE(f, DecayingMean())
    >>> block.solve(torch.tensor([[0.0], [4.0]])).theta["goal"].round(decimals=2)  # 2 exp(-1)
    tensor([[0.7400],
            [0.7400]])
    """

    equation: str = "theta set by the controller"
    shapes: Mapping[str, tuple[int | None, ...]] = {}  # of the control, known once the controller is part of a block
    bound: bool = False

    @abstractmethod
    def initial_theta(self, context: Shaped[Tensor, "batch ..."]) -> Tensor | Theta:
        """Return the control at t0.

        Args:
            context: What the block was given, or the `context` of the solve.

        Returns:
            A dict of tensors by name of the control, or one tensor if there is one control. Each is (batch, ...), or
            without the batch dimension if all samples share it.
        """

    def speed(
        self,
        t: Float[Tensor, "batch"],
        x: Inexact[Tensor, "batch *state"],
        theta: dict[str, Inexact[Tensor, "batch ..."]],
    ) -> Inexact[Tensor, "batch ..."] | Mapping[str, Inexact[Tensor, "batch ..."]]:
        """Return dtheta/dt at times t, in the form of `initial_theta` with a batch dimension.

        `theta` is always a dict by name of the control.

        Override it to make the control change in time.
        """
        return {}

    def build(self, shapes: Shapes, defaults: Theta) -> None:
        """Make the weights that are needed to control these shapes.

        `defaults` holds the initial value of a static weight for each control, except for those with an open shape.
        """

    @property
    def motion(self) -> Motion:
        """How the control moves, for closed forms of the solution."""
        return Constant() if type(self).speed is Controller.speed else General()

    def bind(self, shapes: Shapes, defaults: Theta) -> None:
        """Make this the controller of a block. Called once, by the block."""
        if self.bound:
            raise InputError(
                f"this {type(self).__name__} already controls {', '.join(self.shapes) or 'another block'}: give each"
                " block a controller of its own"
            )
        for name in shapes:
            if not name.isidentifier():
                raise InputError(
                    f"the control name {name!r} must be an identifier, since it becomes part of state_dict keys: use"
                    " letters, digits and underscores"
                )
        self.build(shapes, defaults)
        self.shapes, self.bound = dict(shapes), True

    def start(self, context: Tensor) -> State:
        """Return the state at t0."""
        check_bound(self, self.bound)
        theta = by_name(self.initial_theta(context), self.shapes, f"{type(self).__name__}.initial_theta")
        return self.start_from(expand_shared(theta, self.shapes, context.shape[0]))

    def start_from(self, theta: Theta) -> State:
        """Return the state for a control that the caller of the block provides, in place of `start`."""
        return State(theta, {}) if isinstance(self.motion, Constant) else State({}, theta)

    def control(self, t: Tensor, state: State) -> dict[str, Tensor]:
        """Return the control at t (batch,), each (batch, ...) or without a batch dimension if all samples share it."""
        return {**state.fixed, **state.driven}

    def control_speed(self, t: Tensor, x: Tensor, state: State) -> dict[str, Tensor]:
        """Return dtheta/dt at t (batch,): of all that is driven, and of what is otherwise not constant."""
        if not state.driven:
            return {}
        return by_name(self.speed(t, x, dict(state.driven)), state.driven, "the function for dtheta/dt")

    def jump_times(self, state: State) -> Tensor | None:
        """Return the times (batch, n) at which the control jumps; adaptive steps end there. Default: None."""
        return None

    def driven_speed(self, t: Tensor, x: Tensor, state: State) -> dict[str, Tensor]:
        """Return dtheta/dt at t (batch,) of what is driven, and so integrated by the solver."""
        return self.control_speed(t, x, state) if state.driven else {}


def by_name(value: Tensor | Theta, names: Iterable[str], source: str) -> dict[str, Tensor]:
    """Return one tensor per name, from a dict of them or, for one name, from a tensor."""
    names = tuple(names)
    if isinstance(value, Tensor) and len(names) == 1:
        return {names[0]: value}
    if not isinstance(value, Mapping) or set(value) != set(names):
        shown = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
        raise InputError(f"{source} returned {shown}; expected a dict with a tensor for each control: {sorted(names)}")
    for name in names:
        if not isinstance(value[name], Tensor):
            raise InputError(f"{source} returned {format_value(value[name])} for {name!r}; expected a tensor")
    return {name: value[name] for name in names}


def expand_shared(theta: Theta, shapes: Shapes, batch: int) -> dict[str, Tensor]:
    """Return the control with a batch dimension, as a view where all samples share a tensor."""
    return {
        name: value.expand(batch, *value.shape) if value.dim() == len(shapes[name]) else value
        for name, value in theta.items()
    }


def check_bound(module: Any, bound: bool) -> None:
    if not bound:
        raise InputError(
            f"this {type(module).__name__} is not part of a block yet: pass it to ncode.NCODE(dynamics, controller)"
        )


def check_closed(owner: str, shapes: Shapes, defaults: Theta) -> None:
    """Refuse an open shape, since no weight can be sized by it, and dynamics without a control."""
    for name, shape in shapes.items():
        if name not in defaults:
            raise InputError(
                f"{owner} cannot set control {name!r}, whose shape {format_shape(shape)} is left open: set it by"
                " DataControl, and the others by Parts"
            )
    if not shapes:
        raise InputError(
            f"{owner} has nothing to control: the dynamics take no control. Give them one (controlled=..., context=...,"
            " or control_shapes in dynamics of your own), or use Static()"
        )
