"""Flows that need no solver: linear dynamics under a constant control, and Hebbian weights.

select.py            which closed form solves a block
linear.py            `linear_flow`: exp(theta t) x0, by the Taylor polynomials of taylor.py
_linear_kernels.py   the same for sparse rows on a GPU, by Triton
plastic.py           `plastic_episode`: Hebbian weights as sums of outer products; plastic_passes.py has its passes
"""

from .linear import linear_flow
from .plastic import plastic_episode

__all__ = ["linear_flow", "plastic_episode"]
