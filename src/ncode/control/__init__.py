"""Controllers: who sets the control theta at t0, and what drives it from there."""

from .base import Controller, State
from .closed_loop import ClosedLoop
from .data_control import DataControl
from .drift import Drift
from .feedback import Feedback
from .hebbian import Hebbian
from .motion import Free, Motion, Outer, Still
from .open_loop import OpenLoop
from .parts import Parts
from .static import Static
from .time_varying import TimeVarying
from .zero import Zero

__all__ = [
    "ClosedLoop",
    "Controller",
    "DataControl",
    "Drift",
    "Feedback",
    "Free",
    "Hebbian",
    "Motion",
    "OpenLoop",
    "Outer",
    "Parts",
    "State",
    "Static",
    "Still",
    "TimeVarying",
    "Zero",
]
