"""Named tensors of which some are controlled and the others learned as usual."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from ..checks import check_choice
from ..errors import InputError
from .base import Shapes, Theta
from .initial import usual


class Weights(nn.Module):
    """The tensors that a field computes with: those in `controlled` are given to it, the others are its parameters."""

    def __init__(self, kind: str, shapes: Shapes, controlled: Iterable[str] | None):
        super().__init__()
        if isinstance(controlled, str):
            raise InputError(
                f"controlled must be a tuple of names; given the string {controlled!r}: use ({controlled!r},)"
            )
        names = tuple(shapes) if controlled is None else tuple(controlled)
        for name in names:
            check_choice(f"tensor of {kind} to control", name, shapes)
        if len(set(names)) < len(names):
            raise InputError(f"controlled names a tensor twice: {names}")
        self.control_shapes = {name: shape for name, shape in shapes.items() if name in names}
        start = usual(shapes)
        self.learned = nn.ParameterDict({name: nn.Parameter(start[name]) for name in shapes if name not in names})

    @property
    def controlled(self) -> tuple[str, ...]:
        """The names of those that are given."""
        return tuple(self.control_shapes)

    def forward(self, theta: Theta) -> dict[str, Tensor]:
        """All tensors: the learned ones without a batch dimension, the controlled ones as they are given."""
        given = {name: theta[name] for name in self.control_shapes}
        return {**dict(self.learned.items()), **given}
