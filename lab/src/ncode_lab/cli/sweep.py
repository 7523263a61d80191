"""`ncode sweep`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import tyro

from ..experiments import EXPERIMENTS
from ..experiments.sweep import Sweep, SweepOptions, read_grid
from ..experiments.sweep import sweep as run_sweep
from ..training import RunOptions
from ..training.options import Device
from .arguments import PresetFlags, chosen_preset, form, take_experiment


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


def sweep(arguments: list[str]) -> int:
    """Run a sweep, and print its table."""
    if arguments in (["--help"], ["-h"]):
        print(f"usage: ncode sweep NAME --grid SETTING=VALUE,... [options]\n\nNAME: {', '.join(EXPERIMENTS)}")
        return 0
    kind, arguments = take_experiment(arguments, "sweep")
    shape = form("Sweep", sweep=SweepArguments)
    default = shape(PresetFlags(), SweepArguments())
    given: SweepArguments = tyro.cli(shape, prog=f"ncode sweep {kind.name}", args=arguments, default=default).sweep
    preset = chosen_preset(arguments)
    shared = {each.name: getattr(given, each.name) for each in fields(SweepOptions)}
    plan = Sweep(
        **shared | {"metric": given.metric or kind.columns[0].metric},
        base=kind.preset(preset),
        preset=preset,
        grid=read_grid(kind, given.grid),
        options=RunOptions(seed=given.seed, seeds=given.seeds, out=given.out, device=given.device, quiet=True),
    )
    print(run_sweep(plan))
    return 0
