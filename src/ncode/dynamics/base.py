"""The interface of dynamics: a controlled vector field f(t, x, theta), its weights and its control."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._modules import Configurable, Shape, Shapes, Theta, accept_old_names, check_names, current_name
from ..errors import InputError, allocating, check_choice

if TYPE_CHECKING:  # shapes as jaxtyping writes them; tests/test_shapes.py checks them with its types
    from typing import Annotated as Float
    from typing import Annotated as Inexact

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu": torch.relu,
    "softplus": F.softplus,
    "silu": F.silu,
    "gelu": F.gelu,
    "elu": F.elu,
    "sin": torch.sin,
}


@dataclass(frozen=True, eq=False)
class Product:
    """The structure f(t, x, theta) = rho(gain W x) - leak x, where W is one of the controls.

    Closed forms are selected by it.

    Args:
        control: The name of the control.
        rho: The name of the activation.
        columns: None if the control is the matrix (m, m) itself. Otherwise W is sparse: the control (m, k) holds the k
            values of each row, and `columns` (m, k) their positions.
        gain, leak: A number or a tensor (). None: 1 and 0.
        blocks: A function of the control (..., *shape) that returns square blocks (..., n, b, b), if W is
            block-diagonal with these n blocks. Default: None, and W is what `control` and `columns` say.

    >>> import ncode
    >>> ncode.dynamics.Recurrent(8).structure.rho
    'tanh'
    """

    control: str
    rho: str = "identity"
    columns: Tensor | None = None
    gain: float | Tensor | None = None
    leak: float | Tensor | None = None
    blocks: Callable[[Tensor], Tensor] | None = None


Structure = Product | None


class Dynamics(Configurable, ABC):
    """A controlled vector field dx/dt = f(t, x, theta).

    Abstract. A subclass defines `forward`, and `control_shapes` if it takes a control. It may also set `state_shape`,
    to have the shape of x checked, and `shared_control`. For a plain function, `Function` is shorter.

    >>> import torch, ncode
    >>> class Attraction(ncode.dynamics.Dynamics):
    ...     control_shapes = {"goal": (2,)}
    ...     def forward(self, t, x, theta):
    ...         return theta["goal"] - x
    >>> ncode.NCODE(Attraction(), ncode.DataControl())(torch.ones(3, 2)).shape
    torch.Size([3, 2])
    """

    control_shapes: Mapping[str, tuple[int | None, ...]] = {}
    """The shape of one sample's tensor for each control that f takes. None: any size."""

    state_shape: Shape | None = None
    """The shape of one sample's state; None stands for any size, or for any shape."""

    shared_control: bool = False
    """Whether `forward` also takes a control without its batch dimension, if all samples share it."""

    @abstractmethod
    def forward(
        self, t: Float[Tensor, "batch"], x: Inexact[Tensor, "batch *state"], theta: Theta
    ) -> Inexact[Tensor, "batch *state"]:
        """Return dx/dt (batch, ...) at times t (batch,), with a control theta[name] of shape (batch, ...)."""

    def lift(self, x: Tensor) -> Tensor:
        """Return the state at t0, computed from what the block is given. Default: x itself."""
        return x

    @property
    def structure(self) -> Structure:
        """The form of f, for closed forms of the solution. Default: None, unknown."""
        return None


class Weights(nn.Module):
    """The weights of a vector field: those named in `controlled` are its control, the others are parameters."""

    def __init__(self, owner: str, shapes: Shapes, controlled: Iterable[str] | None):
        super().__init__()
        names = tuple(shapes)
        if controlled is not None:
            names = tuple(map(current_name, check_names("controlled", controlled)))
        for name in names:
            check_choice(f"weight of {owner} to control", name, shapes)
        if len(set(names)) < len(names):
            raise InputError(f"controlled names a weight twice: {names}")
        self.control_shapes = {name: shape for name, shape in shapes.items() if name in names}
        values = default_initial(shapes)
        # Optimisers store their state by position: this order, 3x3 kernels last, is that of checkpoints written before.
        learned = sorted((name for name in shapes if name not in names), key=lambda name: ("3x3" in name, name))
        self.learned = nn.ParameterDict([(name, nn.Parameter(values[name])) for name in learned])
        accept_old_names(self)

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
        with allocating(f"weights {name!r} of shape {tuple(sizes)}"):
            values[name] = torch.empty(sizes).uniform_(-bound, bound)
    return values


def matvec(w: Tensor, x: Tensor) -> Tensor:
    """Return W x for x (batch, n) and W (batch, m, n), or (m, n) if all samples share it."""
    if w.dim() == 2:
        return F.linear(x, w)
    if x.device.type == "cpu":
        # Measured: batched products with a single column are up to eight times slower here, most of all in backward.
        return (w * x[:, None]).sum(-1)
    return torch.bmm(w, x[..., None])[..., 0]


def dense_rows(values: Tensor, columns: Tensor) -> Tensor:
    """Return the matrices (..., m, m) of sparse rows: `values` (..., m, k), at these columns (m, k)."""
    full = values.new_zeros(*values.shape[:-1], len(columns))
    return full.scatter_add(-1, columns.expand_as(values), values)


def affine(w: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """Return W x + b, where W and b may each have a batch dimension or be shared."""
    if w.dim() == 2 and b.dim() == 1:
        return F.linear(x, w, b)
    return matvec(w, x) + b
