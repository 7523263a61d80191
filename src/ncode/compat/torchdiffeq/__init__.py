"""torchdiffeq's `odeint`, `odeint_adjoint`, `odeint_event` and `odeint_dense`.

Change `from torchdiffeq import odeint` to `from ncode.compat.torchdiffeq import odeint`. Methods, options, tolerances,
norms, callbacks, events and, for explicit methods, the number of evaluations are those of torchdiffeq; their solves
take less time. It has its own loops, since torchdiffeq's world differs from that of `ncode.solve`: time is one number,
the whole state shares one step size, and the gradient goes through a kept graph. docs/torchdiffeq.md lists what
differs. In short:

- Adams and SciPy methods raise `ncode.InputError`, whose message names an alternative.
- Implicit methods solve their stages by Newton's method to rounding, and raise if it does not converge.
- Values between two steps of "dopri8" and "bosh3" are more accurate.
- The first step size that the solver chooses has no gradient; in torchdiffeq, it alone has one.
- `odeint_adjoint` also takes plain functions, and finds all tensors that func uses.
- The time of an event is found to the precision of time, and `odeint_event` also gives gradients to the parameters of
  event_fn.
- `options={"gradient": "discrete"}` evaluates func again in backward, which saves memory.
- States of 16 bits are kept in float32, and times are counted from t[0].
- Tensors of func that were changed between `odeint_adjoint` and its backward pass are refused.
- A failed solve raises `ncode.SolveError`, which is an AssertionError too.
"""

from .api import odeint, odeint_adjoint, odeint_dense, odeint_event

__all__ = ["odeint", "odeint_adjoint", "odeint_dense", "odeint_event"]
