"""`ncode sweep`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from ..experiments import EXPERIMENTS
from ..experiments.sweep import Sweep, read_grid, sweep
from ..training import RunOptions
from .form import chosen_preset
from .naming import take_experiment


@dataclass(frozen=True)
class SweepForm:
    """Run an experiment over a grid of settings, each point with several seeds."""

    grid: tuple[str, ...] = ()
    """Settings and their values: --grid lr=0.01,0.02 hidden=8,16."""
    metric: str | None = None
    """What the points are ranked by; the experiment's first column, unless told."""
    maximise: bool = False
    """Whether more of it is better."""
    seed: int = 0
    """The first seed."""
    seeds: int = 1
    """Seeds a point."""
    out: Path = Path("sweeps")
    """Where the sweep's folder goes: a sweep of the same name there is gone on with."""
    name: str | None = None
    """Name of the sweep's folder; made of the experiment and its grid, unless told."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to run."""
    workers: int = 1
    """Points that run at the same time."""
    cluster: Literal["none", "local", "slurm"] = "none"
    """Who runs the points: this process, processes of submitit on this machine, or a Slurm cluster."""
    partition: str | None = None
    """Slurm's partition."""
    minutes: int = 240
    """Slurm's limit for a point."""
    smoke: tyro.conf.FlagCreatePairsOff[bool] = False
    """Settings begin from the preset of that name."""
    quick: tyro.conf.FlagCreatePairsOff[bool] = False
    """Settings begin from the preset of that name. Taken unless told otherwise."""
    paper: tyro.conf.FlagCreatePairsOff[bool] = False
    """Settings begin from the preset of that name."""


def answer(words: list[str]) -> int:
    """Run the sweep, and print its table."""
    if words in (["--help"], ["-h"]):
        print(f"usage: ncode sweep NAME --grid SETTING=VALUE,... [options]\n\nNAME: {', '.join(EXPERIMENTS)}")
        return 0
    kind, rest = take_experiment(words, "sweep")
    form = tyro.cli(SweepForm, prog=f"ncode sweep {kind.name}", args=rest)
    preset = chosen_preset(rest)
    plan = Sweep(
        base=kind.preset(preset),
        preset=preset,
        grid=read_grid(kind, form.grid),
        metric=form.metric or kind.columns[0].metric,
        maximise=form.maximise,
        options=RunOptions(seed=form.seed, seeds=form.seeds, out=form.out, device=form.device, quiet=True),
        name=form.name,
        workers=form.workers,
        cluster=form.cluster,
        partition=form.partition,
        minutes=form.minutes,
    )
    print(sweep(plan))
    return 0
