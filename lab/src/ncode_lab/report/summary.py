"""summary.md: one page about a run, for a reader without a browser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..training.result import Result
from .numbers import write_seconds
from .read import read_columns
from .tables import as_markdown, make_table, plain_markdown


def summary_markdown(record: Mapping[str, Any], results: Sequence[Result]) -> str:
    """The summary of a run, from what `run.json` says and the results of its trials.

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
    total = len(record.get("trials") or [])
    # The summary is written while the run is still going on, so a record without an end says nothing here.
    if len(results) < total:
        notes.append(f"This run has not finished. Trials that are done: {len(results)} of {total}.")
    parts = [f"# {plain_markdown(str(record.get('title') or record.get('experiment') or 'Run'))}"]
    parts += [plain_markdown(str(record["question"]))] if record.get("question") else []
    parts += [_indented(str(record["command"]))] if record.get("command") else []
    parts += map(plain_markdown, notes)
    parts.append(as_markdown(make_table(results, columns, paper)) if results else "There are no results yet.")
    parts += [part for part in (_spread(results), _figures(record), _environment(record, results)) if part]
    return "\n\n".join(parts) + "\n"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _spread(results: Sequence[Result]) -> str:
    seeds = {result.seed for result in results}
    return "Mean ± standard deviation over seeds." if len(seeds) > 1 else ""


def _figures(record: Mapping[str, Any]) -> str:
    lines = []
    for figure in record.get("figures") or []:
        name, caption = str(figure["name"]), plain_markdown(str(figure.get("caption") or figure["name"]))
        lines.append(f"![{caption}](figures/{name}.png)\n\n{caption}")
    return "\n\n".join(["## Figures", *lines]) if lines else ""


def _environment(record: Mapping[str, Any], results: Sequence[Result]) -> str:
    pairs = {key: record[key] for key in ("preset", "device", "commit", "started") if record.get(key)}
    if results:
        pairs["time"] = write_seconds(sum(result.seconds for result in results))
    pairs |= record.get("versions") or {}
    lines = [f"- {plain_markdown(str(key))}: {plain_markdown(str(value))}" for key, value in pairs.items()]
    return "\n".join(["## Environment", "", *lines]) if lines else ""
