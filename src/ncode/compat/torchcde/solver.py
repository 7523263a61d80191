"""`cdeint`: z(t) = z(t_0) + the integral of f(s, z) dX, as the ordinary equation dz/dt = f(t, z) dX/dt."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from ...errors import InputError, check_flag, check_tensor
from ..torchdiffeq.api import odeint
from ..torchdiffeq.methods import ADAPTIVE, check_method
from ..torchdiffeq.problem import check_resolution
from .interpolation import CubicSpline, LinearInterpolation, TupleControl

KEPT_BYTES = 2**28  # of what func computes, with adjoint=True


def cdeint(
    X: Any,
    func: Any,
    z0: Any,
    t: Tensor,
    adjoint: bool = True,
    backend: str = "torchdiffeq",
    **kwargs: Any,
) -> Any:
    """Solve dz = func(t, z) dX from z(t[0]) = z0, and return z at each time of t.

    Args:
        X: The control, with `derivative(t)` (..., channels), such as `CubicSpline`.
        func: func(t, z) -> (..., hidden, channels), with t of shape (). If it has a method `prod(t, z, dXdt)`, that is
            called instead, and returns the product (..., hidden).
        z0: The state at t[0], (..., hidden); or a tuple of such, and X and func return tuples too.
        t: Times, (T,), strictly increasing or decreasing.
        adjoint: Whether to limit memory: what func computes is kept up to 256 MiB, and beyond computed again in
            backward. The gradient is exact either way.
        backend: "torchdiffeq".
        kwargs: Further arguments of `ncode.compat.torchdiffeq.odeint`: method, options, rtol (1e-4), atol (1e-6).
            torchcde's arguments of the adjoint, such as adjoint_params, are accepted and have no effect.

    Returns:
        z at the times of t, (..., T, hidden), or a tuple of such.

    >>> import torch
    >>> from ncode.compat import torchcde
    >>> X = torchcde.LinearInterpolation(torch.tensor([[[0.0], [1.0]]], dtype=torch.float64))
    >>> z = torchcde.cdeint(X, lambda t, z: z[..., None], torch.ones(1, 1, dtype=torch.float64), X.interval)
    >>> z[0, :, 0].round(decimals=3)  # dz = z dX
    tensor([1.0000, 2.7180], dtype=torch.float64)
    """
    check_flag("adjoint", adjoint)
    if backend != "torchdiffeq":
        raise InputError(f'backend must be "torchdiffeq"; given {backend!r}: SDE solvers are not available here')
    if not callable(getattr(X, "derivative", None)):
        raise InputError(f"X must have a method derivative(t), as CubicSpline has; given {type(X).__name__}")
    given = {name: value for name, value in kwargs.items() if not name.startswith("adjoint_")}
    rtol, atol = given.pop("rtol", 1e-4), given.pop("atol", 1e-6)
    _check(X, func, z0, check_tensor("t", t))
    begin = _late_start(X, z0, t, given.get("options"))
    if begin:
        X = X.since(begin)
        speed, product = X.derivative(t.detach()[0] - begin), hasattr(func, "prod")
        call = (lambda t, z: func.prod(t, z, speed)) if product else func
        check_resolution(call, z0, t, rtol, atol, check_method(given.get("method")) in ADAPTIVE)
    options = _options(X, given.pop("method", None), given.pop("options", None), given)
    field = _Field(X, func, begin)
    z = odeint(_Bounded(field) if adjoint else field, z0, t - begin, rtol=rtol, atol=atol, **options)
    # torchcde has the times before the channels, torchdiffeq at first.
    return z.movedim(0, -2) if isinstance(z, Tensor) else tuple(leaf.movedim(0, -2) for leaf in z)


def _options(X: Any, method: Any, options: Any, others: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `odeint`: adaptive steps end at the knots, where the derivative of X jumps or bends."""
    options, points = dict(options or {}), getattr(X, "grid_points", None)
    if check_method(method) in ADAPTIVE and isinstance(points, Tensor) and not {"jump_t", "step_t"} & set(options):
        controls = X.controls if isinstance(X, TupleControl) else [X]
        jumps = any(isinstance(control, LinearInterpolation) for control in controls)
        options["jump_t" if jumps else "step_t"] = points.detach()
    return {**others, "method": method, "options": options or None}


