"""`method="auto"`: each step of each sample is explicit where that is stable, and implicit where it is stiff.

An explicit step whose last two evaluations are at the same time shows in which direction v neighbouring solutions
part or meet, and how fast (Hairer and Wanner, section IV.2),

    v = f(t + h, z_1) - f(t + h, y),    rate = |v| / |z_1 - y|,    y its last stage

and is unstable where h * rate exceeds the method's bound on the negative real axis. This is blind to a fast component
until errors in it have grown, and gradients through steps that amplify errors grow without limit. So one more
evaluation, at a small distance from z_1 in the direction of v, measures the rate of the fastest component, too.
The decision depends on the arguments of the step alone: gradients that replay a step repeat it, and a sample's result
does not depend on its companions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .._torch_private import is_traced
from .implicit import ImplicitStep, RosenbrockStep
from .implicit_tableau import STIFF_METHODS, RosenbrockTableau
from .linearise import join, split
from .step import ExplicitStep, StepResult, weighted_sum
from .system import State, expand_like, where
from .tableau import METHODS, Tableau


@dataclass(frozen=True)
class AutoMethod:
    """A pair of methods of the same order, with as many powers in their dense output."""

    name: str
    explicit: Tableau
    implicit: RosenbrockTableau
    bound: float  # of h * rate, up to which a step is explicit

    @property
    def order(self) -> int:
        return min(self.explicit.order, self.implicit.order)

    @property
    def error_order(self) -> int:
        return min(self.explicit.error_order, self.implicit.error_order)

    @property
    def adaptive(self) -> bool:
        return True


def _auto() -> AutoMethod:
    implicit = STIFF_METHODS["rodas5p"]
    assert isinstance(implicit, RosenbrockTableau)
    return AutoMethod("auto", METHODS["tsit5"], implicit, bound=3.0)


AUTO = _auto()


@dataclass(frozen=True, eq=False)
class AutoStep(ImplicitStep):
    """A step that is explicit for some samples and implicit for the others."""

    tableau: AutoMethod

    @property
    def counts_evaluations(self) -> bool:
        return True

    @property
    def evaluations(self) -> int:
        """Those of the explicit step, its end, and the rate; those of implicit steps are counted per sample."""
        return self.tableau.explicit.stages + 2

    def __call__(
        self, t: Tensor, h: Tensor, z: State, theta: Sequence[Tensor], first: State | None = None
    ) -> StepResult:
        dense = self.dense or self.slopes
        explicit = ExplicitStep(self.system, self.tableau.explicit, True, dense, True)
        implicit = RosenbrockStep(self.system, self.tableau.implicit, self.estimate, self.dense, self.slopes)
        with torch.no_grad():
            tried = explicit(t, h, z, theta)
            stiff = self._is_stiff(t, h, z, theta, tried)
        some = is_traced() or bool(stiff.any())
        if torch.is_grad_enabled():
            # Where it is unstable an explicit step may overflow, and spoil gradients even where it is not used.
            tried = explicit(t, torch.where(stiff, 0.0, h) if some else h, z, theta)
        spent = stiff.int() * implicit.evaluations
        errors = tried.errors if self.estimate else ()
        result = StepResult(tried.z, tried.start, None, errors, tried.dense, spent=spent)
        if not some:
            return result
        other = implicit(t, torch.where(stiff, h, 0.0), z, theta)
        return result._replace(
            z=where(stiff, other.z, result.z),
            errors=tuple(where(stiff, a, b) for a, b in zip(other.errors, result.errors, strict=True)),
            dense=None if other.dense is None or result.dense is None else where(stiff, other.dense, result.dense),
            failure=other.failure,
        )

    def _is_stiff(self, t: Tensor, h: Tensor, z: State, theta: Sequence[Tensor], tried: StepResult) -> Tensor:
        """Which samples' explicit step is unstable; one that is not finite is, too."""
        tableau, system = self.tableau.explicit, self.system
        assert tried.end is not None
        between = tuple(w - v for w, v in zip(tableau.b, (*tableau.a[-1], 0.0), strict=True))
        apart = join(weighted_sum(tried.slopes, between, expand_like(h.to(system.dtype), z))).norm(dim=1)
        end, vector = join(tried.end), join(tried.z)
        change = end - join(tried.slopes[-1])
        # Far enough for a difference quotient with some right digits.
        distance = torch.maximum(apart, vector.norm(dim=1) * torch.finfo(vector.dtype).eps ** (2 / 3))
        size = change.norm(dim=1)
        move = change * (distance / torch.where(size == 0, 1.0, size))[:, None]
        moved = system.bind(theta)(system.clock(theta, t + h), split(vector + move, z))
        growth, bound = (join(moved) - end).norm(dim=1), self.tableau.bound
        stable = (size * h.abs() <= bound * apart) & (growth * h.abs() <= bound * distance)
        return ~stable & (h != 0)
