"""`ncode report`."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import tyro

from ..experiments import EXPERIMENTS, find
from ..report import Drawing, Run, write_report


@dataclass(frozen=True)
class ReportForm:
    """Write runs up as one self-contained HTML page."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = (Path("runs"),)
    """Run folders, folders of those, or result files."""
    out: Path = Path("report.html")
    """The page to write."""


def answer(words: list[str]) -> int:
    """Write the page, and print where it is."""
    form = tyro.cli(ReportForm, prog="ncode report", args=words)
    print(write_report(form.runs, form.out, {name: find(name).about() for name in EXPERIMENTS}, _redraw))
    return 0


def _redraw(run: Run, folder: Path) -> list[Drawing]:
    """The figures of results that lie outside a run folder."""
    name = run.text("experiment")
    if name not in EXPERIMENTS:
        return []
    place = Path(tempfile.mkdtemp(dir=folder))
    pictures = find(name).redraw(run.results)
    return [Drawing(picture.name, picture.caption, picture.save(place)) for picture in pictures]
