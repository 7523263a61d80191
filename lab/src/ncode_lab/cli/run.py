"""Commands that run experiments: `ncode list`, `run`, `demo` and `sweep`."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, make_dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from ncode import InputError

from ..data import check_consent
from ..experiments import EXPERIMENTS, PRESETS, Experiment, find
from ..experiments import run as run_experiment
from ..experiments.sweep import Sweep, SweepOptions, read_grid
from ..experiments.sweep import sweep as run_sweep
from ..explorer import write_explorer
from ..report import write_report
from ..training import RunOptions
from ..training.devices import is_first_process
from ..training.lock import lock_owner
from ..training.options import Device
from ..training.run_folder import RECORD, find_in_use, find_unfinished, list_unfinished, read_record
from .report import remark_on

DEFAULT_PRESET = "quick"
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
            print(f"{'':{width}}  --{preset:7}{_describe_preset(kind, preset)}")
    print(
        f"\nRun one: `ncode run NAME`, with --{DEFAULT_PRESET} unless another preset is given. All of its settings:"
        " `ncode run NAME --help`."
    )
    return 0


def _describe_preset(kind: type[Experiment], preset: str) -> str:
    if preset == "full":
        return f"see `ncode run {kind.name} --full --help`"
    full, settings = asdict(kind.preset("full")), asdict(kind.preset(preset))
    changes = [f"{each.replace('_', '-')} {_plain(value)}" for each, value in settings.items() if value != full[each]]
    return f"as --full, with {', '.join(changes)}" if changes else "as --full"


def _plain(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _preset_flags() -> Any:
    members = []
    for name in PRESETS:
        text = f"Start from the settings of the preset {name!r}{' (the default)' if name == DEFAULT_PRESET else ''}."
        flag = Annotated[bool, tyro.conf.FlagCreatePairsOff, tyro.conf.arg(help=text, help_behavior_hint="")]
        members.append((name, flag, False))
    flags = make_dataclass("PresetFlags", members, frozen=True)
    flags.__doc__ = "At most one preset. `ncode list` shows what each of them sets."
    return flags


PresetFlags = _preset_flags()


def form(title: str, **groups: Any) -> Any:
    """A dataclass that tyro reads from the command line: preset flags, then the fields of each group of options."""
    members = {"preset": PresetFlags, **groups}
    return make_dataclass(title, [(name, tyro.conf.OmitArgPrefixes[kind]) for name, kind in members.items()])


def chosen_preset(arguments: Sequence[str]) -> str:
    """The preset named in the arguments. Default: "quick"."""
    named = [preset for preset in PRESETS if f"--{preset}" in arguments]
    if len(named) > 1:
        raise InputError(f"choose one preset; given {' and '.join('--' + preset for preset in named)}")
    return named[0] if named else DEFAULT_PRESET


def take_experiment(arguments: list[str], command: str) -> tuple[type[Experiment], list[str]]:
    """The experiment named first, and the remaining arguments."""
    if not arguments or arguments[0].startswith("-"):
        raise InputError(f"name an experiment: `ncode {command} NAME`, with NAME one of {', '.join(EXPERIMENTS)}")
    return find(arguments[0]), arguments[1:]


def _check_device(command: str, arguments: Sequence[str]) -> None:
    """Say how to choose a GPU by its number, which --device does not."""
    if found := re.search(r"--device[= ]cuda:(\d+)", " ".join(arguments)):
        raise InputError(
            f"--device takes auto, cpu or cuda; for GPU {found[1]} alone, set a variable before the command:"
            f" CUDA_VISIBLE_DEVICES={found[1]} ncode {command} ... --device cuda"
        )


def run(arguments: list[str]) -> int:
    """Run an experiment, or resume a run."""
    if arguments in (["--help"], ["-h"]):
        print(f"usage: ncode run NAME [options]\n\nNAME: {', '.join(EXPERIMENTS)}. Help: `ncode run NAME --help`.")
        return 0
    kind, arguments = take_experiment(arguments, "run")
    _check_device("run", arguments)
    preset = chosen_preset(arguments)
    given = parse(kind.preset(preset), RunOptions(), arguments)
    folder = None
    if given.run.resume:
        folder = _folder_to_resume(kind.name, given.run.out, given.run.quiet)
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


def _folder_to_resume(name: str, out: Path, quiet: bool) -> Path:
    if (out / RECORD).is_file():
        other = read_record(out).get("experiment")
        if not isinstance(other, str):
            raise InputError(f"{out / RECORD} names no experiment: it is damaged, so start a new run without --resume")
        if other != name:
            raise InputError(f"{out} is a run of {other}: `ncode run {other} --resume --out {out}`")
        return out
    folder = find_unfinished(out, name)
    if folder is not None:
        others = [path for path in list_unfinished(out, name) if path != folder]
        if others and not quiet and is_first_process():
            print(
                f"resuming {folder}, the latest of {1 + len(others)} unfinished runs; for another one, give its folder:"
                f" --resume --out {others[0]}",
                file=sys.stderr,
            )
        return folder
    running = find_in_use(out, name)
    if running is not None:
        raise InputError(f"{running} is in use by {lock_owner(running)}: wait for it, or stop it first")
    raise InputError(f"there is no unfinished run of {name} in {out}: leave --resume out")


def _resume(kind: type[Experiment], folder: Path, arguments: list[str]) -> tuple[Any, str]:
    """Settings, options and preset of the original run. Arguments that contradict them are refused."""
    record = read_record(folder)
    try:
        settings, preset = kind.from_record(record)
        options = _recorded_options(record)
    except InputError as error:
        raise InputError(f"{folder} cannot be resumed: {error}") from error
    _check_preset(kind, preset, folder, arguments)
    check_consent(getattr(settings, "dataset", ""), arguments, f"{folder} was trained on")
    given = parse(settings, options, arguments)
    before = asdict(settings) | {name: getattr(options, name) for name in FIXED_OPTIONS}
    now = asdict(given.settings) | {name: getattr(given.run, name) for name in FIXED_OPTIONS}
    for name, value in before.items():
        if now[name] != value:
            raise InputError(
                f"{name} was {value!r} when {folder} was started and is {now[name]!r} now: leave it out to resume that"
                " run, or leave --resume out to start a new one"
            )
    return given, preset


def _check_preset(kind: type[Experiment], before: str, folder: Path, arguments: Sequence[str]) -> None:
    """Refuse a preset other than that of the run, unless both have the same settings."""
    named = [preset for preset in PRESETS if f"--{preset}" in arguments]
    for preset in named:
        if kind.preset(preset) != kind.preset(before):
            raise InputError(
                f"{folder} was started with --{before}, and --{preset} has other settings: leave --{preset} out to"
                " resume that run, or leave --resume out to start a new one"
            )


def _recorded_options(record: Mapping[str, Any]) -> RunOptions:
    """The options of the original run that a resumed one keeps, and --save, which it may change."""
    found = record.get("options")
    if not isinstance(found, dict) or not {"seed", "seeds"} <= found.keys():
        raise InputError("its run.json has no options: start a new run without --resume")
    options = RunOptions()
    return replace(options, **{name: found.get(name, getattr(options, name)) for name in (*FIXED_OPTIONS, "save")})


@dataclass(frozen=True)
class DemoOptions:
    """Run reflection, annuli and memory quickly, then write the report and the explorer: two or three minutes."""

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
    link = write_explorer(given.out / "explorer.html").name
    print(f"\n{write_report(paths, given.out / 'report.html', explorer=link, remark=remark_on)}")
    return 0


@dataclass(frozen=True, kw_only=True)
class SweepArguments(SweepOptions):
    """Run an experiment over a grid of settings, each point with several seeds."""

    grid: tuple[str, ...] = ()
    """Settings and their values: --grid lr=0.01,0.02 hidden=8,16."""
    seed: int = 0
    """The first seed."""
    seeds: int = 1
    """Seeds per point."""
    out: Path = Path("sweeps")
    """Where the sweep's folder goes. A sweep that exists there is resumed."""
    device: Device = "auto"
    """Where to train."""


