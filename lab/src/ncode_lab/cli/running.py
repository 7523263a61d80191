"""`ncode run`."""

from __future__ import annotations

from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from ncode import InputError

from ..experiments import EXPERIMENTS, Experiment, run
from ..training import RunOptions
from ..training.devices import is_first_process
from ..training.run_folder import find_unfinished, read_record
from .form import Form, chosen_preset, parse
from .naming import take_experiment

# What a run that is gone on with has to keep: the rest (devices, folder, how much is said) may change.
KEPT = ("seed", "seeds", "precision", "deterministic")


def answer(words: list[str]) -> int:
    """Run an experiment, new or gone on with."""
    if words in (["--help"], ["-h"]):
        print(f"usage: ncode run NAME [options]\n\nNAME: {', '.join(EXPERIMENTS)}. `ncode run NAME --help` tells more.")
        return 0
    kind, rest = take_experiment(words, "run")
    preset = chosen_preset(rest)
    program = f"ncode run {kind.name}"
    form = parse(kind.preset(preset), RunOptions(), rest, program)
    if not form.options.resume:
        path = run(form.settings, preset, form.options)
    else:
        before = find_unfinished(form.options.out, kind.name)
        if before is None:
            raise InputError(f"there is no unfinished run of {kind.name} in {form.options.out}: leave --resume out")
        form, preset = _as_before(kind, before, rest, program)
        path = run(form.settings, preset, form.options, before)
    if not form.options.quiet and is_first_process():
        print(path)
    return 0


def _as_before(kind: type[Experiment], folder: Path, words: list[str], program: str) -> tuple[Form, str]:
    """The form as it was filled in when the run began. What is said otherwise now is refused."""
    record = read_record(folder)
    settings = from_json(kind, record["settings"])
    options = replace(RunOptions(), **{name: record["options"][name] for name in KEPT})
    form = parse(settings, options, words, program)
    before = asdict(settings) | {name: getattr(options, name) for name in KEPT}
    now = asdict(form.settings) | {name: getattr(form.options, name) for name in KEPT}
    for name, value in before.items():
        if now[name] != value:
            raise InputError(
                f"{name} was {value!r} when {folder} began and is {now[name]!r} now: leave it out to go on with that"
                " run, or leave --resume out to begin another"
            )
    return form, record["preset"]


def from_json(kind: type[Experiment], settings: dict[str, Any]) -> Experiment:
    """Settings as they were written down. JSON has lists where settings have tuples."""
    known = {field.name for field in fields(kind)}
    strange = sorted(set(settings) - known)
    if strange:
        raise InputError(f"the run was begun by another version: {kind.name} has no setting {', '.join(strange)}")
    return kind(**{name: _tuples(value) for name, value in settings.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
