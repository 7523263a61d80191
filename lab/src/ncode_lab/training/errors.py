"""How a run ends before its time."""

from __future__ import annotations


class RunError(RuntimeError):
    """A run that cannot go on: the message says what happened, at which step or file, and what to do.

    >>> raise RunError("the loss is not finite at step 12; try a smaller learning rate")
    Traceback (most recent call last):
    ncode_lab.training.errors.RunError: the loss is not finite at step 12; try a smaller learning rate
    """


class Stopped(SystemExit):
    """A run that was asked to stop (Ctrl-C or SIGTERM), and has written a checkpoint. Nobody need catch it.

    >>> Stopped().code
    130
    """

    def __init__(self, code: int = 130):
        super().__init__(code)