def _parse_sweep(name: str, arguments: Sequence[str]) -> SweepArguments:
    shape = form("Sweep", sweep=SweepArguments)
    about = f"NAME is one of {', '.join(EXPERIMENTS)}.\nSettings of the grid: `ncode run {name} --help`."
    default = shape(PresetFlags(), SweepArguments())
    return tyro.cli(shape, prog=f"ncode sweep {name}", description=about, args=list(arguments), default=default).sweep


def sweep(arguments: list[str]) -> int:
    """Run a sweep, and print its table."""
    if arguments in (["--help"], ["-h"]):
        _parse_sweep("NAME", arguments)
    kind, arguments = take_experiment(arguments, "sweep")
    _check_device("sweep", arguments)
    given = _parse_sweep(kind.name, arguments)
    if sum(argument.partition("=")[0] == "--grid" for argument in arguments) > 1:
        raise InputError("--grid was given more than once: give all settings at once, --grid lr=0.01,0.02 hidden=8,16")
    preset = chosen_preset(arguments)
    shared: dict[str, Any] = {each.name: getattr(given, each.name) for each in fields(SweepOptions)}
    plan = Sweep(
        **shared,
        base=kind.preset(preset),
        preset=preset,
        grid=read_grid(kind, given.grid),
        options=RunOptions(seed=given.seed, seeds=given.seeds, out=given.out, device=given.device, quiet=True),
    )
    table, done = run_sweep(plan)
    print(table)
    return 0 if done else 1
