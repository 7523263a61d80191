"""Controlled vector fields f(t, x, theta)."""

from .._modules import Shape, Shapes, Theta
from .base import Dynamics, Product
from .blocks import BlockLinear, Skew
from .cde import CDE
from .conv_block import ConvBlock
from .linear import Linear, Recurrent, SparseLinear
from .mlp import MLP
from .wrappers import Augmented, Function, SecondOrder

__all__ = [
    "CDE",
    "MLP",
    "Augmented",
    "BlockLinear",
    "ConvBlock",
    "Dynamics",
    "Function",
    "Linear",
    "Product",
    "Recurrent",
    "SecondOrder",
    "Shape",
    "Shapes",
    "Skew",
    "SparseLinear",
    "Theta",
]
