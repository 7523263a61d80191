"""The command `ncode`."""

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status.

    Args:
        argv: The arguments. Default: those of the process.

    >>> from ncode_lab.cli import main
    >>> main(["list"])  # doctest: +ELLIPSIS
    reflection ...
    0
    """
    try:
        from .dispatch import dispatch  # here, since importing torch takes seconds, in which Ctrl-C may be pressed

        return dispatch(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        print("ncode: stopped. What was written is complete; a run continues with --resume", file=sys.stderr)
        return 130
