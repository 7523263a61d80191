"""Controls that do not depend on the data: learned constants, and zeros."""

from __future__ import annotations

from torch import Tensor, nn

from .._modules import Shapes, Theta, accept_old_names
from .base import Controller, State, check_bound, check_closed


class Static(Controller):
    """A learned constant, the same for every sample: the dynamics become a plain NODE.

    It has one parameter per control, which starts as a weight of its shape would. The parameter is never copied for
    the samples of a batch.

    >>> import ncode
    >>> node = ncode.NCODE(ncode.dynamics.MLP(2, hidden=16), ncode.Static())
    >>> [tuple(p.shape) for p in node.parameters()]
    [(16, 2), (16,), (2, 16), (2,)]
    """

    equation = "theta learned, the same for all samples"

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.ParameterDict()
        accept_old_names(self)

    def build(self, shapes: Shapes, defaults: Theta) -> None:
        """Make one parameter per control; none if the dynamics take no control."""
        if shapes:
            check_closed("Static", shapes, defaults)
        for name, value in defaults.items():
            self.theta[name] = nn.Parameter(value.clone())

    def initial_theta(self, context: Tensor) -> Theta:
        return dict(self.theta.items())

    def start(self, context: Tensor) -> State:
        """Return an empty state: the solver finds the parameters by itself."""
        check_bound(self, self.bound)
        return State({}, {})

    def control(self, t: Tensor, state: State) -> dict[str, Tensor]:
        """Return the parameters, or the control that was provided in their place."""
        return dict(state.fixed) or dict(self.theta.items())


class Zero(Controller):
    """theta = 0: an initial control for `ClosedLoop`.

    >>> import torch, ncode
    >>> block = ncode.NCODE(ncode.dynamics.Linear(2), ncode.control.Zero())
    >>> block(torch.ones(1, 2))
    tensor([[1., 1.]])
    """

    equation = "theta = 0"

    def build(self, shapes: Shapes, defaults: Theta) -> None:
        check_closed("Zero", shapes, defaults)

    def initial_theta(self, context: Tensor) -> Theta:
        batch = context.shape[0]
        return {name: context.new_zeros(batch, *(n or 0 for n in shape)) for name, shape in self.shapes.items()}
