"""NCODE, the module that joins a dynamics and a controller.

How a call goes: `NCODE.forward` (ncode.py) checks what is given (fit.py) and lets the controller set the control at t0,
which makes a `Request` (request.py). A closed form answers it where there is one (shortcuts.py). Otherwise dynamics and
controller become plain functions f and g (wiring.py), and `ncode.solve` does the rest.
"""

from .episode import Episode
from .family import Member
from .ncode import NCODE
from .pretrained import from_pretrained, save_pretrained
from .registry import register
from .settings import Settings

__all__ = ["NCODE", "Episode", "Member", "Settings", "from_pretrained", "register", "save_pretrained"]
