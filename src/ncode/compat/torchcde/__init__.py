"""torchcde's `cdeint` and its interpolations.

Change `import torchcde` to `from ncode.compat import torchcde`. What differs:

- Gradients are those of the solver's own steps, and exact, whether `adjoint` is True or False. With `adjoint=True` at
  most 256 MiB of what func computes are kept, and the rest is computed again in backward. torchcde solves an adjoint
  equation backward in time instead, which takes longer and is less exact. So `adjoint_method`, `adjoint_options`,
  `adjoint_rtol` and `adjoint_atol` have no effect; and all tensors that func and X use get gradients, not only those in
  `adjoint_params`.
- Adaptive steps end at the knots of X, where its derivative has a jump or a kink, unless `options` have `jump_t` or
  `step_t`. This takes fewer evaluations and makes smaller errors: steps across kinks miss the tolerance.
- Where t begins late, as in epoch milliseconds, times are counted from t[0], with the solution of an early path. A func
  that uses t is refused if z0's precision rounds such times too much.
- Missing values are filled in for all samples at once.
- Not available: `backend="torchsde"`, `logsig_windows`, and `natural_cubic_spline_coeffs`, which is deprecated there.

Methods and options are those of `ncode.compat.torchdiffeq`. For steps and ends of each sample's own see `ncode.paths`
and `ncode.dynamics.CDE`.
"""

from .coefficients import (
    hermite_cubic_coefficients_with_backward_differences,
    linear_interpolation_coeffs,
    natural_cubic_coeffs,
)
from .interpolation import CubicSpline, InterpolationBase, LinearInterpolation, TupleControl
from .solver import cdeint

__all__ = [
    "CubicSpline",
    "InterpolationBase",
    "LinearInterpolation",
    "TupleControl",
    "cdeint",
    "hermite_cubic_coefficients_with_backward_differences",
    "linear_interpolation_coeffs",
    "natural_cubic_coeffs",
]
