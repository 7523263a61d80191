"""Controllers: what sets the control theta at t0, and what drives it from there."""

from .base import Controller, State
from .closed_loop import ClosedLoop, Drift, Feedback
from .input_control import InputControl
from .open_loop import DataControl, OpenLoop
from .parts import Parts
from .plastic import Hebbian, Plastic
from .static import Static, Zero
from .time_varying import TimeVarying

__all__ = [
    "ClosedLoop",
    "Controller",
    "DataControl",
    "Drift",
    "Feedback",
    "Hebbian",
    "InputControl",
    "OpenLoop",
    "Parts",
    "Plastic",
    "State",
    "Static",
    "TimeVarying",
    "Zero",
]
