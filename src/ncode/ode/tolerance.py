"""Tolerances, and errors measured against them: a step is good if its error is at most its tolerance.

The error of an element of size s may be atol + rtol * s. Both are numbers, or tensors that broadcast against x: per
component, per sample, or both. Then they are inputs of the loop with one row per sample, as everything that is dropped
or reordered with the samples. Theta and the cost (and the adjoint, backward in time) use the smallest positive value
that x has in a sample: they are never less exact than x.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._torch_private import is_mapped, is_symbolic, pytree
from ..errors import InputError, check_number, check_tensor, format_value
from .system import RightHandSide, State, expand_like

Value = float | Tensor


class Tolerance(NamedTuple):
    """Tolerances of the leaves of a state: numbers, or tensors with one row per sample."""

    rtol: tuple[Value, ...]  # of the leaves of x, each broadcasting against the leaf
    atol: tuple[Value, ...]
    others: tuple[Value, Value]  # rtol and atol of all other leaves: numbers, or (batch,)

    def ratio(self, system: RightHandSide, z: State, z1: State, errors: Sequence[State]) -> Tensor:
        """(batch,): the largest of the parts' ratios, each a root mean square over the part's elements."""
        scales = self.scales([torch.maximum(a.abs(), b.abs()) for a, b in zip(z, z1, strict=True)])
        ratio = largest_norm(system, errors[0], scales)
        for low in errors[1:]:
            # Hairer's rule for DOP853: the low-order estimate tells how much smaller than the high one the error is.
            other = largest_norm(system, low, scales)
            combined = (ratio * ratio + 0.01 * other * other).sqrt()
            ratio = ratio * ratio / combined.clamp_min(torch.finfo(ratio.dtype).tiny)
        return ratio

    def scales(self, sizes: Sequence[Tensor]) -> list[Tensor]:
        """The errors that are allowed for leaves of these sizes."""
        own = list(zip(self.rtol, self.atol, strict=True))
        rest = sizes[len(own) :]
        pairs = [*own, *(tuple(_like(value, size) for value in self.others) for size in rest)]
        return [size * rtol + _positive(atol, size) for size, (rtol, atol) in zip(sizes, pairs, strict=True)]


def _like(value: Value, size: Tensor) -> Value:
    return expand_like(value, (size,))[0] if isinstance(value, Tensor) else value


def _positive(atol: Value, size: Tensor) -> Value:
    tiny = torch.finfo(size.dtype).tiny
    return atol.clamp_min(tiny) if isinstance(atol, Tensor) else max(atol, tiny)


def check_tolerance(name: str, value: Any) -> Any:
    """A tolerance as a number, a tensor, or a tuple, list or dict of these.

    A list may be nested as x0 is, or be a tensor: x0 tells which.
    """
    try:
        return _check_nested(name, value)
    except RecursionError:
        raise InputError(f"{name} is nested too deeply: nest it as x0 is, or give one number") from None


def _check_nested(name: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _check_nested(f"{name}[{key!r}]", item) for key, item in value.items()}
    if isinstance(value, list):
        return [_check_nested(f"{name}[{i}]", item) for i, item in enumerate(value)]
    if isinstance(value, tuple):
        items = [_check_nested(f"{name}[{i}]", item) for i, item in enumerate(value)]
        return tuple(items) if type(value) is tuple else type(value)(*items)
    if not isinstance(value, Tensor):
        return check_number(name, value, low=0.0)
    tensor = check_tensor(name, value).detach()
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise InputError(f"{name} must be real; given {tensor.dtype}")
    if is_mapped(tensor):
        raise InputError(
            f"{name} is mapped by torch.func.vmap: solve is batched already, so give it one row per sample"
        )
    if not is_symbolic() and not bool(((tensor >= 0) & tensor.isfinite()).all()):
        raise InputError(f"{name} must be finite and at least 0; given {format_value(tensor.tolist())}")
    return tensor


def smallest_positive(value: Any) -> float:
    """The smallest positive tolerance of all samples and components, 0 if there is none."""
    if isinstance(value, (tuple, list, dict)):
        found = [smallest_positive(leaf) for leaf in pytree.tree_leaves(value)]
        return min((leaf for leaf in found if leaf > 0), default=0.0)
    if not isinstance(value, Tensor):
        return float(value)
    positive = value[value > 0]
    return float(positive.min()) if len(positive) else 0.0


def make_tolerance(rtol: Any, atol: Any, x: State, spec: pytree.TreeSpec | None = None) -> Tolerance:
    """The tolerances of a solve that starts from the leaves x, which nest as `spec` says."""
    leaves = zip(x, _leaves("rtol", rtol, x, spec), _leaves("atol", atol, x, spec), strict=True)
    pairs = [(_rows("rtol", r, leaf), _rows("atol", a, leaf)) for leaf, r, a in leaves]
    if not is_symbolic() and any(_both_zero(*pair) for pair in pairs):
        raise InputError("rtol and atol are both 0: no step is that exact")
    rtols, atols = zip(*pairs, strict=True)
    return Tolerance(rtols, atols, (_smallest(rtols), _smallest(atols)))


def _leaves(name: str, value: Any, x: State, spec: pytree.TreeSpec | None) -> Sequence[Value]:
    """A tolerance for each leaf of x: its own, or the same for all."""
    listed = spec is not None and spec.type is list
    if listed and isinstance(value, tuple):
        value = list(value)
    if not isinstance(value, (tuple, dict)) and not (listed and isinstance(value, list)):
        return [value] * len(x)
    try:
        if spec is None:
            raise ValueError("x0 is one tensor")
        return spec.flatten_up_to(value)
    except ValueError as error:
        raise InputError(f"{name} must be a number, a tensor, or nested as x0 is; given {value} ({error})") from None


def _rows(name: str, value: Any, x: Tensor) -> Value:
    """A tolerance of a leaf of x with one row per sample, in the precision of x."""
    if isinstance(value, list):
        try:
            value = torch.as_tensor(value, dtype=torch.float64, device=x.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InputError(f"{name} must be a number or a tensor; given {format_value(value)} ({error})") from None
    if not isinstance(value, Tensor):
        return float(value)
    try:
        fits = torch.broadcast_shapes(value.shape, x.shape) == x.shape
    except RuntimeError:
        fits = False
    if not fits:
        ones = ", 1" * (x.dim() - 1)
        raise InputError(
            f"{name} of shape {tuple(value.shape)} does not broadcast against x0 of shape {tuple(x.shape)}: give one"
            f" per component, {tuple(x.shape[1:])}, or one per sample, ({x.shape[0]}{ones or ','})"
        )
    value = value.to(x.device, x.real.dtype if x.is_complex() else x.dtype)
    value = value.reshape(*[1] * (x.dim() - value.dim()), *value.shape)
    return value.expand(x.shape[0], *value.shape[1:])


def _both_zero(rtol: Value, atol: Value) -> bool:
    total = rtol + atol
    return bool((total == 0).any()) if isinstance(total, Tensor) else total == 0.0


def _smallest(values: Sequence[Value]) -> Value:
    """The smallest positive value of each sample, 0 if there is none: a number, or (batch,)."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    positive = [value for value in values if not isinstance(value, Tensor) and value > 0]
    number = min(positive, default=math.inf)
    if not tensors:
        return number if positive else 0.0
    rows = [value.reshape(len(value), math.prod(value.shape[1:])) for value in tensors]
    found = [torch.where(value > 0, value, math.inf).amin(1) for value in rows]
    smallest = torch.stack(found).amin(0).clamp_max(number)
    return torch.where(smallest.isfinite(), smallest, 0.0)


