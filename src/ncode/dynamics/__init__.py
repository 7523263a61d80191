"""Controlled vector fields f(t, x, theta): what a control drives."""

from .augmented import Augmented
from .base import Dynamics, Shape, Shapes, Theta, VectorField
from .conv_block import ConvBlock
from .function import Function
from .initial import usual
from .linear import Linear
from .mlp import MLP
from .recurrent import Recurrent
from .second_order import SecondOrder
from .sparse_linear import SparseLinear
from .structure import Product, Structure

__all__ = [
    "MLP",
    "Augmented",
    "ConvBlock",
    "Dynamics",
    "Function",
    "Linear",
    "Product",
    "Recurrent",
    "SecondOrder",
    "Shape",
    "Shapes",
    "SparseLinear",
    "Structure",
    "Theta",
    "VectorField",
    "usual",
]
