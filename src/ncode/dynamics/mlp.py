"""A multilayer perceptron whose weights may be the control."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from .._modules import Shape, Theta
from ..errors import check_choice, check_count, check_flag
from .base import ACTIVATIONS, Dynamics, Weights, affine


class MLP(Dynamics):
    """dx/dt = a multilayer perceptron of x, with some or all of its weights as the control.

    Args:
        dim: Elements of x, (batch, dim).
        hidden: Units of the hidden layer, or of each of them.
        activation: The non-linearity between layers.
        time: Whether t is an input of the first layer.
        controlled: The weights that are the control, out of "weight_1", "bias_1", "weight_2", ... The others are
            parameters. Default: all of them; () for none, a plain NODE with weights of its own.
        context: Elements of a control called "context", an additional input of the first layer: x(0) itself with
            `DataControl`, or a code that gamma computes from it.
        out: Elements of the result. Default: dim. Another number is for an acceleration in `SecondOrder`.

    >>> import ncode
    >>> dict(ncode.dynamics.MLP(2, hidden=16, controlled=("weight_2", "bias_2")).control_shapes)
    {'weight_2': (2, 16), 'bias_2': (2,)}
    """

    shared_control = True

    def __init__(
        self,
        dim: int,
        hidden: int | Sequence[int] = 16,
        activation: str = "tanh",
        *,
        time: bool = False,
        controlled: Sequence[str] | None = None,
        context: int = 0,
        out: int | None = None,
    ):
        super().__init__()
        self.dim, self.out = check_count("dim", dim), check_count("out", dim if out is None else out)
        layers = hidden if isinstance(hidden, Sequence) and not isinstance(hidden, (str, bytes)) else [hidden]
        self.hidden = tuple(check_count("hidden", units) for units in layers)
        self.activation = check_choice("activation", activation, ACTIVATIONS)
        self.time, self.context = check_flag("time", time), check_count("context", context, low=0)
        sizes = (self.dim + self.context + self.time, *self.hidden, self.out)
        shapes: dict[str, Shape] = {}
        for layer, (inputs, outputs) in enumerate(pairwise(sizes), 1):
            shapes |= {f"weight_{layer}": (outputs, inputs), f"bias_{layer}": (outputs,)}
        self.weights = Weights("MLP", shapes, controlled)
        self.controlled = tuple(self.weights.control_shapes)
        seen: dict[str, Shape] = {"context": (self.context,)} if self.context else {}
        self.control_shapes = {**self.weights.control_shapes, **seen}
        self.state_shape = (self.dim,)

    def forward(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        rho, weights = ACTIVATIONS[self.activation], self.weights(theta)
        inputs = [x]
        if self.context:
            inputs.append(theta["context"].expand(x.shape[0], -1))
        if self.time:
            inputs.append(t[:, None])
        y = torch.cat(inputs, 1) if len(inputs) > 1 else x
        for layer in range(1, len(self.hidden) + 2):
            if layer > 1:
                y = rho(y)
            y = affine(weights[f"weight_{layer}"], weights[f"bias_{layer}"], y)
        return y
