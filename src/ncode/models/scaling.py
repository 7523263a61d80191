"""The range of values that a model of images expects, and its check."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .._torch_private import is_symbolic
from ..errors import InputError, check_number, format_value

ValueRange = tuple[float, float]  # the darkest and the brightest value


def check_value_range(value: Any) -> ValueRange:
    """Return a pair of numbers, the lower first."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise InputError(f"value_range must be a pair of numbers, the lower first; given {format_value(value)}")
    low, high = (check_number("an end of value_range", it, low=-float("inf")) for it in value)
    if low >= high:
        raise InputError(f"value_range must be a pair of numbers, the lower first; given {format_value(value)}")
    return low, high


def check_values(model: nn.Module, images: Tensor, value_range: ValueRange, slack: float = 0.0) -> None:
    """Refuse images outside of a range by more than `slack`, a fraction of it.

    Reading values synchronises with a GPU: there only the first images of a model are checked, and none are while it
    is compiled, exported or recorded.
    """
    if (
        not images.numel()
        or is_symbolic()
        or (images.device.type != "cpu" and getattr(model, "_values_checked", False))
    ):
        return
    model._values_checked = True  # pyright: ignore[reportArgumentType]
    low, high = value_range
    darkest, brightest = (float(bound) for bound in images.detach().aminmax())
    allowed = slack * (high - low)
    if darkest >= low - allowed and brightest <= high + allowed:  # false for nan
        return
    bytes_given = darkest >= 0 and 1 < brightest <= 255 and float(brightest).is_integer()
    hint = "divide bytes by 255" if bytes_given and (low, high) == (0.0, 1.0) else "scale them first"
    raise InputError(
        f"images must lie between {low:g} and {high:g}; given {darkest:g} to {brightest:g}: {hint}"
        + ("" if slack == 0 else ", or build the model with another value_range")
    )
