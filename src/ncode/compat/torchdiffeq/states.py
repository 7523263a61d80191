"""States: a tensor is solved as it is, a tuple of tensors as one flat tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError, check_tensor
from ...ode.system import version_of
from .runge_kutta import HALF, Field

Leaves = tuple[Tensor, ...]
State = Tensor | Leaves
Func = Callable[[Any, Any], Any]
Norm = Callable[[Any], Any]

CHANGES_ARGUMENT = (
    "func changed t or y in place: return a new tensor instead (nn.ReLU() for nn.ReLU(inplace=True), y + 1 for"
    " y.add_(1)), or work on y.clone()"
)
REUSES_OUTPUT = (
    "func wrote into a tensor that it had returned before (out=..., or a buffer that is filled anew): a step needs the"
    " slopes of several evaluations, so return a new tensor each time"
)


class Layout:
    """How the user's state lies in one tensor, which has 32 bits where the user's has 16."""

    def __init__(self, shapes: Sequence[torch.Size] | None, narrow: torch.dtype | None = None):
        self.shapes = shapes  # None if the state is a tensor
        self.sizes = [shape.numel() for shape in shapes or ()]
        self.narrow = narrow  # the user's dtype of 16 bits, or None

    def show(self, y: Tensor) -> Any:
        """The user's state in the user's dtype."""
        return self.unflatten(y if self.narrow is None else y.to(self.narrow))

    def unflatten(self, y: Tensor) -> Any:
        """The user's state, from a tensor (..., N)."""
        if self.shapes is None:
            return y
        parts = y.split(self.sizes, -1)
        return tuple(part.reshape((*y.shape[:-1], *shape)) for part, shape in zip(parts, self.shapes, strict=True))

    def rows(self, y: Tensor) -> Any:
        """The user's states, from a tensor (T, ...): one tensor per leaf, each a view of its own."""
        y = y if self.narrow is None else y.to(self.narrow)
        if self.shapes is None:
            return y
        begin, leaves = 0, []
        for size, shape in zip(self.sizes, self.shapes, strict=True):
            leaves.append(y[..., begin : begin + size].view((len(y), *shape)))
            begin += size
        return tuple(leaves)


def read_state(y0: Any) -> tuple[Layout, Tensor]:
    """The layout of a state, and the state as one tensor; as in torchdiffeq, tensors of a tuple are promoted.

    A state of 16 bits becomes float32: sums of many small steps are lost in 16 bits.
    """
    if not isinstance(y0, (Tensor, tuple)):
        raise InputError(f"y0 must be a tensor or a tuple of tensors; given {type(y0).__name__}")
    leaves = (y0,) if isinstance(y0, Tensor) else y0
    if not leaves:
        raise InputError("y0 is an empty tuple: there is nothing to solve")
    for leaf in leaves:
        if not isinstance(leaf, Tensor):
            raise InputError(f"y0 must be a tensor or a tuple of tensors; given a tuple with {type(leaf).__name__}")
        if leaf.device != leaves[0].device:
            raise InputError(f"the tensors of y0 must be on one device; given {leaves[0].device} and {leaf.device}")
    for i, leaf in enumerate(leaves):
        check_tensor("y0" if isinstance(y0, Tensor) else f"y0[{i}]", leaf)
    dtype = reduce(torch.promote_types, (leaf.dtype for leaf in leaves))
    if not (dtype.is_floating_point or dtype.is_complex):
        raise InputError(f"y0 must be floating or complex; given {dtype}: use y0.float()")
    if not sum(leaf.numel() for leaf in leaves):
        raise InputError(f"y0 has no elements; given shape {tuple(leaves[0].shape)}")
    narrow = dtype if dtype in HALF else None
    y = y0 if isinstance(y0, Tensor) else torch.cat([leaf.reshape(-1) for leaf in leaves])
    shapes = None if isinstance(y0, Tensor) else [leaf.shape for leaf in leaves]
    return Layout(shapes, narrow), y if narrow is None else y.float()


def make_field(func: Func, layout: Layout, one_stage: bool = False) -> Field:
    """func as a function of (t, one tensor), whose results are checked, and that it leaves its arguments as they are.

    `one_stage`: whether a step needs one slope, so that func may write the next one over it.
    """
    field, narrow = _make_checked(func, layout, one_stage), layout.narrow
    if narrow is None:
        return field
    return lambda t, y: field(t.to(narrow), y.to(narrow)).to(y.dtype)


