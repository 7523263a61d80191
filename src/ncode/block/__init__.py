"""`NCODE`, the module that joins a dynamics and a controller.

The path of a call: `NCODE.forward` (ncode.py) checks its input and lets the controller set the control at t0. If a
closed form applies, it gives the solution; otherwise dynamics and controller become functions f and g (wiring.py) for
`ncode.solve`.

    ncode.py       `NCODE`
    settings.py    its `Settings`: the interval, and the options of the solver
    request.py     one solve as a `Request`, and the checks of its input
    wiring.py      dynamics and controller as functions for the solver
    results.py     solutions with the control by name
    family.py      the models of the paper as choices of dynamics and controller
    config.py      modules as plain data, and the names of their classes: `register`
    saving.py      these data and the weights in a folder: `save_pretrained`, `from_pretrained`
    card.py        the model card in that folder
    pretrained.py  `Pretrained`, the base class of blocks and of networks of blocks
"""

from .config import register
from .family import Member
from .ncode import NCODE
from .saving import from_pretrained, save_pretrained
from .settings import Settings

__all__ = ["NCODE", "Member", "Settings", "from_pretrained", "register", "save_pretrained"]
