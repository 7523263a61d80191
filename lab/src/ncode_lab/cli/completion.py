"""`ncode completion`: what a shell needs to complete our words and options."""

from __future__ import annotations

from dataclasses import make_dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Any

import tyro

from ncode.checks import check_choice

from ..experiments import EXPERIMENTS, find
from ..training import RunOptions
from .collecting import CollectForm
from .demo import DemoForm
from .form import Form, Preset
from .reporting import ReportForm
from .sweeping import SweepForm
from .tables import TablesForm

SHELLS = ("bash", "zsh")
HOW = """usage: ncode completion {bash,zsh}

bash: ncode completion bash > ~/.local/share/bash-completion/completions/ncode
zsh:  ncode completion zsh > a folder of $fpath, as _ncode"""


def answer(words: list[str]) -> int:
    """Print the script."""
    if not words or words[0] in ("-h", "--help"):
        print(HOW)
        return 0
    shell = check_choice("shell", words[0], SHELLS)
    try:
        tyro.cli(_tree(), prog="ncode", args=["--tyro-print-completion", shell])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def _tree() -> Any:
    """All words as one type: what `main` tells apart by hand, tyro may see as a whole."""
    forms = {
        name: Annotated[
            Form[kind], tyro.conf.subcommand(name, default=Form(Preset(), kind.preset("quick"), RunOptions()))
        ]
        for name, kind in ((name, find(name)) for name in EXPERIMENTS)
    }
    choice = reduce(or_, forms.values())
    running = make_dataclass("Running", [("experiment", tyro.conf.OmitSubcommandPrefixes[choice])])
    words = {
        "run": running,
        "report": ReportForm,
        "demo": DemoForm,
        "sweep": SweepForm,
        "collect": CollectForm,
        "tables": TablesForm,
        "list": make_dataclass("Listing", []),
    }
    return reduce(or_, (Annotated[kind, tyro.conf.subcommand(name)] for name, kind in words.items()))
