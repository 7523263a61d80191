"""Training: tasks, run folders, checkpoints that a run goes on from, and what the user sees meanwhile."""

from .desk import Desk
from .errors import RunError, Stopped
from .folder import RunFolder
from .options import RunOptions
from .progress import Progress
from .result import Column, Reported, Result, Trial
from .task import Loss, Task

__all__ = [
    "Column",
    "Desk",
    "Loss",
    "Progress",
    "Reported",
    "Result",
    "RunError",
    "RunFolder",
    "RunOptions",
    "Stopped",
    "Task",
    "Trial",
]
