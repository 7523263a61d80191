"""Neural ODEs whose parameters depend on the data: controlled dynamics, controllers and a solver for both."""

from . import control, costs, dynamics
from ._version import __version__
from .block import NCODE, register
from .control import ClosedLoop, DataControl, Hebbian, OpenLoop, Static, TimeVarying
from .errors import InputError, SolveError, Status
from .ode import PID, Solution, Stats, solve

__all__ = [
    "NCODE",
    "PID",
    "ClosedLoop",
    "DataControl",
    "Hebbian",
    "InputError",
    "OpenLoop",
    "Solution",
    "SolveError",
    "Static",
    "Stats",
    "Status",
    "TimeVarying",
    "__version__",
    "control",
    "costs",
    "dynamics",
    "register",
    "solve",
]
