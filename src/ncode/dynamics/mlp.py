"""A perceptron whose weights may be the control."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..checks import check_choice, check_count
from .activations import ACTIVATIONS
from .base import Shape, Shapes, Theta, VectorField
from .product import affine
from .weights import Weights


class MLP(VectorField):
    """dx/dt = a perceptron of x, with some or all of its weights as the control.

    Args:
        dim: Elements of x, (batch, dim).
        hidden: Units of the hidden layer, or of each of them.
        activation: The non-linearity between layers.
        time: Whether the first layer sees t.
        controlled: Which tensors are the control: names of "weight 1", "bias 1", "weight 2", ... The others are learned
            as usual. All, unless told; () for none, a plain NODE with weights of its own.
        context: Elements of a control called "context" that the first layer sees beside x: x(0) itself with
            `DataControl`, or a code that gamma makes of it.
        out: Elements of the result, where they are not dim, for an acceleration in `SecondOrder`.

    >>> import ncode
    >>> dict(ncode.dynamics.MLP(2, hidden=16, controlled=("weight 2", "bias 2")).control_shapes)
    {'weight 2': (2, 16), 'bias 2': (2,)}
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
        self.hidden = tuple(
            check_count("hidden", units) for units in (hidden if isinstance(hidden, Sequence) else [hidden])
        )
        self.activation = check_choice("activation", activation, ACTIVATIONS)
        self.time, self.context = bool(time), check_count("context", context, low=0)
        sizes = (self.dim + self.context + self.time, *self.hidden, self.out)
        shapes: dict[str, Shape] = {}
        for layer, (wide, high) in enumerate(pairwise(sizes), 1):
            shapes |= {f"weight {layer}": (high, wide), f"bias {layer}": (high,)}
        self.weights = Weights("MLP", shapes, controlled)

    @property
    def control_shapes(self) -> Shapes:
        """The controlled tensors, and the context where there is one."""
        context: dict[str, Shape] = {"context": (self.context,)} if self.context else {}
        return {**self.weights.control_shapes, **context}

    @property
    def state_shape(self) -> Shape:
        """(dim,)."""
        return (self.dim,)

    def forward(self, t: Tensor, x: Tensor, theta: Theta) -> Tensor:
        """The perceptron of x."""
        rho, weights = ACTIVATIONS[self.activation], self.weights(theta)
        seen = [x]
        if self.context:
            seen.append(theta["context"].expand(x.shape[0], -1))
        if self.time:
            seen.append(t[:, None])
        y = torch.cat(seen, 1) if len(seen) > 1 else x
        for layer in range(1, len(self.hidden) + 2):
            if layer > 1:
                y = rho(y)
            y = affine(weights[f"weight {layer}"], weights[f"bias {layer}"], y)
        return y

    def config(self) -> dict[str, Any]:
        """All arguments."""
        return {
            "dim": self.dim,
            "hidden": self.hidden,
            "activation": self.activation,
            "time": self.time,
            "controlled": self.weights.controlled,
            "context": self.context,
            "out": self.out,
        }
