"""The command that repeats a run."""

from __future__ import annotations

import os
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..training import RunOptions
from .base import Experiment

# Those that change what is computed, or on what; not where it is written.
_OPTIONS = ("seed", "seeds", "device", "devices", "nodes", "precision", "deterministic", "graph", "save")
# Folders of one machine. Outside the current folder they are left out: others have their data elsewhere.
_PLACES = ("data_dir", "fid_weights")
# The run cannot be repeated without them.
_INPUTS = ("dataset", "source")


def repeat_command(experiment: Experiment, preset: str, options: RunOptions) -> str:
    """The command that runs an experiment with the same settings, quoted for a shell.

    It names what differs from the preset, with paths relative to the current folder.

    >>> from ncode_lab.experiments import find
    >>> repeat_command(find("annuli")(models=("node",), steps=5), "paper", RunOptions(seeds=3))
    'ncode run annuli --paper --models node --steps 5 --seeds 3'
    """
    words = ["ncode", "run", experiment.name, f"--{preset}"]
    words += _changes(experiment, type(experiment).preset(preset), [each.name for each in fields(experiment)])
    words += _changes(options, RunOptions(), _OPTIONS)
    return shlex.join(words)


def _changes(now: Any, usual: Any, names: Any) -> list[str]:
    words = []
    for name in names:
        value = getattr(now, name)
        if value != getattr(usual, name) and not (name in _PLACES and _is_elsewhere(value)):
            words += _words(name, _relative(value) if name in (*_PLACES, *_INPUTS) else value)
    return words


def _words(name: str, value: Any) -> list[str]:
    option = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    return [f"--{option}", *map(str, value if isinstance(value, tuple) else (value,))]


def _is_elsewhere(path: str) -> bool:
    return Path(path).is_absolute() and not Path(path).is_relative_to(Path.cwd())


def _relative(path: str) -> str:
    return os.path.relpath(path) if Path(path).is_absolute() else path
