"""How a run ends early: with an error, or on request."""

from __future__ import annotations

from ncode import SolveError


class RunError(RuntimeError):
    """A run cannot continue. The message says what happened, at which step or file, and what to do.

    >>> raise RunError("the loss is not finite at step 12: try a smaller learning rate")
    Traceback (most recent call last):
    ncode_lab.training.errors.RunError: the loss is not finite at step 12: try a smaller learning rate
    """


def solve_failed(error: SolveError, where: str = "after training") -> RunError:
    """Describe an error of the solver by its first sample."""
    count, sample, t, status = len(error.samples), error.samples[0], error.times[0], error.statuses[0]
    return RunError(
        f"{count} sample{'s' if count > 1 else ''} could not be solved {where}: at t = {t:.6g}, sample {sample}"
        f" {status.sentence}. Try a smaller learning rate, or another seed"
    )


class Stopped(SystemExit):
    """A run was stopped by Ctrl-C or SIGTERM after writing a checkpoint. Uncaught, it ends the process.

    >>> Stopped().code
    130
    """

    def __init__(self, code: int = 130):
        super().__init__(code)