def largest_norm(system: RightHandSide, leaves: State, scales: Sequence[Tensor]) -> Tensor:
    """(batch,): the largest norm of the system's parts."""
    norms = [_rms(leaves[part], scales[part]) for part in system.parts]
    largest = norms[0]
    for norm in norms[1:]:
        largest = torch.maximum(largest, norm)
    return largest


def _rms(leaves: Sequence[Tensor], scales: Sequence[Tensor]) -> Tensor:
    """Root mean square of the scaled elements of one part, one value per sample."""
    squares = [_square(leaf / scale) for leaf, scale in zip(leaves, scales, strict=True)]
    count = max(sum(leaf[0].numel() for leaf in leaves), 1)
    return (sum(squares[1:], squares[0]) / count).sqrt()


def _square(leaf: Tensor) -> Tensor:
    """The sum of squares of each sample."""
    squares = (leaf.abs() if leaf.is_complex() else leaf).square()
    return squares.sum(dim=tuple(range(1, leaf.dim()))) if leaf.dim() > 1 else squares


def batch_rms(ratio: Tensor, mask: Tensor) -> Tensor:
    """(batch,): the root mean square over the samples in the mask, the same value for all."""
    squares = torch.where(mask, ratio, 0.0).square()
    return (squares.sum() / mask.sum().clamp_min(1)).sqrt().expand_as(ratio)
