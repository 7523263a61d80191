"""`ncode collect`: the results of runs, one JSON object each, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from ..report import gather
from ..training import Trial
from ..training.files import explain_os_errors, json_text, write_file


@dataclass(frozen=True)
class CollectForm:
    """Copy the results of runs to results/EXPERIMENT/, one JSON file a trial; later ones take the place of earlier."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = (Path("runs"),)
    """Run folders, or folders of those."""
    out: Path = Path("results")
    """Where to put them."""


def answer(words: list[str]) -> int:
    """Copy, and say how many."""
    form = tyro.cli(CollectForm, prog="ncode collect", args=words)
    count = 0
    for run in gather(form.runs):
        for result in run.results:
            folder = form.out / result.experiment
            with explain_os_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
            name = Trial(result.model, result.dataset, result.seed).name
            text = json_text(result.as_json(), sort=True)
            write_file(folder / f"{result.preset}-{name}.json", text.encode())
            count += 1
    print(f"{count} result{'s' if count != 1 else ''} in {form.out}")
    return 0
