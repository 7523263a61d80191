"""`ncode demo`: what a new user sees first."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from ..experiments import find, run
from ..report import write_report
from ..training import RunOptions

SHOWN = ("reflection", "annuli", "memory")


@dataclass(frozen=True)
class DemoForm:
    """Reflection, annuli and memory in quick form, then the report: two or three minutes on two cores."""

    out: Path = Path("out/demo")
    """Where runs and page go."""
    seed: int = 0
    """Seed of all three."""
    smoke: tyro.conf.FlagCreatePairsOff[bool] = False
    """Seconds instead of minutes: the pictures show nothing yet."""
    quiet: bool = False
    """Say nothing on the way."""


def answer(words: list[str]) -> int:
    """Run the three, write the page, and print where it is."""
    form = tyro.cli(DemoForm, prog="ncode demo", args=words)
    preset = "smoke" if form.smoke else "quick"
    options = RunOptions(seed=form.seed, out=form.out, quiet=form.quiet, device="cpu")
    paths = []
    for name in SHOWN:
        kind = find(name)
        if not form.quiet:
            print(f"\n{name}: {kind.line}", flush=True)
        paths.append(run(kind.preset(preset), preset, options))
    print(f"\n{write_report(paths, form.out / 'report.html')}")
    return 0
