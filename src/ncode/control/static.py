"""One learned control for all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from .base import Shapes, State, StillController
from .bound import check_unbound
from .heads import check_closed


class Static(StillController):
    """A learned constant, the same for every sample: the dynamics become a plain NODE.

    One tensor for each control, starting where a static weight would. It is never copied for the samples of a batch.

    >>> import ncode
    >>> node = ncode.NCODE(ncode.dynamics.MLP(2, hidden=16), ncode.Static())
    >>> [tuple(p.shape) for p in node.parameters()]
    [(16, 2), (16,), (2, 16), (2,)]
    """

    equation = "theta learned, the same for all samples"

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.ParameterDict()

    def bind(self, shapes: Shapes, initial: Mapping[str, Tensor]) -> None:
        """One parameter a control; none where nothing is asked for."""
        check_unbound(self, self.theta)
        if shapes:
            check_closed("Static", shapes, initial)
        for name, start in initial.items():
            self.theta[name] = nn.Parameter(start.clone())

    def start(self, context: Tensor) -> State:
        """Nothing: the control is a parameter."""
        return State({}, {})

    def control(self, t: Tensor, state: State) -> dict[str, Tensor]:
        """The parameters, or what was given in their place."""
        return dict(state.fixed) or dict(self.theta.items())

    def config(self) -> dict[str, Any]:
        """No arguments."""
        return {}
