"""`ncode tables`: tables of a Markdown file, out of the results."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import tyro

from ncode import InputError

from ..experiments import find
from ..report import BLOCK, as_markdown, gather, in_order, make_table, replace_block, stale


@dataclass(frozen=True)
class TablesForm:
    """Write results into the blocks <!-- table:EXPERIMENT --> of Markdown files."""

    files: tyro.conf.Positional[tuple[Path, ...]] = (Path("README.md"),)
    """Markdown files."""
    results: Path = Path("results")
    """Where the results are: results/EXPERIMENT/*.json."""
    check: tyro.conf.FlagCreatePairsOff[bool] = False
    """Write nothing; fail if a table is not what the results say."""


def answer(words: list[str]) -> int:
    """Write the tables, or check them."""
    form = tyro.cli(TablesForm, prog="ncode tables", args=words)
    for file in form.files:
        if not file.is_file():
            raise InputError(f"there is no file {file}")
        text = file.read_text(encoding="utf-8")
        names = _names(file, text)
        tables = {name: table_of(name, form.results) for name in names}
        old = stale(text, tables)
        if old and form.check:
            raise InputError(
                f"tables of {file} are not what the results say: {', '.join(old)}; run `ncode tables {file}`"
            )
        for name, table in tables.items():
            text = replace_block(text, name, table)
        if old:
            file.write_text(text, encoding="utf-8")
        print(f"{file}: {', '.join(old) + ' written' if old else 'up to date'}")
    return 0


def table_of(name: str, results: Path) -> str:
    """The table of an experiment's results, as Markdown. NAME may end in :PART: see `_asked`."""
    name, _, part = name.partition(":")
    kind = find(name)
    every = [result for run in gather([results / name]) for result in run.results]
    found = [result for result in every if _asked(result.dataset, part)]
    return as_markdown(make_table(in_order(found, kind.about()["models"]), kind.columns, kind.paper))


def _names(file: Path, text: str) -> list[str]:
    """The tables that a file has blocks for; a line that looks like the beginning of a block has to be one."""
    blocks = list(BLOCK.finditer(text))
    begun = {match["start"].strip() for match in blocks}
    for line in text.splitlines():
        if line.startswith("<!-- table:") and line.strip() not in begun:
            raise InputError(
                f"{file}: {line.strip()!r} begins no table: its name must have no spaces, and <!-- end --> must follow"
            )
    return list(dict.fromkeys(match["name"] for match in blocks))


def _asked(dataset: str, part: str) -> bool:
    """Whether PART is empty, the first word of a data set's name, or a pattern for all of it without its spaces."""
    return not part or dataset.split()[0] == part or fnmatchcase(dataset.replace(" ", ""), part)
