"""Tables: ours, with seeds and spread, and the paper's number beside it; as Markdown and as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from ncode import InputError

from ..training.result import Column, Reported, Result
from .markup import Markup, join, tag
from .numbers import RAISED, measure, write_measured, write_number

NONE = "–"
# Names beyond this many letters may break into lines on a small screen.
LONG = 14
BLOCK = re.compile(r"(?P<start><!-- table:(?P<name>[^\s>]+) -->\n)(?P<body>.*?)(?P<end><!-- end -->)", re.DOTALL)
# What Markdown would read as its own. A text cannot end a block either: "<" never comes through.
SPECIAL = re.compile(r"([\\`*_|\[\]])")


class Cell(NamedTuple):
    """Our number and the paper's, as text. Empty where there is none."""

    ours: str
    paper: str


class Row(NamedTuple):
    """A model on a problem."""

    model: str
    dataset: str
    cells: tuple[Cell, ...]
    seeds: int
    parameters: str


class Table(NamedTuple):
    """What a table shows. `notes` are the footnotes that the paper's numbers point to, from 1 on.

    >>> Table((), (Row("node", "annuli", (), 3, "354"),), ()).datasets
    ('annuli',)
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def beside(self) -> tuple[bool, ...]:
        """Whether the paper has a number, a column."""
        return tuple(any(row.cells[i].paper for row in self.rows) for i in range(len(self.columns)))

    @property
    def datasets(self) -> tuple[str, ...]:
        """The problems, in order. One alone gets no column."""
        return tuple(dict.fromkeys(row.dataset for row in self.rows))


def make_table(results: Iterable[Result], columns: Sequence[Column] = (), paper: Sequence[Reported] = ()) -> Table:
    """One row for each model and problem: problem by problem, in the order in which they and their models come first.

    Where no columns are given, all metrics are shown. What the paper reports and we did not run has a row too, if we
    ran anything on that problem.

    >>> about = dict(experiment="annuli", preset="quick", settings={}, parameters=354, seconds=1.0, device="cpu")
    >>> about |= dict(versions={}, commit="", command="")
    >>> results = [Result(model="node", dataset="annuli", seed=s, metrics={"error": e}, **about)
    ...            for s, e in enumerate([0.25, 0.35])]
    >>> paper = [Reported("node", "annuli", "error", 0.3)]
    >>> print(as_markdown(make_table(results, [Column("error", "error, %", 1, 100.0)], paper)))
    | model | error, % | paper | seeds | parameters |
    |---|---:|---:|---:|---:|
    | node | 30.0 ± 7.1 | 30.0 | 2 | 354 |
    """
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.model, result.dataset), []).append(result)
    columns = tuple(columns) or _all_metrics(result for group in groups.values() for result in group)
    known = {dataset for _, dataset in groups}
    shown = {column.metric for column in columns}
    for line in paper:
        if line.dataset in known and line.metric in shown:
            groups.setdefault((line.model, line.dataset), [])
    notes = list(
        dict.fromkeys(r.note for r in paper if r.note and (r.model, r.dataset) in groups and r.metric in shown)
    )
    rows = [_row(model, dataset, group, columns, paper, notes) for (model, dataset), group in groups.items()]
    place = {dataset: i for i, dataset in enumerate(dict.fromkeys(row.dataset for row in rows))}
    return Table(columns, tuple(sorted(rows, key=lambda row: place[row.dataset])), tuple(notes))


def as_markdown(table: Table) -> str:
    """A table of GitHub's Markdown, and its footnotes below.

    >>> print(as_markdown(Table((), (Row("node", "annuli", (), 3, "354"),), ())))
    | model | seeds | parameters |
    |---|---:|---:|
    | node | 3 | 354 |
    """
    several = len(table.datasets) > 1
    head = ["model", *["dataset"] * several]
    for column, beside in zip(table.columns, table.beside, strict=True):
        head += [plain_markdown(column.title), *["paper"] * beside]
    head += ["seeds", "parameters"]
    rule = ["---"] * (1 + several) + ["---:"] * (len(head) - 1 - several)
    lines = [_line(head), "|" + "|".join(rule) + "|"]
    for row in table.rows:
        names = [plain_markdown(row.model), *[plain_markdown(row.dataset)] * several]
        lines.append(_line([*names, *_numbers(row, table.beside), _seeds(row), row.parameters or NONE]))
    notes = [f"\n{_mark(i)} {plain_markdown(note)}" for i, note in enumerate(table.notes, 1)]
    return "\n".join(lines + notes)


def as_html(table: Table, caption: str = "") -> Markup:
    """A table of HTML, in a box that scrolls sideways by itself, and its footnotes below.

    >>> html = as_html(Table((), (Row("node", "annuli", (), 3, "354"),), ()), "Two annuli.")
    >>> '<th scope="row">node</th><td class="number">3</td><td class="number">354</td>' in html
    True
    """
    parts = [tag("caption", tag("span", caption)), _html_head(table)]
    for dataset in table.datasets:
        rows = [_html_row(row, table.beside) for row in table.rows if row.dataset == dataset]
        parts.append(tag("tbody", *_html_name(table, dataset), *rows))
    box = tag("div", tag("table", *parts), class_="box", role="region", tabindex=0, aria_label=caption or "table")
    notes = (tag("p", f"{_mark(i)} {note}", class_="footnote") for i, note in enumerate(table.notes, 1))
    return join(box, *notes)


def replace_block(text: str, name: str, table: str) -> str:
    r"""The text, with the table between `<!-- table:NAME -->` and `<!-- end -->` replaced.

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


