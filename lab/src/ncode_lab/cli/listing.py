"""`ncode list`."""

from __future__ import annotations

from ncode import InputError

from ..experiments import EXPERIMENTS, PRESETS, find


def answer(words: list[str]) -> int:
    """Print the experiments, one line each."""
    if words and words != ["--help"] and words != ["-h"]:
        raise InputError(f"`ncode list` takes nothing more; given {' '.join(words)}")
    width = max(map(len, EXPERIMENTS)) + 2
    for name in EXPERIMENTS:
        kind = find(name)
        print(f"{name:{width}}{kind.line}")
        for preset in PRESETS:
            changes = kind.presets.get(preset, {})
            print(f"{'':{width}}  --{preset:7}{_changes(changes)}")
    print("\nRun one: `ncode run NAME`. Its settings: `ncode run NAME --help`. The preset is --quick, unless told.")
    return 0


def _changes(changes: object) -> str:
    if not isinstance(changes, dict) or not changes:
        return "all settings at their defaults"
    return ", ".join(f"{name} {_plain(value)}" for name, value in changes.items())


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
