"""torchdiffeq's `odeint`, `odeint_adjoint` and `odeint_event`, over `ncode.solve`.

Change `from torchdiffeq import odeint` to `from ncode.compat.torchdiffeq import odeint`. What differs:

- `odeint` keeps one state a step and takes each step again in backward, where torchdiffeq keeps every activation. Its
  gradients are those of backpropagation, but first derivatives only: second ones need
  `options={"gradient": "autograd"}`, and a sentence says so.
- "rk4" is the classic method; torchdiffeq's is the 3/8 rule, of the same order.
- With fixed steps of `step_size`, values between two steps are of the method's own order; torchdiffeq's are linear.
- `max_num_steps` counts the steps of the whole solve; torchdiffeq starts anew at each of the times in `t`.
- Of a tuple state, the first tensor's error and that of the others together must each meet the tolerance; in
  torchdiffeq, that of every tensor. For one or two tensors this is the same.
- `odeint_adjoint` finds parameters by itself, in any function, and always solves the adjoint with the forward's method
  and tolerances, of which the tighter is taken where `adjoint_rtol` or `adjoint_atol` differ. Parameters do not enter
  the error norm (torchdiffeq's "seminorm").
- `odeint_event` gives gradients to what `event_fn` touches, too.

What has no counterpart here (multistep, implicit and SciPy methods, `norm`, callbacks, ...) raises `ncode.InputError`
with a sentence that names the nearest right thing; a failed solve raises `ncode.SolveError`.
"""

from .api import odeint, odeint_adjoint, odeint_event

__all__ = ["odeint", "odeint_adjoint", "odeint_event"]
