"""A control that is a function of time alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..checks import check_choice, check_number
from ..errors import InputError
from .base import Controller, Shapes, State, Theta
from .basis import BASES
from .heads import check_closed
from .motion import Free, Motion, Still
from .static import Static


class TimeVarying(Controller):
    """theta(t) = sum_k c_k phi_k(t): a control that varies with depth, as layers of a discrete network differ.

    The coefficients stay as they are and theta(t) is computed where it is needed, so the control is never integrated.
    For a control with an ODE of its own see `Drift`.

    Args:
        basis: "fourier" or "polynomial" (Legendre's).
        terms: Functions in the basis; the first is constant. 1 term is `Static`.
        span: The time over which the basis is laid out, from t = 0: t1, most often.
        coefficients: Who sets them: `Static`, the same for all samples (Massaroli et al., 2020), unless told; an
            `OpenLoop` gives each sample a course of its own.

    >>> import torch, ncode
    >>> block = ncode.NCODE(ncode.dynamics.MLP(2, hidden=16), ncode.TimeVarying("fourier", terms=5))
    >>> block(torch.zeros(5, 2)).shape
    torch.Size([5, 2])
    """

    equation = "theta = sum_k c_k phi_k(t)"

    def __init__(
        self,
        basis: str = "fourier",
        terms: int = 3,
        span: float = 1.0,
        coefficients: Controller | None = None,
    ):
        super().__init__()
        if isinstance(terms, bool) or not isinstance(terms, int) or terms < 1:
            raise InputError(f"terms must be a whole number of at least 1; given {terms!r}")
        coefficients = Static() if coefficients is None else coefficients
        if not isinstance(coefficients, Controller) or not isinstance(coefficients.motion, Still):
            raise InputError(
                f"coefficients must be set by a controller that stands still; given {type(coefficients).__name__}"
            )
        self.basis, self.terms = check_choice("basis", basis, BASES), terms
        self.span = check_number("span", span, low=0.0, strict=True)
        self.coefficients = coefficients

    def bind(self, shapes: Shapes, initial: Mapping[str, Tensor]) -> None:
        """Coefficients, (terms, ...) each: the first starts as a static weight does, the others at a tenth of it."""
        check_closed("TimeVarying", shapes, initial)
        stacked = {}
        for name, start in initial.items():
            more = torch.randn(self.terms - 1, *start.shape) * 0.1 * start.square().mean().sqrt()
            stacked[name] = torch.cat([start[None], more])
        self.coefficients.bind({name: tuple(value.shape) for name, value in stacked.items()}, stacked)

    def start(self, context: Tensor) -> State:
        """The coefficients."""
        return self.coefficients.start(context)

    def given(self, theta: Theta) -> State:
        """Not possible: a control at one time does not tell its course."""
        raise InputError("TimeVarying makes the control a function of time: it cannot start from a given theta")

    def control(self, t: Tensor, state: State) -> dict[str, Tensor]:
        """sum_k c_k phi_k(t)."""
        values, _ = BASES[self.basis](t / self.span, self.terms)
        return self._combine(values, t, state)

    def speed(self, t: Tensor, x: Tensor, state: State) -> dict[str, Tensor]:
        """sum_k c_k dphi_k/dt."""
        _, slopes = BASES[self.basis](t / self.span, self.terms)
        return self._combine(slopes / self.span, t, state)

    @property
    def motion(self) -> Motion:
        """Free."""
        return Free()

    def config(self) -> dict[str, Any]:
        """basis, terms, span, coefficients."""
        return {"basis": self.basis, "terms": self.terms, "span": self.span, "coefficients": self.coefficients}

    def _combine(self, weights: Tensor, t: Tensor, state: State) -> dict[str, Tensor]:
        combined = {}
        for name, c in self.coefficients.control(t, state).items():
            formula = "bk,bk...->b..." if name in state.fixed else "bk,k...->b..."
            combined[name] = torch.einsum(formula, weights, c)
        return combined
