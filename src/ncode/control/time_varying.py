"""Controls that are functions of time, as sums of basis functions."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .._modules import Shapes, Theta
from ..errors import InputError, check_choice, check_count, check_number
from .base import Constant, Controller, General, Motion, State, check_closed
from .static import Static

# A basis maps s (batch,), time divided by span, and the number of terms to values and derivatives with respect to s,
# (batch, terms). Its first function is the constant 1.
Basis = Callable[[Tensor, int], tuple[Tensor, Tensor]]


class TimeVarying(Controller):
    """theta(t) = sum_k c_k phi_k(t): a control that varies with depth, as the layers of a discrete network differ.

    theta(t) is evaluated where it is needed, never integrated. For a control with an ODE of its own see `Drift`.

    Args:
        basis: "fourier" or "polynomial" (Legendre).
        terms: Number of basis functions; the first is constant. One term is `Static`.
        span: The length of time that the basis covers, from t = 0: usually t1.
        coefficients: The controller that sets them. Default: `Static`, the same for all samples (Massaroli et al.,
            2020). With an `OpenLoop` each sample has its own theta(t).

    >>> import torch, ncode
    >>> block = ncode.NCODE(ncode.dynamics.MLP(2, hidden=16), ncode.TimeVarying("fourier", terms=5))
    >>> block(torch.zeros(5, 2)).shape
    torch.Size([5, 2])
    """

    equation = "theta = sum_k c_k phi_k(t)"

    def __init__(
        self, basis: str = "fourier", terms: int = 3, span: float = 1.0, coefficients: Controller | None = None
    ):
        super().__init__()
        coefficients = Static() if coefficients is None else coefficients
        if not isinstance(coefficients, Controller) or not isinstance(coefficients.motion, Constant):
            raise InputError(
                f"coefficients must be a controller with a constant control; given {type(coefficients).__name__}"
            )
        self.basis, self.terms = check_choice("basis", basis, BASES), check_count("terms", terms)
        self.span = check_number("span", span, low=0.0, strict=True)
        self.coefficients = coefficients

    def build(self, shapes: Shapes, defaults: Theta) -> None:
        """Bind the coefficients, (terms, ...): the first starts as a static weight, the others at a tenth of it."""
        check_closed("TimeVarying", shapes, defaults)
        stacked = {}
        for name, value in defaults.items():
            others = torch.randn(self.terms - 1, *value.shape) * 0.1 * value.square().mean().sqrt()
            stacked[name] = torch.cat([value[None], others])
        self.coefficients.bind({name: tuple(value.shape) for name, value in stacked.items()}, stacked)

    def initial_theta(self, context: Tensor) -> Theta:
        return self.control(context.new_zeros(context.shape[0]), self.start(context))

    def start(self, context: Tensor) -> State:
        return self.coefficients.start(context)

    def start_from(self, theta: Theta) -> State:
        raise InputError("TimeVarying makes the control a function of time: it cannot start from a given theta")

    def control(self, t: Tensor, state: State) -> dict[str, Tensor]:
        values, _ = BASES[self.basis](t / self.span, self.terms)
        return self._combine(values, t, state)

    def control_speed(self, t: Tensor, x: Tensor, state: State) -> dict[str, Tensor]:
        _, slopes = BASES[self.basis](t / self.span, self.terms)
        return self._combine(slopes / self.span, t, state)

    @property
    def motion(self) -> Motion:
        return General()

    def _combine(self, weights: Tensor, t: Tensor, state: State) -> dict[str, Tensor]:
        combined = {}
        for name, c in self.coefficients.control(t, state).items():
            formula = "bk,bk...->b..." if name in state.fixed else "bk,k...->b..."
            combined[name] = torch.einsum(formula, weights, c)
        return combined


def fourier(s: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    """1, cos(pi s), sin(pi s), cos(2 pi s), ...: the period is twice the span, so that the two ends may differ."""
    values, slopes = [torch.ones_like(s)], [torch.zeros_like(s)]
    for term in range(1, terms):
        w = math.pi * ((term + 1) // 2)
        cos, sin = torch.cos(w * s), torch.sin(w * s)
        values.append(cos if term % 2 else sin)
        slopes.append(-w * sin if term % 2 else w * cos)
    return torch.stack(values, 1), torch.stack(slopes, 1)


def polynomial(s: Tensor, terms: int) -> tuple[Tensor, Tensor]:
    """Legendre polynomials on [0, 1]: 1, 2 s - 1, ..., each between -1 and 1."""
    u = 2 * s - 1
    values, slopes = [torch.ones_like(s), u], [torch.zeros_like(s), torch.full_like(s, 2.0)]
    for n in range(1, terms - 1):
        values.append(((2 * n + 1) * u * values[n] - n * values[n - 1]) / (n + 1))
        # P'_{n+1} = P'_{n-1} + (2 n + 1) P_n, and du/ds = 2.
        slopes.append(slopes[n - 1] + 2 * (2 * n + 1) * values[n])
    return torch.stack(values[:terms], 1), torch.stack(slopes[:terms], 1)


BASES: dict[str, Basis] = {"fourier": fourier, "polynomial": polynomial}
