"""Flows that need no solver: linear dynamics under a (piecewise) constant control, and plastic weights.

select.py            which closed form solves a block
linear.py            `linear_flow`: exp(theta t) x0, by the Taylor polynomials of taylor.py
_linear_kernels.py   the same for sparse rows on a GPU, by Triton
piecewise.py         `piecewise_linear_flow`: a control that is constant on each interval; `linear_recurrence`
plastic.py           `plastic_episode`: plastic weights as sums of outer products; plastic_passes.py has its passes
"""

from .linear import linear_flow
from .piecewise import linear_recurrence, piecewise_linear_flow
from .plastic import plastic_episode

__all__ = ["linear_flow", "linear_recurrence", "piecewise_linear_flow", "plastic_episode"]
