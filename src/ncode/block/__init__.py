"""`NCODE`, the module that joins a dynamics and a controller.

The path of a call: `NCODE.forward` (ncode.py) checks its input (checks.py) and lets the controller set the control at
t0. If a closed form applies (`Settings.closed_form`), it gives the solution; otherwise dynamics and controller become
plain functions f and g (wiring.py), which `ncode.solve` integrates.

    ncode.py      `NCODE`
    settings.py   `Settings`: the interval and how it is solved
    checks.py     whether state, control and dynamics fit together
    wiring.py     the functions for the solver, and its solutions with the control by name
    family.py     the models of the paper as choices of dynamics and controller
    saving.py     `save_pretrained`, `from_pretrained`, `register`
"""

from .family import Member
from .ncode import NCODE
from .saving import from_pretrained, register, save_pretrained
from .settings import Settings
from .wiring import Episode

__all__ = ["NCODE", "Episode", "Member", "Settings", "from_pretrained", "register", "save_pretrained"]
