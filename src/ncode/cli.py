"""The `ncode` command."""

import argparse
import difflib
import sys
from collections.abc import Callable, Sequence

from ncode._version import __version__


def list_experiments() -> int:
    """Print the experiments that `ncode` can run."""
    print("No experiments yet: they come with the next release.")
    return 0


COMMANDS: dict[str, Callable[[], int]] = {"list": list_experiments}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status.

    Example:
        >>> main(["list"])
        No experiments yet: they come with the next release.
        0
    """
    parser = argparse.ArgumentParser(prog="ncode", description="Neurally controlled ODEs for PyTorch.")
    parser.add_argument("--version", action="version", version=f"ncode {__version__}")
    parser.add_argument("command", nargs="?", help="list: the experiments that can be run")
    name = parser.parse_args(argv).command
    if name is None:
        parser.print_help()
        return 0
    if name not in COMMANDS:
        parser.error(_unknown(name))
    return COMMANDS[name]()


def _unknown(name: str) -> str:
    nearest = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"choose one of: {', '.join(COMMANDS)}."
    return f"there is no command {name!r}; {hint}"


if __name__ == "__main__":
    sys.exit(main())
