"""`ncode list`, `ncode run` and `ncode demo`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import tyro

from ncode import InputError

from ..experiments import EXPERIMENTS, PRESETS, Experiment, find
from ..experiments import run as run_experiment
from ..report import write_report
from ..training import RunOptions
from ..training.devices import is_first_process
from ..training.run_folder import find_unfinished, read_record
from .arguments import DEFAULT_PRESET, PresetFlags, chosen_preset, form, take_experiment

# Options that a resumed run must keep: the others (devices, folder, verbosity) may change.
FIXED_OPTIONS = ("seed", "seeds", "precision", "deterministic")
DEMO = ("reflection", "annuli", "memory")


def list_experiments(arguments: list[str]) -> int:
    """Print the experiments and what their presets set."""
    if arguments and arguments not in (["--help"], ["-h"]):
        raise InputError(f"`ncode list` takes no arguments; given {' '.join(arguments)}")
    width = max(map(len, EXPERIMENTS)) + 2
    for name in EXPERIMENTS:
        kind = find(name)
        print(f"{name:{width}}{kind.line}")
        for preset in PRESETS:
            changes = kind.presets.get(preset, {})
            settings = ", ".join(f"{setting} {_plain(value)}" for setting, value in changes.items())
            print(f"{'':{width}}  --{preset:7}{settings or 'all settings at their defaults'}")
    print(
        f"\nRun one: `ncode run NAME`. Its settings: `ncode run NAME --help`. The default preset is {DEFAULT_PRESET}."
    )
    return 0


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def run(arguments: list[str]) -> int:
    """Run an experiment, or resume a run."""
    if arguments in (["--help"], ["-h"]):
        print(f"usage: ncode run NAME [options]\n\nNAME: {', '.join(EXPERIMENTS)}. Help: `ncode run NAME --help`.")
        return 0
    kind, arguments = take_experiment(arguments, "run")
    preset = chosen_preset(arguments)
    given = parse(kind.preset(preset), RunOptions(), arguments)
    folder = None
    if given.run.resume:
        folder = find_unfinished(given.run.out, kind.name)
        if folder is None:
            raise InputError(f"there is no unfinished run of {kind.name} in {given.run.out}: leave --resume out")
        given, preset = _resume(kind, folder, arguments)
    path = run_experiment(given.settings, preset, given.run, folder)
    if not given.run.quiet and is_first_process():
        print(path)
    return 0


def parse(settings: Experiment, options: RunOptions, arguments: Sequence[str]) -> Any:
    """Parse arguments, with these settings and options as defaults, into an object with `settings` and `run`."""
    kind = type(settings)
    shape = form("Run", settings=kind, run=RunOptions)
    return tyro.cli(
        shape,
        prog=f"ncode run {kind.name}",
        description=f"{kind.line}\n\n{kind.question}",
        args=list(arguments),
        default=shape(PresetFlags(), settings, options),
        config=(tyro.conf.HelptextFromCommentsOff,),
    )


def _resume(kind: type[Experiment], folder: Path, arguments: list[str]) -> tuple[Any, str]:
    """Settings, options and preset of the original run. Arguments that contradict them are refused."""
    record = read_record(folder)
    settings = settings_from_json(kind, record["settings"])
    options = replace(RunOptions(), **{name: record["options"][name] for name in FIXED_OPTIONS})
    given = parse(settings, options, arguments)
    before = asdict(settings) | {name: getattr(options, name) for name in FIXED_OPTIONS}
    now = asdict(given.settings) | {name: getattr(given.run, name) for name in FIXED_OPTIONS}
    for name, value in before.items():
        if now[name] != value:
            raise InputError(
                f"{name} was {value!r} when {folder} was started and is {now[name]!r} now: leave it out to resume that"
                " run, or leave --resume out to start a new one"
            )
    return given, record["preset"]


def settings_from_json(kind: type[Experiment], settings: dict[str, Any]) -> Experiment:
    """Settings as run.json holds them. JSON has lists where settings have tuples."""
    unknown = sorted(set(settings) - {field.name for field in fields(kind)})
    if unknown:
        raise InputError(f"the run was started by another version: {kind.name} has no setting {', '.join(unknown)}")
    return kind(**{name: _to_tuples(value) for name, value in settings.items()})


def _to_tuples(value: Any) -> Any:
    return tuple(map(_to_tuples, value)) if isinstance(value, list) else value


@dataclass(frozen=True)
class DemoOptions:
    """Run reflection, annuli and memory quickly, then write the report: two or three minutes on two cores."""

    out: Path = Path("out/demo")
    """Folder for the runs and the report."""
    seed: int = 0
    """Seed of all three."""
    smoke: tyro.conf.FlagCreatePairsOff[bool] = False
    """Train for seconds instead of minutes: the figures show nothing yet."""
    quiet: bool = False
    """Print only the path of the report."""


def demo(arguments: list[str]) -> int:
    """Run three experiments and print the path of their report."""
    given = tyro.cli(DemoOptions, prog="ncode demo", args=arguments)
    preset = "smoke" if given.smoke else DEFAULT_PRESET
    options = RunOptions(seed=given.seed, out=given.out, quiet=given.quiet, device="cpu")
    paths = []
    for name in DEMO:
        kind = find(name)
        if not given.quiet:
            print(f"\n{name}: {kind.line}", flush=True)
        paths.append(run_experiment(kind.preset(preset), preset, options))
    print(f"\n{write_report(paths, given.out / 'report.html')}")
    return 0
