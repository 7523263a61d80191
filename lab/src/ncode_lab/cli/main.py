"""Dispatch the subcommand."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NamedTuple

from ncode import InputError, __version__
from ncode.errors import check_choice

from ..training.errors import RunError


class Command(NamedTuple):
    """A subcommand: its help, and the module and function that take its arguments and return the exit status."""

    help: str
    module: str
    function: str


COMMANDS = {
    "list": Command("list the experiments and their presets", "run", "list_experiments"),
    "run": Command("run an experiment: ncode run reflection --quick", "run", "run"),
    "report": Command("write an HTML report of runs: ncode report runs/*", "report", "report"),
    "demo": Command("run reflection, annuli and memory quickly, then write the report", "run", "demo"),
    "sweep": Command("run an experiment over a grid of settings", "run", "sweep"),
    "collect": Command("copy the results of runs to results/, one JSON file per trial", "report", "collect"),
    "tables": Command("write the results under results/ into the tables of a Markdown file", "report", "tables"),
    "completion": Command("print a shell completion script: ncode completion bash", "completion", "completion"),
}
# The extra of ncode-lab that installs a package; the others come with ncode-lab itself.
EXTRAS = {"submitit": "sweep", "tensorboard": "tensorboard"}
EXTRAS |= dict.fromkeys(("PIL", "numpy", "scipy", "sklearn", "openTSNE"), "images")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status.

    Args:
        argv: The arguments. Default: those of the process.

    >>> from ncode_lab.cli import main
    >>> main(["list"])  # doctest: +ELLIPSIS
    reflection ...
    0
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0
    if arguments[0] == "--version":
        print(f"ncode {__version__}")
        return 0
    try:
        command = COMMANDS[check_choice("command", arguments[0], COMMANDS)]
        status = getattr(import_module(f".{command.module}", __package__), command.function)(arguments[1:])
        sys.stdout.flush()
        return status
    except InputError as error:
        return _fail(str(error), 2)
    except RunError as error:
        return _fail(str(error), 1)
    except ModuleNotFoundError as error:
        package = (error.name or "ncode").partition(".")[0]
        if package in ("ncode", "ncode_lab"):
            raise
        install = f"'ncode-lab[{EXTRAS[package]}]'" if package in EXTRAS else "ncode-lab"
        return _fail(f"`ncode {arguments[0]}` needs the package {package}: pip install {install}", 2)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe. What is buffered must not be written at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _usage() -> str:
    commands = "\n".join(f"  {name:12}{command.help}" for name, command in COMMANDS.items())
    return (
        "usage: ncode COMMAND ...\n\nExperiments with neurally controlled ODEs.\n\n"
        f"{commands}\n\nHelp for a command: `ncode COMMAND --help`. Version: `ncode --version`."
    )


def _fail(message: str, status: int) -> int:
    print(f"ncode: {message}", file=sys.stderr)
    return status
