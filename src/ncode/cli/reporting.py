"""`ncode report`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from ..report import write_report


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
    print(write_report(form.runs, form.out))
    return 0
