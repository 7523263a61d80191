"""`ncode report`, `ncode explorer`, `ncode collect` and `ncode tables`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import tyro

from ncode import InputError

from ..experiments import EXPERIMENTS, find
from ..explorer import write_explorer
from ..report import (
    BLOCK,
    Drawing,
    Run,
    as_markdown,
    gather,
    make_table,
    replace_block,
    sort_results,
    stale_blocks,
    write_report,
)
from ..training import Result, Trial
from ..training.files import check_file_name, explain_os_errors, write_file, write_json


@dataclass(frozen=True)
class ReportOptions:
    """Write a self-contained HTML report of runs."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = (Path("runs"),)
    """Run folders, folders of run folders, or result files."""
    out: Path = Path("report.html")
    """The file to write."""


def report(arguments: list[str]) -> int:
    """Write the report, and print its path."""
    given = tyro.cli(ReportOptions, prog="ncode report", args=arguments)
    about = {name: find(name).about() for name in EXPERIMENTS}
    print(write_report(given.runs, given.out, about, _redraw, remark=remark_on))
    return 0


def remark_on(group: Sequence[Result]) -> str:
    """What their experiment says next to the name of a model, given its results on one problem."""
    name = group[0].experiment if group else ""
    try:
        return find(name).remark(group) if name in EXPERIMENTS else ""
    except Exception:  # results may hold anything: see `write_report`
        return ""


def _redraw(run: Run, folder: Path) -> list[Drawing]:
    """Draw the figures of results outside a run folder."""
    name = run.text("experiment")
    if name not in EXPERIMENTS:
        return []
    target, kind = Path(tempfile.mkdtemp(dir=folder)), find(name)
    ordered = sort_results(run.results, kind.about()["models"])  # as in tables, not as file names are sorted
    return [Drawing(each.name, each.caption, each.save(target)) for each in kind.redraw(ordered)]


@dataclass(frozen=True)
class ExplorerOptions:
    """Write the explorer: one self-contained page that trains small models in a browser."""

    out: Path = Path("explorer.html")
    """The file to write, or a folder for explorer.html."""


def explorer(arguments: list[str]) -> int:
    """Write the explorer, and print its path."""
    print(write_explorer(tyro.cli(ExplorerOptions, prog="ncode explorer", args=arguments).out))
    return 0


@dataclass(frozen=True)
class CollectOptions:
    """Copy the results of runs to results/EXPERIMENT/, one JSON file per trial. Later results replace earlier ones."""

    runs: tyro.conf.Positional[tuple[Path, ...]] = (Path("runs"),)
    """Run folders, or folders of run folders."""
    out: Path = Path("results")
    """Where to put the files."""


def collect(arguments: list[str]) -> int:
    """Copy the results, and print their number."""
    given = tyro.cli(CollectOptions, prog="ncode collect", args=arguments)
    results = [result for run in _gather_aloud(given.runs) for result in run.results]
    # Names come from files of others, perhaps, and must not lead out of the folder. Checked before anything is written.
    paths = [given.out / _place(result) for result in results]
    for path, result in zip(paths, results, strict=True):
        with explain_os_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, result.as_json(), sort=True)
    print(f"{len(results)} result{'s' if len(results) != 1 else ''} in {given.out}")
    return 0


def _gather_aloud(places: Sequence[Path]) -> list[Run]:
    """Runs and results, with a line on stderr for each thing that is missing or damaged: else nobody would know."""
    runs = gather(places)
    for run in runs:
        for note in run.notes:
            print(f"{run.name}: {note}", file=sys.stderr)
    return runs


def _place(result: Result) -> Path:
    """Where a result goes: EXPERIMENT/PRESET-TRIAL.json."""
    trial = Trial(result.model, result.dataset, result.seed).name
    name = check_file_name("preset and trial", f"{result.preset}-{trial}.json")
    return Path(check_file_name("experiment", result.experiment), name)


@dataclass(frozen=True)
class TablesOptions:
    """Write results into the blocks <!-- table:EXPERIMENT --> of Markdown files."""

    files: tyro.conf.Positional[tuple[Path, ...]] = (Path("README.md"),)
    """Markdown files."""
    results: Path = Path("results")
    """Where the results are: results/EXPERIMENT/*.json."""
    check: tyro.conf.FlagCreatePairsOff[bool] = False
    """Write nothing; fail if a table differs from the results."""


def tables(arguments: list[str]) -> int:
    """Write the tables, or check them."""
    given = tyro.cli(TablesOptions, prog="ncode tables", args=arguments)
    for file in given.files:
        if not file.is_file():
            raise InputError(f"there is no file {file}")
        text = file.read_text(encoding="utf-8")
        made = {name: table_of(name, given.results) for name in _table_names(file, text)}
        outdated = stale_blocks(text, made)
        if outdated and given.check:
            raise InputError(
                f"tables of {file} differ from the results: {', '.join(outdated)}; run `ncode tables {file}`"
            )
        for name, table in made.items():
            text = replace_block(text, name, table)
        if outdated:
            write_file(file.resolve(), text.encode())  # a link stays a link
        print(f"{file}: {', '.join(outdated) + ' written' if outdated else 'up to date'}")
    return 0


def table_of(name: str, results: Path) -> str:
    """The table of an experiment's results, as Markdown.

    The name is EXPERIMENT or EXPERIMENT:PART, with PART the first word of a data set's name, or a pattern for the whole
    name without its spaces.
    """
    name, _, part = name.partition(":")
    kind = find(name)

    def matches(dataset: str) -> bool:
        return not part or dataset.split()[0] == part or fnmatchcase(dataset.replace(" ", ""), part)

    found = [result for run in _gather_aloud([results / name]) for result in run.results if matches(result.dataset)]
    return as_markdown(make_table(sort_results(found, kind.about()["models"]), kind.columns, kind.paper, kind.remark))


def _table_names(file: Path, text: str) -> list[str]:
    """The tables that a file has blocks for. A line that looks like the start of a block has to be one."""
    blocks = list(BLOCK.finditer(text))
    starts = {match["start"].strip() for match in blocks}
    for line in text.splitlines():
        if line.startswith("<!-- table:") and line.strip() not in starts:
            raise InputError(
                f"{file}: {line.strip()!r} starts no table: its name must have no spaces, and <!-- end --> must follow"
            )
    return list(dict.fromkeys(match["name"] for match in blocks))
