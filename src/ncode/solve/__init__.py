"""Integrates (x, theta) for a batch; knows nothing of tasks, layers or files."""

from .api import solve
from .solution import Dense, Solution, Stats
from .status import InputError, SolveError, Status
from .stepsize import PID
from .tableau import METHODS, Tableau

__all__ = [
    "METHODS",
    "PID",
    "Dense",
    "InputError",
    "Solution",
    "SolveError",
    "Stats",
    "Status",
    "Tableau",
    "solve",
]
