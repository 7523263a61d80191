"""`ncode paper`: every experiment with the paper's settings, and one report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from ..experiments.paper import SMOKE_STEPS, STEPS, run_paper, select
from ..report import write_report
from ..training import RunOptions
from ..training.devices import is_first_process
from ..training.options import Device
from .report import remark_on


@dataclass(frozen=True)
class PaperOptions:
    """Run every experiment with the preset "paper", one seed each, and write one report.

    The same command continues where an earlier one stopped, also on another machine to which --out was copied.
    """

    out: Path = Path("paper")
    """Folder for the runs, one folder per step, and for report.html."""
    only: tuple[str, ...] = ()
    """Steps to run: names of experiments, or of one experiment on one data set, such as classification-mnist. Default:
    all. Several processes may run different steps side by side in one folder."""
    seed: int = 0
    """Seed of all runs."""
    device: Device = "auto"
    """Where to train."""
    smoke: tyro.conf.FlagCreatePairsOff[bool] = False
    """Run each experiment for seconds instead, with the preset "smoke": the results mean nothing."""
    quiet: bool = False
    """Print only what is not run, and the path of the report."""


def paper(arguments: list[str]) -> int:
    """Run what is not done yet, write the report, and print its path. Exit status 1 if a step could not be run."""
    names = ", ".join(step.name for step in STEPS)
    given = tyro.cli(
        PaperOptions, prog="ncode paper", description=f"{PaperOptions.__doc__}\n\nSteps: {names}.", args=arguments
    )
    steps = select(SMOKE_STEPS if given.smoke else STEPS, given.only)
    options = RunOptions(seed=given.seed, out=given.out, device=given.device, quiet=given.quiet)
    say = (lambda text: None) if given.quiet else (lambda text: print(f"\n{text}", flush=True))
    outcomes = run_paper(steps, "smoke" if given.smoke else "paper", options, say)
    if not is_first_process():
        return 0
    refused = [outcome for outcome in outcomes if outcome.path is None]
    for outcome in refused:
        print(f"{outcome.step.name} was not run: {outcome.refused}")
    # All that is there, also from other steps and processes.
    found = sorted(path.parent for path in given.out.glob("*/*/run.json"))
    if found:
        print(write_report(found, given.out / "report.html", remark=remark_on))
    return 1 if refused else 0
