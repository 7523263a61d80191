"""Arguments that several commands share: the experiment's name and the preset flags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import make_dataclass
from typing import Annotated, Any

import tyro

from ncode import InputError

from ..experiments import EXPERIMENTS, PRESETS, Experiment, find

DEFAULT_PRESET = "quick"


def _preset_flags() -> Any:
    fields = []
    for name in PRESETS:
        text = f"Start from the settings of the preset {name!r}{' (the default)' if name == DEFAULT_PRESET else ''}."
        flag = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help=text, help_behavior_hint="")]
        fields.append((name, flag, False))
    flags = make_dataclass("PresetFlags", fields, frozen=True)
    flags.__doc__ = "At most one preset. `ncode list` shows what each of them sets."
    return flags


PresetFlags = _preset_flags()


def form(title: str, **groups: Any) -> Any:
    """A dataclass that tyro reads from the command line: preset flags, then the fields of each group of options."""
    members = {"preset": PresetFlags, **groups}
    return make_dataclass(title, [(name, tyro.conf.OmitArgPrefixes[kind]) for name, kind in members.items()])


def chosen_preset(arguments: Sequence[str]) -> str:
    """The preset named in the arguments. Default: "quick".

    >>> chosen_preset(["--steps", "3", "--smoke"])
    'smoke'
    """
    named = [preset for preset in PRESETS if f"--{preset}" in arguments]
    if len(named) > 1:
        raise InputError(f"choose one preset; given {' and '.join('--' + preset for preset in named)}")
    return named[0] if named else DEFAULT_PRESET


def take_experiment(arguments: list[str], command: str) -> tuple[type[Experiment], list[str]]:
    """The experiment named first, and the remaining arguments.

    >>> take_experiment(["reflection", "--steps", "3"], "run")[1]
    ['--steps', '3']
    """
    if not arguments or arguments[0].startswith("-"):
        raise InputError(f"name an experiment: `ncode {command} NAME`, with NAME one of {', '.join(EXPERIMENTS)}")
    return find(arguments[0]), arguments[1:]
