"""Controls that an input path sets: theta(t) = map(u(t))."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .._modules import Shapes, Theta
from ..errors import InputError, check_flag, check_function
from ..paths import Path
from .base import Controller, FollowsPath, General, Motion, State, by_name, check_bound


class InputControl(Controller):
    """theta(t) = map(u(t)): an input, given as a path through data, sets the control during the solve.

    theta(t) is evaluated where it is needed, never integrated. The path travels with the samples through the solve, and
    gradients reach its values and knots.

    A block stops at its t1, 1 by default, also where the path goes on; before its first knot and behind its last one u
    is held. `block.solve(x, path=path, t0=path.start, t1=path.end)` follows each path to its end.

    Args:
        map: A function or module of u (batch, channels) that returns the control: a tensor if there is one, otherwise
            a dict by name, each (batch, ...). A tensor with the right number of elements gets the shape of the control.
            Default: u itself.
        path: u, of `ncode.paths`, with one row per sample or one that all share. It is not saved with the block.
            Default: each call of the block brings its own, `block(x, path=path)`.
        derivative: Use du/dt in place of u: what drives a `ncode.dynamics.CDE`. Not of a `constant` path, whose du/dt
            is 0.
        stop_at_bends: Adaptive steps also end at knots where the control bends without a jump. Default: True, since
            steps across bends miss their tolerance, by a factor of a thousand for rough series. False is faster for
            smooth series with many knots.

    >>> import torch, ncode
    >>> f = ncode.dynamics.Function(lambda t, x, theta: theta - x, (1,))
    >>> block = ncode.NCODE(f, ncode.InputControl(), t1=3.0)
    >>> path = ncode.paths.linear(torch.randn(5, 4, 1))
    >>> block(torch.zeros(5, 1), path=path).shape
    torch.Size([5, 1])
    """

    def __init__(
        self,
        map: Callable[..., Any] | None = None,
        path: Path | None = None,
        derivative: bool = False,
        stop_at_bends: bool = True,
    ):
        super().__init__()
        self.map = None if map is None else check_function("map", map, ("u",))
        self.derivative = check_flag("derivative", derivative)
        self.stop_at_bends = check_flag("stop_at_bends", stop_at_bends)
        if path is not None and not isinstance(path, Path):
            raise InputError(f"path must be one of ncode.paths, such as linear(values); given {type(path).__name__}")
        # Buffers move with the block. They are data and not weights, so they are not saved.
        for name in Path._fields:
            self.register_buffer(name, None if path is None else getattr(path, name), persistent=False)

    @property
    def path(self) -> Path | None:
        """The path that all solves use, if there is one."""
        leaves = [getattr(self, name) for name in Path._fields]
        return None if leaves[0] is None else Path(*leaves)

    @property
    def equation(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        u = "du/dt" if self.derivative else "u(t)"
        return f"theta = {u}" if self.map is None else f"theta = map({u})"

    def build(self, shapes: Shapes, defaults: Theta) -> None:
        if not shapes:
            raise InputError("InputControl has nothing to control: the dynamics take no control")

    def initial_theta(self, context: Tensor) -> Theta:
        """Return the control at t = 0, for a path that was given with this controller."""
        return self.control(context.new_zeros(context.shape[0]), self.start(context))

    def start(self, context: Tensor) -> State:
        check_bound(self, self.bound)
        path = self.path
        return State({}, {}, {next(iter(self.shapes)): None if path is None else path.expand(context.shape[0])})

    def start_from(self, theta: Theta) -> State:
        raise InputError("InputControl makes the control a function of its path: it cannot start from a given theta")

    def control(self, t: Tensor, state: State) -> dict[str, Tensor]:
        (path,) = state.inputs.values()
        if path is None:
            raise InputError("InputControl has no path: use InputControl(map, path), or block(x, path=...)")
        if self.derivative:
            path.check_moves()
        return self.control_by(path.derivative(t) if self.derivative else path.evaluate(t))

    def control_by(self, u: Tensor) -> dict[str, Tensor]:
        """Return the control that an input u (batch, channels) sets."""
        try:
            value = u if self.map is None else self.map(u)
        except RuntimeError as error:
            if "shapes cannot be multiplied" not in str(error):
                raise
            raise InputError(
                f"the map of InputControl was given u of shape {tuple(u.shape)}, one column per channel of the path,"
                f" and failed ({error}): give it {u.shape[1]} inputs, as in nn.Linear({u.shape[1]}, ...)"
            ) from error
        theta = by_name(value, self.shapes, "the map of InputControl")
        for name, value in theta.items():
            if value.dim() == 0 or len(value) != len(u):
                raise InputError(
                    f"the map of InputControl returned {tuple(value.shape)} for {name!r}; expected ({len(u)}, ...), one"
                    " entry per sample"
                )
        return {name: self._reshaped(name, value) for name, value in theta.items()}

    def control_speed(self, t: Tensor, x: Tensor, state: State) -> dict[str, Tensor]:
        names = tuple(self.shapes)

        def control(at: Tensor) -> tuple[Tensor, ...]:
            theta = self.control(at, state)
            return tuple(theta[name] for name in names)

        ones, graph = torch.ones_like(t), torch.is_grad_enabled()
        _, speeds = torch.autograd.functional.jvp(control, t, ones, create_graph=graph)
        return dict(zip(names, speeds, strict=True))

    def jump_times(self, state: State) -> Tensor | None:
        """Return the knots, where the control jumps (constant u, or du/dt of a linear one) or bends."""
        (path,) = state.inputs.values()
        if path is None:
            return None
        return path.knots if self.stop_at_bends or path.degree == int(self.derivative) else None

    @property
    def motion(self) -> Motion:
        return General() if self.derivative else FollowsPath(self.control_by)

    def config(self) -> dict[str, Any]:
        return {"map": self.map, "path": None, "derivative": self.derivative, "stop_at_bends": self.stop_at_bends}

    def extra_repr(self) -> str:
        path = self.path
        return f"derivative={self.derivative}" + ("" if path is None else f", path={path!r}")

    def _reshaped(self, name: str, value: Tensor) -> Tensor:
        """The value in the shape of its control, if it has as many elements."""
        shape = [size for size in self.shapes[name] if size is not None]
        fits = len(shape) == len(self.shapes[name]) and value[0].numel() == torch.Size(shape).numel()
        return value.reshape(-1, *shape) if fits else value
