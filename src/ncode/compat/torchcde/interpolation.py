"""Interpolations as modules with `evaluate` and `derivative`, for times of any shape, and several of them as one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import InputError, check_tensor


class InterpolationBase(nn.Module, ABC):
    """What `cdeint` needs of a control. Abstract.

    >>> import torch
    >>> issubclass(LinearInterpolation, InterpolationBase)
    True
    """

    @property
    @abstractmethod
    def grid_points(self) -> Tensor:
        """The times of the data, (length,)."""

    @property
    @abstractmethod
    def interval(self) -> Tensor:
        """The first and the last of them."""

    @abstractmethod
    def evaluate(self, t: Any) -> Any:
        """Return X(t), (..., channels) for a number, (..., *shape, channels) for times of some shape."""

    @abstractmethod
    def derivative(self, t: Any) -> Any:
        """Return dX/dt, in the shape of `evaluate`."""


class _Pieces(InterpolationBase):
    """Piecewise polynomials: `_terms` (..., length - 1, terms channels) hold c_0 and k c_k, next to each other.

    At a knot the piece that ends there counts; outside of the knots, the first and the last piece are extrapolated.
    """

    _t: Tensor
    _terms: Tensor

    def __init__(self, coeffs: Any, t: Tensor | None, length: int, terms: int):
        super().__init__()
        if t is None:
            t = torch.arange(length, dtype=coeffs.dtype, device=coeffs.device)
        if check_tensor("t", t).shape != (length,):
            raise InputError(
                f"t must be ({length},), the times of coeffs {tuple(coeffs.shape)}; given {tuple(t.shape)}"
            )
        self.register_buffer("_t", t)
        self._count, self._times = terms, None

    @property
    def grid_points(self) -> Tensor:
        return self._t

    @property
    def interval(self) -> Tensor:
        return torch.stack([self._t[0], self._t[-1]])

    def since(self, time: float) -> Any:
        """The same path, with times counted from `time`."""
        moved = copy(self)
        moved._buffers = {**self._buffers, "_t": (self._t.double() - time).to(self._t.dtype)}
        moved._times = None
        return moved

    def evaluate(self, t: Any) -> Tensor:
        offset, c = self._piece(t)
        value = c[-1] / max(self._count - 1, 1)
        for power in range(self._count - 2, -1, -1):
            value = _times_plus(value, offset, c[power] / max(power, 1))
        return value

    def derivative(self, t: Any) -> Tensor:
        offset, c = self._piece(t)
        slope = c[-1]
        for power in range(self._count - 2, 0, -1):
            slope = _times_plus(slope, offset, c[power])
        return slope

    def _piece(self, t: Any) -> tuple[Any, tuple[Tensor, ...]]:
        """The offset from where a piece begins, and its terms."""
        last = len(self._t) - 2
        if self._is_plain(t):
            if self._times is None:
                self._times = self._t.tolist()
            time = float(t)
            index = min(max(bisect_left(self._times, time) - 1, 0), last)
            return time - self._times[index], self._terms.select(-2, index).chunk(self._count, -1)
        t = torch.as_tensor(t, dtype=self._t.dtype, device=self._t.device)
        index = (torch.bucketize(t.detach(), self._t.detach()) - 1).clamp(0, last)
        return (t - self._t[index])[..., None], self._terms[..., index, :].chunk(self._count, -1)

    def _is_plain(self, t: Any) -> bool:
        """Whether t is one number that can be read without waiting for a device, and needs no gradient."""
        if self._t.requires_grad:
            return False
        return not isinstance(t, Tensor) or (t.dim() == 0 and t.device.type == "cpu" and not t.requires_grad)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self._times = None
        return super()._apply(fn, recurse)


class LinearInterpolation(_Pieces):
    """A piecewise linear path.

    Args:
        coeffs: As returned by `linear_interpolation_coeffs`, (..., length, channels).
        t: Times, (length,), as given there. Default: 0, 1, 2, ...

    >>> import torch
    >>> X = LinearInterpolation(torch.tensor([[0.0], [2.0], [3.0]]))
    >>> X.evaluate(0.5), X.derivative(torch.tensor(1.5)), X.interval
    (tensor([1.]), tensor([1.]), tensor([0., 2.]))
    """

    def __init__(self, coeffs: Tensor, t: Tensor | None = None):
        if check_tensor("coeffs", coeffs).dim() < 2 or coeffs.shape[-2] < 2:
            raise InputError(f"coeffs must be (..., length, channels), length >= 2; given {tuple(coeffs.shape)}")
        super().__init__(coeffs, t, coeffs.shape[-2], 2)
        slopes = coeffs.diff(dim=-2) / self._t.diff()[:, None]
        self.register_buffer("_terms", torch.cat([coeffs[..., :-1, :], slopes], -1))


class CubicSpline(_Pieces):
    """A piecewise cubic path.

    Args:
        coeffs: As returned by `hermite_cubic_coefficients_with_backward_differences` or `natural_cubic_coeffs`,
            (..., length - 1, 4 channels).
        t: Times, (length,), as given there. Default: 0, 1, 2, ...

    >>> import torch
    >>> from ncode.compat import torchcde
    >>> X = CubicSpline(torchcde.natural_cubic_coeffs(torch.randn(5, 10, 3)))
    >>> X.derivative(torch.tensor(0.4)).shape
    torch.Size([5, 3])
    """

    def __init__(self, coeffs: Tensor, t: Tensor | None = None):
        if check_tensor("coeffs", coeffs).dim() < 2 or coeffs.shape[-1] % 4:
            raise InputError(f"coeffs must be (..., length - 1, 4 channels); given {tuple(coeffs.shape)}")
        super().__init__(coeffs, t, coeffs.shape[-2] + 1, 4)
        self.register_buffer("_terms", coeffs)


class TupleControl(nn.Module):
    """Several controls as one, for `cdeint` with a tuple as its state.

    >>> import torch
    >>> X = TupleControl(LinearInterpolation(torch.zeros(3, 2)), LinearInterpolation(torch.zeros(3, 1)))
    >>> [tuple(dX.shape) for dX in X.derivative(0.5)]
    [(2,), (1,)]
    """

    def __init__(self, *controls: InterpolationBase):
        super().__init__()
        if not controls:
            raise InputError("TupleControl takes one or more controls")
        if any(not torch.equal(control.interval, controls[0].interval) for control in controls):
            raise InputError("the controls of a TupleControl must have the same interval")
        self.controls = nn.ModuleList(controls)

    @property
    def interval(self) -> Tensor:
        return self.controls[0].interval  # pyright: ignore[reportReturnType]

    @property
    def grid_points(self) -> Tensor:
        """The times of all controls."""
        return torch.cat([control.grid_points for control in self.controls]).unique()  # pyright: ignore

    def since(self, time: float) -> TupleControl:
        """The same controls, with times counted from `time`."""
        return TupleControl(*(control.since(time) for control in self.controls))  # pyright: ignore[reportCallIssue]

    def evaluate(self, t: Any) -> tuple[Any, ...]:
        return tuple(control.evaluate(t) for control in self.controls)  # pyright: ignore[reportCallIssue]

    def derivative(self, t: Any) -> tuple[Any, ...]:
        return tuple(control.derivative(t) for control in self.controls)  # pyright: ignore[reportCallIssue]


def _times_plus(value: Tensor, offset: Any, term: Tensor) -> Tensor:
    """value * offset + term, as one operation where offset is a number."""
    return torch.addcmul(term, value, offset) if isinstance(offset, Tensor) else torch.add(term, value, alpha=offset)
