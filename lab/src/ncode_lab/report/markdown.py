"""Tables as Markdown, blocks of tables in Markdown files, and the summary of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from ncode import InputError

from ..training import Result
from ..training.progress import format_seconds
from ..wording import problem_name
from .runs import read_columns
from .tables import NONE, Table, make_table

BLOCK = re.compile(r"(?P<start><!-- table:(?P<name>[^\s>]+) -->\n)(?P<body>.*?)(?P<end><!-- end -->)", re.DOTALL)
# The syntax of Markdown. A text cannot end a block either, since "<" is escaped.
SPECIAL = re.compile(r"([\\`*_|\[\]])")


def as_markdown(table: Table) -> str:
    """Format a table as GitHub's Markdown, with footnotes below.

    >>> from ncode_lab.report.tables import Row
    >>> print(as_markdown(Table((), (Row("node", "annuli", (), 3, "354"),), ())))
    | model | seeds | parameters |
    |---|---:|---:|
    | node | 3 | 354 |
    """
    several = len(table.datasets) > 1
    head = ["model", *["dataset"] * several]
    for column, in_paper in zip(table.columns, table.in_paper, strict=True):
        head += [escape(column.title), *["paper"] * in_paper]
    head += ["seeds", "parameters"]
    rule = ["---"] * (1 + several) + ["---:"] * (len(head) - 1 - several)
    lines = [_line(head), "|" + "|".join(rule) + "|"]
    for row in table.rows:
        cells = [escape(row.model), *[escape(problem_name(row.dataset))] * several]
        for cell, in_paper in zip(row.cells, table.in_paper, strict=True):
            cells += [cell.ours or NONE, *[cell.paper or NONE] * in_paper]
        lines.append(_line([*cells, row.seeds_text, row.parameters or NONE]))
    return "\n".join([*lines, *(f"\n{escape(note)}" for note in table.footnotes)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def escape(text: str) -> str:
    """Escape a text so that Markdown shows it unchanged, in one line."""
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return SPECIAL.sub(r"\\\1", plain)


def replace_block(text: str, name: str, table: str) -> str:
    r"""Replace the table between `<!-- table:NAME -->` and `<!-- end -->`.

    >>> replace_block("<!-- table:a -->\nold\n<!-- end -->", "a", "| new |")
    '<!-- table:a -->\n| new |\n<!-- end -->'
    """
    names = [match["name"] for match in BLOCK.finditer(text)]
    if name not in names:
        close = get_close_matches(name, names, 1)
        raise InputError(
            f"there is no block for the table {name!r}: put the lines <!-- table:{name} --> and <!-- end --> where it"
            f" belongs{f'; did you mean {close[0]!r}?' if close else ''}"
        )
    body = table.strip("\n")
    return BLOCK.sub(lambda m: m["start"] + body + "\n" + m["end"] if m["name"] == name else m[0], text)


def stale_blocks(text: str, tables: Mapping[str, str]) -> list[str]:
    r"""Return the names of blocks whose content differs from their table, or that have none.

    >>> text = "<!-- table:a -->\nold\n<!-- end --> <!-- table:b -->\n| b |\n<!-- end -->"
    >>> stale_blocks(text, {"a": "| new |", "b": "| b |"})
    ['a']
    """
    for name in tables:
        replace_block(text, name, "")
    blocks = ((match["name"], match["body"].strip("\n")) for match in BLOCK.finditer(text))
    return [name for name, body in blocks if name not in tables or body != tables[name].strip("\n")]


def summary_markdown(record: Mapping[str, Any], results: Sequence[Result]) -> str:
    """Return `summary.md` of a run, from the content of `run.json` and the results of its trials.

    >>> print(summary_markdown({"title": "Two annuli", "command": "ncode run annuli"}, []))
    # Two annuli
    <BLANKLINE>
        ncode run annuli
    <BLANKLINE>
    There are no results yet.
    <BLANKLINE>
    """
    notes: list[str] = []
    columns, paper = read_columns(record, notes)
    trials = record.get("trials")
    total = len(trials) if isinstance(trials, list) else 0
    # The summary is written before the run is marked as finished, so the record says nothing about that.
    if len(results) < total:
        notes.append(f"This run has not finished. Finished trials: {len(results)} of {total}.")
    parts = [f"# {escape(str(record.get('title') or record.get('experiment') or 'Run'))}"]
    parts += [escape(str(record["question"]))] if record.get("question") else []
    parts += ["\n".join(f"    {line}" for line in str(record["command"]).splitlines())] if record.get("command") else []
    parts += map(escape, notes)
    parts.append(as_markdown(make_table(results, columns, paper)) if results else "There are no results yet.")
    if len({result.seed for result in results}) > 1:
        parts.append("Mean ± standard deviation over seeds.")
    parts += [part for part in (_figures(record), _environment(record, results)) if part]
    return "\n\n".join(parts) + "\n"


def _figures(record: Mapping[str, Any]) -> str:
    lines = []
    for figure in record.get("figures") or []:
        name, caption = str(figure["name"]), escape(str(figure.get("caption") or figure["name"]))
        lines.append(f"![{caption}](figures/{name}.png)\n\n{caption}")
    return "\n\n".join(["## Figures", *lines]) if lines else ""


def _environment(record: Mapping[str, Any], results: Sequence[Result]) -> str:
    pairs = {key: record[key] for key in ("preset", "device", "commit", "started") if record.get(key)}
    if results:
        pairs["time"] = format_seconds(sum(result.seconds for result in results))
    versions = record.get("versions")
    pairs |= versions if isinstance(versions, dict) else {}
    lines = [f"- {escape(str(key))}: {escape(str(value))}" for key, value in pairs.items()]
    return "\n".join(["## Environment", "", *lines]) if lines else ""
