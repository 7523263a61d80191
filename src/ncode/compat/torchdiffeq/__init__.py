"""torchdiffeq's `odeint`, `odeint_adjoint` and `odeint_event`, on top of `ncode.solve`.

Change `from torchdiffeq import odeint` to `from ncode.compat.torchdiffeq import odeint`. What differs:

- `odeint` keeps one state per step and recomputes each step in backward, where torchdiffeq keeps every activation. Its
  gradients are those of backpropagation, but first derivatives only: second ones need
  `options={"gradient": "autograd"}`, and an error message says so.
- "rk4" is the classic method; torchdiffeq's is the 3/8 rule, of the same order.
- With fixed steps of `step_size`, values between two steps are of the method's own order; torchdiffeq's are linear.
- `max_num_steps` counts the steps of the whole solve; torchdiffeq counts anew from each of the times in `t`.
- Of a tuple state, the first tensor's error and that of the others together must each meet the tolerance; in
  torchdiffeq, that of every tensor. For one or two tensors this is the same.
- `odeint_adjoint` finds parameters by itself, in any function, and always solves the adjoint with the forward method
  and tolerances, the tighter ones where `adjoint_rtol` or `adjoint_atol` differ. Parameters do not enter the error norm
  (torchdiffeq's "seminorm").
- `odeint_event` also gives gradients to the parameters of `event_fn`.

What is not available here (multistep, implicit and SciPy methods, `norm`, callbacks, ...) raises `ncode.InputError`,
whose message names the nearest alternative; a failed solve raises `ncode.SolveError`.

    api.py      the three functions
    system.py   torchdiffeq's methods, options and states, translated
    events.py   finding an event, and the gradient of its time
"""

from .api import odeint, odeint_adjoint, odeint_event

__all__ = ["odeint", "odeint_adjoint", "odeint_event"]
