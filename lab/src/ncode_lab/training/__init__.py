"""Training: tasks, run folders, checkpoints that a run goes on from, and what the user sees meanwhile."""

from .errors import RunError, Stopped
from .options import RunOptions
from .progress import Progress
from .result import Column, Reported, Result, Trial
from .run_folder import RunFolder
from .task import Loss, Task
from .trial_context import TrialContext

__all__ = [
    "Column",
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
    "TrialContext",
]
