"""Named weights of a vector field, some of which are its control."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .._modules import Shapes, Theta, accept_old_names, current_name
from ..checks import check_choice
from ..errors import InputError


class Weights(nn.Module):
    """The weights of a vector field: those named in `controlled` are its control, the others are parameters."""

    def __init__(self, owner: str, shapes: Shapes, controlled: Iterable[str] | None):
        super().__init__()
        if isinstance(controlled, str):
            raise InputError(
                f"controlled must be a tuple of names; given the string {controlled!r}: use ({controlled!r},)"
            )
        names = tuple(shapes) if controlled is None else tuple(map(current_name, controlled))
        for name in names:
            check_choice(f"weight of {owner} to control", name, shapes)
        if len(set(names)) < len(names):
            raise InputError(f"controlled names a weight twice: {names}")
        self.control_shapes = {name: shape for name, shape in shapes.items() if name in names}
        values = default_initial(shapes)
        self.learned = nn.ParameterDict({name: nn.Parameter(values[name]) for name in shapes if name not in names})
        accept_old_names(self)

    @property
    def controlled(self) -> tuple[str, ...]:
        """The names of the weights that are the control."""
        return tuple(self.control_shapes)

    def forward(self, theta: Theta) -> dict[str, Tensor]:
        """Return all weights: the parameters without a batch dimension, the control as it is given."""
        return {**dict(self.learned.items()), **{name: theta[name] for name in self.control_shapes}}


def default_initial(shapes: Shapes) -> dict[str, Tensor]:
    """Return random initial weights, distributed as those of `torch.nn.Linear` and `torch.nn.Conv2d`.

    They are uniform within 1 / sqrt(fan-in), where the fan-in is the number of elements per row. A vector that follows
    a tensor with as many rows is its bias and has the same bound. A shape with an open size is left out.

    >>> values = default_initial({"weight": (100, 4), "bias": (100,), "image": (3, None, None)})
    >>> sorted(values), bool(values["bias"].abs().max() <= 0.5)
    (['bias', 'weight'], True)
    """
    values: dict[str, Tensor] = {}
    rows, bound = None, 1.0
    for name, shape in shapes.items():
        sizes = [size for size in shape if size is not None]
        if len(sizes) < len(shape):
            continue
        if len(sizes) != 1 or sizes[0] != rows:
            rows = sizes[0] if len(sizes) > 1 else None
            bound = 1.0 / math.sqrt(max(math.prod(sizes[1:] or sizes), 1))
        values[name] = torch.empty(sizes).uniform_(-bound, bound)
    return values
