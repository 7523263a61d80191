"""Dispatch the subcommand."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import NamedTuple

from ncode import __version__
from ncode.errors import check_choice

from .errors import check_arguments, explain


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
    "paper": Command("run every experiment with the paper's settings, then write the report", "paper", "paper"),
    "sweep": Command("run an experiment over a grid of settings", "run", "sweep"),
    "collect": Command("copy the results of runs to results/, one JSON file per trial", "report", "collect"),
    "tables": Command("write the results under results/ into the tables of a Markdown file", "report", "tables"),
    "explorer": Command("write the explorer, a page that trains small models in a browser", "report", "explorer"),
    "completion": Command("print a shell completion script: ncode completion bash", "completion", "completion"),
}


def dispatch(arguments: Sequence[str]) -> int:
    """Run a command and return the exit status; an error becomes a sentence on stderr."""
    try:
        status = _dispatch(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        _discard_output()
        return 141
    except Exception as error:
        message, status = explain(error, next(iter(arguments), ""))
        with suppress(OSError):
            print(f"ncode: {message}", file=sys.stderr)
        if isinstance(error, OSError):
            _discard_output()
        return status


def _dispatch(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_usage())
        return 0
    if arguments[0] == "--version":
        print(f"ncode {__version__}")
        return 0
    check_arguments(arguments)
    command = COMMANDS[check_choice("command", arguments[0], COMMANDS)]
    return getattr(import_module(f".{command.module}", __package__), command.function)(list(arguments[1:]))


def _discard_output() -> None:
    """Leave out what is still buffered, which could not be written at the end of the process either.

    The reader of a pipe, such as `head`, has closed it, or the disk is full.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage() -> str:
    commands = "\n".join(f"  {name:12}{command.help}" for name, command in COMMANDS.items())
    return (
        "usage: ncode COMMAND ...\n\nExperiments with neurally controlled ODEs.\n\n"
        f"{commands}\n\nHelp for a command: `ncode COMMAND --help`. Version: `ncode --version`."
    )
