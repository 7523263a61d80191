"""`ncode completion`: completion scripts for shells."""

from __future__ import annotations

from dataclasses import make_dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Any

import tyro

from ncode.errors import check_choice

from ..experiments import EXPERIMENTS, find
from ..training import RunOptions
from .paper import PaperOptions
from .report import CollectOptions, ExplorerOptions, ReportOptions, TablesOptions
from .run import DEFAULT_PRESET, DemoOptions, PresetFlags, SweepArguments, form

SHELLS = ("bash", "zsh")
USAGE = """usage: ncode completion {bash,zsh}

bash: ncode completion bash > ~/.local/share/bash-completion/completions/ncode
zsh:  ncode completion zsh > FOLDER/_ncode, with FOLDER in $fpath"""


def completion(arguments: list[str]) -> int:
    """Print the completion script of a shell."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    shell = check_choice("shell", arguments[0], SHELLS)
    try:
        tyro.cli(_all_commands(), prog="ncode", args=["--tyro-print-completion", shell])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def _all_commands() -> Any:
    """All commands as one type, which tyro needs to see as a whole."""
    experiments = []
    for name in EXPERIMENTS:
        shape = form("Run", settings=find(name), run=RunOptions)
        default = shape(PresetFlags(), find(name).preset(DEFAULT_PRESET), RunOptions())
        experiments.append(Annotated[shape, tyro.conf.subcommand(name, default=default)])
    commands = {
        "run": make_dataclass("Run", [("experiment", tyro.conf.OmitSubcommandPrefixes[reduce(or_, experiments)])]),
        "report": ReportOptions,
        "demo": DemoOptions,
        "paper": PaperOptions,
        "sweep": form("Sweep", sweep=SweepArguments),
        "explorer": ExplorerOptions,
        "collect": CollectOptions,
        "tables": TablesOptions,
        "list": make_dataclass("List", []),
    }
    return reduce(or_, [Annotated[kind, tyro.conf.subcommand(name)] for name, kind in commands.items()])
