"""How a run ends early: with an error, or on request."""

from __future__ import annotations


class RunError(RuntimeError):
    """A run cannot continue. The message says what happened, at which step or file, and what to do.

    >>> raise RunError("the loss is not finite at step 12: try a smaller learning rate")
    Traceback (most recent call last):
    ncode_lab.training.errors.RunError: the loss is not finite at step 12: try a smaller learning rate
    """


class Stopped(SystemExit):
    """A run was stopped by Ctrl-C or SIGTERM after writing a checkpoint. Uncaught, it ends the process.

    >>> Stopped().code
    130
    """

    def __init__(self, code: int = 130):
        super().__init__(code)
