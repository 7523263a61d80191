"""Training: tasks, run folders, checkpoints from which a run resumes bit by bit, and progress."""

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
