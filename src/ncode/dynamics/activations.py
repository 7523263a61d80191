"""Element-wise functions by name, so that a configuration can be written down."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

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