def stale(text: str, tables: Mapping[str, str]) -> list[str]:
    r"""The names of blocks that do not hold what they should, or that no table is known for.

    >>> text = "<!-- table:a -->\nold\n<!-- end --> <!-- table:b -->\n| b |\n<!-- end -->"
    >>> stale(text, {"a": "| new |", "b": "| b |"})
    ['a']
    """
    for name in tables:
        replace_block(text, name, "")
    blocks = ((match["name"], match["body"].strip("\n")) for match in BLOCK.finditer(text))
    return [name for name, body in blocks if name not in tables or body != tables[name].strip("\n")]


def _all_metrics(results: Iterable[Result]) -> tuple[Column, ...]:
    names = dict.fromkeys(name for result in results for name in result.metrics)
    return tuple(Column(name, name.replace("_", " "), 3) for name in names)


def _row(
    model: str,
    dataset: str,
    group: list[Result],
    columns: Sequence[Column],
    paper: Sequence[Reported],
    notes: list[str],
) -> Row:
    reported = [line for line in paper if (line.model, line.dataset) == (model, dataset)]
    cells = tuple(Cell(_ours(group, column), _paper(reported, column, notes)) for column in columns)
    counts = sorted({result.parameters for result in group})
    parameters = " to ".join(f"{count:,}" for count in (counts if len(counts) < 2 else (counts[0], counts[-1])))
    return Row(model, dataset, cells, len(group), parameters)


def _ours(group: list[Result], column: Column) -> str:
    values = [result.metrics[column.metric] for result in group if column.metric in result.metrics]
    return write_measured(measure(values), column, len(group)) if values else ""


def _paper(reported: list[Reported], column: Column, notes: list[str]) -> str:
    lines = [line for line in reported if line.metric == column.metric]
    return "; ".join(
        write_number(line.value * column.scale, column.digits)
        + (f"\N{NARROW NO-BREAK SPACE}{_mark(notes.index(line.note) + 1)}" if line.note else "")
        for line in lines
    )


def _mark(number: int) -> str:
    return str(number).translate(RAISED) + "\N{SUPERSCRIPT RIGHT PARENTHESIS}"


def _numbers(row: Row, beside: Sequence[bool]) -> list[str]:
    texts = []
    for cell, both in zip(row.cells, beside, strict=True):
        texts += [cell.ours or NONE, *[cell.paper or NONE] * both]
    return texts


def _seeds(row: Row) -> str:
    return str(row.seeds) if row.seeds else "not run"


def plain_markdown(text: str) -> str:
    """A text as Markdown shows it unchanged, in one line."""
    plain = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return SPECIAL.sub(r"\\\1", plain)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _html_head(table: Table) -> Markup:
    """One line, or two where the paper stands beside us: the metric above, ours and the paper's below it."""
    double = any(table.beside)

    def name(text: str, kind: str | None = None) -> Markup:
        return tag("th", text, scope="col", rowspan=2 if double else None, class_=kind)

    top, below = [name("model")], []
    for column, beside in zip(table.columns, table.beside, strict=True):
        if beside:
            top.append(tag("th", column.title, scope="colgroup", colspan=2, class_="pair"))
            below += [tag("th", "ours", scope="col", class_="number"), tag("th", "paper", scope="col", class_="paper")]
        else:
            top.append(name(column.title, "number"))
    top += [name("seeds", "number"), name("parameters", "number")]
    return tag("thead", tag("tr", *top), *[tag("tr", *below)] * double)


def _html_name(table: Table, dataset: str) -> list[Markup]:
    """A line above the rows of a problem, where there are several."""
    if len(table.datasets) == 1:
        return []
    width = 3 + len(table.columns) + sum(table.beside)
    return [tag("tr", tag("th", tag("span", dataset), scope="rowgroup", colspan=width), class_="group")]


def _html_row(row: Row, beside: Sequence[bool]) -> Markup:
    cells = [tag("th", row.model, scope="row", class_="long" if len(row.model) > LONG else None)]
    for cell, both in zip(row.cells, beside, strict=True):
        cells.append(tag("td", cell.ours or NONE, class_="number"))
        cells += [tag("td", cell.paper or NONE, class_="paper")] * both
    cells += [tag("td", text, class_="number") for text in (_seeds(row), row.parameters or NONE)]
    return tag("tr", *cells)