def _make_checked(func: Func, layout: Layout, one_stage: bool) -> Field:
    slopes_of = _make_slopes(func, layout)
    last: list[tuple[Tensor, int]] = []  # what func returned before, with its version

    def field(t: Tensor, y: Tensor) -> Tensor:
        kept = t, y
        if not last:  # func may work in place: not on the caller's y0
            t, y = t.clone(), y.clone()
        before = version_of(t) + version_of(y)
        slope = _called(slopes_of, t, y)
        if version_of(t) + version_of(y) != before:
            raise InputError(CHANGES_ARGUMENT)
        if not last and y.is_inference() and not all(map(torch.equal, kept, (t, y))):  # such tensors have no versions
            raise InputError(CHANGES_ARGUMENT)
        if last and not one_stage and version_of(last[0][0]) != last[0][1]:
            raise InputError(REUSES_OUTPUT)
        last[:] = [(slope, version_of(slope))]
        return slope

    return field


def _called(slopes_of: Field, t: Tensor, y: Tensor) -> Tensor:
    try:
        return slopes_of(t, y)
    except RuntimeError as error:
        if "in-place operation" not in str(error):
            raise
        raise InputError(CHANGES_ARGUMENT) from error


def _make_slopes(func: Func, layout: Layout) -> Field:
    """func as a function of (t, one tensor), whose results are checked."""
    if layout.shapes is None:

        def of_tensor(t: Tensor, y: Tensor) -> Tensor:
            slope = func(t, y)
            if isinstance(slope, Tensor) and _is_like(slope, y):
                return slope
            return _fit(slope, y.shape, y)

        return of_tensor

    shapes = layout.shapes

    def of_tuple(t: Tensor, y: Tensor) -> Tensor:
        slopes = func(t, layout.unflatten(y))
        if not isinstance(slopes, (tuple, list)):
            raise InputError(f"func must return a tuple, as y0 is one; returned {type(slopes).__name__}")
        if len(slopes) != len(shapes):
            raise InputError(f"func returned {len(slopes)} tensors for a state of {len(shapes)}")
        return torch.cat([_fit(slope, shape, y).reshape(-1) for slope, shape in zip(slopes, shapes, strict=True)])

    return of_tuple


def _is_like(slope: Tensor, y: Tensor) -> bool:
    if slope.is_nested or slope.shape != y.shape:
        return False
    return slope.dtype is y.dtype and slope.layout is y.layout and slope.device == y.device


def _fit(slope: Any, shape: torch.Size, y: Tensor) -> Tensor:
    """A slope in the state's shape, dtype and layout: func may compute under autocast, or with sparse matrices."""
    if not isinstance(slope, Tensor):
        raise InputError(f"func must return a tensor for each one of the state; returned {type(slope).__name__}")
    if not slope.is_nested and slope.layout != torch.strided:
        slope = slope.to_dense()
    check_tensor("what func returned", slope)
    if slope.device != y.device and slope.dim():
        raise InputError(f"func returned a tensor on {slope.device}; expected {y.device}, where y0 is")
    if slope.shape != shape:
        # torchdiffeq flattens tuples, so that code for it may add or lack dimensions of size 1.
        if [size for size in slope.shape if size != 1] != [size for size in shape if size != 1]:
            raise InputError(f"func returned shape {tuple(slope.shape)}; expected that of the state, {tuple(shape)}")
        slope = slope.reshape(shape)
    if slope.is_complex() and not y.is_complex():
        raise InputError(f"func returned {slope.dtype} for a state of {y.dtype}: make y0 complex")
    return slope.to(y)


def rms(x: Tensor) -> Tensor:
    """The root mean square."""
    return torch.linalg.vector_norm(x) / max(x.numel(), 1) ** 0.5


def make_norm(norm: Norm | None, layout: Layout) -> Norm:
    """A norm of one tensor. Default: the root mean square, the largest one of a tuple's tensors."""
    if layout.shapes is None:
        return norm or rms
    if norm is not None:
        return lambda y: norm(layout.unflatten(y))
    sizes = [size for size in layout.sizes if size]
    return lambda y: torch.stack([rms(part) for part in y.split(sizes)]).max()