def _late_start(X: Any, z0: Any, t: Tensor, options: Any) -> float:
    """The time to count from, t[0] where times would lose digits of the distances between them (epoch milliseconds).

    0, as they are, with a control of the user's own, which need not be a function of such distances.
    """
    controls = X.controls if type(X) is TupleControl else [X]
    own = any(type(control) not in (LinearInterpolation, CubicSpline) for control in controls)
    if own or {"jump_t", "step_t", "grid_constructor"} & set(options or ()) or not t.is_floating_point():
        return 0.0
    first, last = t[0].item(), t[-1].item()
    dtype = z0.dtype if isinstance(z0, Tensor) else z0[0].dtype
    if not (dtype.is_floating_point or dtype.is_complex):  # which odeint refuses
        return 0.0
    coarse = torch.finfo(dtype).eps * max(abs(first), abs(last)) > 1e-6 * abs(last - first)
    return first if coarse else 0.0


class _Field(nn.Module):
    """dz/dt = func(t, z) dX/dt, where X has the solver's times, which are counted from `begin`."""

    def __init__(self, X: Any, func: Any, begin: float):
        super().__init__()
        self.X, self.func, self.begin, self.has_product = X, func, begin, hasattr(func, "prod")

    def forward(self, t: Tensor, z: Any) -> Any:
        speed = self.X.derivative(t)
        if self.begin:
            t = t + self.begin
        if self.has_product:
            return self.func.prod(t, z, speed)
        matrix = self.func(t, z)
        if isinstance(z, Tensor):
            return _product(matrix, speed)
        return tuple(map(_product, matrix, speed))


class _Bounded(nn.Module):
    """A field whose evaluations keep what backward needs up to `KEPT_BYTES`; later ones are repeated in backward."""

    def __init__(self, field: _Field):
        super().__init__()
        self.field, self.per_call, self.kept = field, None, 0

    def forward(self, t: Tensor, z: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.field(t, z)
        if self.per_call is None:
            return self._measure(t, z)
        self.kept += self.per_call
        return self.field(t, z) if self.kept <= KEPT_BYTES else checkpoint(self.field, t, z, use_reentrant=False)

    def _measure(self, t: Tensor, z: Any) -> Any:
        """The first evaluation, which shows how much one keeps."""
        sizes: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            if not (tensor.is_leaf and tensor.requires_grad):
                sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with saved_tensors_hooks(pack, lambda tensor: tensor):
            slope = self.field(t, z)
        self.per_call = sum(sizes.values())
        return slope


def _product(matrix: Tensor, speed: Tensor) -> Tensor:
    if matrix.device.type == "cpu":
        # Measured: batched products with a single column are slow here, most of all in backward.
        return (matrix * speed[..., None, :]).sum(-1)
    return (matrix @ speed[..., None])[..., 0]


def _check(X: Any, func: Any, z0: Any, t: Tensor) -> None:
    """Evaluate once at t[0], and check the shapes."""
    if t.dim() != 1 or len(t) < 1:
        raise InputError(f"t must hold the times, (T,); given {tuple(t.shape)}")
    single, start = isinstance(z0, Tensor), t[0].detach()
    states = [z0] if single else list(z0) if isinstance(z0, (tuple, list)) else None
    if not states or not all(isinstance(state, Tensor) and state.dim() for state in states):
        raise InputError(f"z0 must be a tensor (..., hidden), or a tuple of such; given {type(z0).__name__}")
    for state in states:
        check_tensor("z0", state)
    with torch.no_grad():
        speed = X.derivative(start)
        product = hasattr(func, "prod")
        found = func.prod(start, z0, speed) if product else func(start, z0)
    name = "func.prod" if product else "func"
    speeds, outputs = ([speed], [found]) if single else (speed, found)
    for given, what in ((speeds, "X.derivative"), (outputs, name)):
        if not isinstance(given, (tuple, list)) or len(given) != len(states):
            raise InputError(f"{what} must return a tuple of {len(states)} tensors, as z0 is one")
        if not all(isinstance(each, Tensor) for each in given):
            raise InputError(f"{what} must return a tensor for each tensor of z0")
    for state, du, out in zip(states, speeds, outputs, strict=True):
        if du.shape[:-1] != state.shape[:-1]:
            raise InputError(
                f"X.derivative returned {tuple(du.shape)} for z0 {tuple(state.shape)}: all dimensions but the last,"
                " the batch, must agree"
            )
        expected = state.shape if product else (*state.shape, du.shape[-1])
        if out.shape != expected:
            raise InputError(
                f"{name} returned {tuple(out.shape)}; expected {tuple(expected)}, for z0 {tuple(state.shape)}"
            )
