"""Neural ODEs whose parameters depend on the data: controlled dynamics, controllers and a solver for both."""

from ._version import __version__
from .solve import PID, InputError, Solution, SolveError, Stats, Status, solve

__all__ = ["PID", "InputError", "Solution", "SolveError", "Stats", "Status", "__version__", "solve"]
