"""Type aliases of the library, and shapes as text."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

Shape = tuple[int | None, ...]
"""The shape of one sample's tensor. None: any size."""

Shapes = Mapping[str, Shape]
"""The shape of each control, by name."""

Theta = Mapping[str, Tensor]
"""A control: tensors (batch, ...) by name."""


def format_shape(shape: Shape) -> str:
    """Return a shape as text.

    >>> format_shape((3, None))
    '(3, any)'
    """
    sizes = ["any" if size is None else str(size) for size in shape]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def format_shapes(shapes: Shapes) -> str:
    """Return named shapes as text.

    >>> format_shapes({"weight": (3, 2), "image": (1, None, None)})
    "'weight' (3, 2), 'image' (1, any, any)"
    """
    return ", ".join(f"{name!r} {format_shape(shape)}" for name, shape in shapes.items()) or "none"
