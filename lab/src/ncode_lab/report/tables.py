"""Tables of results: mean and spread over seeds, next to the numbers of the paper."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ..training import Column, Reported, Result
from ..wording import LARGE, SUPERSCRIPTS, format_alike, format_number, is_plain, model_name

NONE = "–"


class Cell(NamedTuple):
    """Our number and the paper's, as text; empty if there is none."""

    ours: str
    paper: str


class Row(NamedTuple):
    """A model, by the name that readers see, on a problem."""

    model: str
    dataset: str
    cells: tuple[Cell, ...]
    seeds: int
    parameters: str

    @property
    def seeds_text(self) -> str:
        """The number of seeds, or "not run"."""
        return str(self.seeds) if self.seeds else "not run"


class Table(NamedTuple):
    """The content of a table. `notes` are the footnotes of the paper's numbers, from 1 on.

    >>> Table((), (Row("node", "annuli", (), 3, "354"),), ()).datasets
    ('annuli',)
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    @property
    def in_paper(self) -> tuple[bool, ...]:
        """Whether the paper has a number, per column."""
        return tuple(any(row.cells[i].paper for row in self.rows) for i in range(len(self.columns)))

    @property
    def datasets(self) -> tuple[str, ...]:
        """The problems, in order."""
        return tuple(dict.fromkeys(row.dataset for row in self.rows))

    @property
    def footnotes(self) -> list[str]:
        """The notes, each with its mark."""
        return [f"{_mark(i)} {note}" for i, note in enumerate(self.notes, 1)]


def make_table(
    results: Iterable[Result],
    columns: Sequence[Column] = (),
    paper: Sequence[Reported] = (),
    remark: Callable[[Sequence[Result]], str] = lambda group: "",
) -> Table:
    """Make one row per model and problem: problem by problem, in the order of first appearance.

    Without columns, all metrics are shown. A model that only the paper has run gets a row too, if we ran any model on
    that problem, and did not run that model there with other settings, which a label names after a comma.
    `remark` gives what is said next to the model of a group of results.

    >>> from ncode_lab.report import as_markdown
    >>> about = dict(experiment="annuli", preset="quick", settings={}, parameters=354, seconds=1.0, device="cpu")
    >>> about |= dict(versions={}, commit="", command="")
    >>> results = [Result(model="node", dataset="annuli", seed=s, metrics={"error": e}, **about)
    ...            for s, e in enumerate([0.25, 0.35])]
    >>> paper = [Reported("node", "annuli", "error", 0.3)]
    >>> print(as_markdown(make_table(results, [Column("error", "error, %", 1, 100.0)], paper)))
    | model | error, % | paper | seeds | parameters |
    |---|---:|---:|---:|---:|
    | NODE | 30.0 ± 7.1 | 30.0 | 2 | 354 |
    """
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.model, result.dataset), []).append(result)
    columns = tuple(columns) or _all_metrics(result for group in groups.values() for result in group)
    known = {dataset for _, dataset in groups}
    shown = {column.metric for column in columns}
    run = {(model, _problem(dataset)): dataset for model, dataset in groups}
    for line in paper:
        if line.dataset in known and line.metric in shown:
            place = run.setdefault((line.model, _problem(line.dataset)), line.dataset)
            groups.setdefault((line.model, place), [])
    notes = list(
        dict.fromkeys(r.note for r in paper if r.note and (r.model, r.dataset) in groups and r.metric in shown)
    )
    experiment = next((result.experiment for group in groups.values() for result in group), "")
    rows = []
    for (model, dataset), group in groups.items():
        said = ", ".join(filter(None, (model_name(model, experiment), remark(group))))
        rows.append(_row(model, dataset, group, columns, paper, notes)._replace(model=said))
    place = {dataset: i for i, dataset in enumerate(dict.fromkeys(row.dataset for row in rows))}
    return Table(columns, tuple(sorted(rows, key=lambda row: place[row.dataset])), tuple(notes))


def _problem(dataset: str) -> str:
    """The problem of a label, without the settings behind it."""
    return dataset.partition(",")[0]


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
    cells = tuple(Cell(_our_cell(group, column), _paper_cell(reported, column, notes)) for column in columns)
    counts = sorted({result.parameters for result in group})
    parameters = " to ".join(f"{count:,}" for count in (counts if len(counts) < 2 else (counts[0], counts[-1])))
    return Row(model, dataset, cells, len(group), parameters)


def _our_cell(group: list[Result], column: Column) -> str:
    values = [result.metrics[column.metric] for result in group if column.metric in result.metrics]
    return format_mean(values, column, len(group)) if values else ""


def _paper_cell(reported: list[Reported], column: Column, notes: list[str]) -> str:
    lines = [line for line in reported if line.metric == column.metric]
    return "; ".join(
        format_number(line.value * column.scale, column.digits)
        + (f"\N{NARROW NO-BREAK SPACE}{_mark(notes.index(line.note) + 1)}" if line.note else "")
        for line in lines
    )


def _mark(number: int) -> str:
    return str(number).translate(SUPERSCRIPTS) + "\N{SUPERSCRIPT RIGHT PARENTHESIS}"


def format_mean(values: Sequence[float], column: Column, seeds: int) -> str:
    """Format mean ± standard deviation in the column's unit, with the number of values if it is not that of seeds.

    >>> column = Column("error", "error, %", digits=1, scale=100.0)
    >>> format_mean([0.24, 0.25, 0.26], column, 3), format_mean([0.24, 0.26], column, 3)
    ('25.0 ± 1.0', '25.0 ± 1.4 (2 of 3)')
    >>> format_mean([0.25], column, 1), format_mean([0.25, math.inf], column, 2)
    ('25.0', 'not finite')
    >>> format_mean([0.0, 0.0, 0.001], column, 3)
    '3.3×10⁻² ± 5.8×10⁻²'
    """
    mean, spread = _mean_and_spread(values, column.scale)
    text = format_number(mean, column.digits)
    if math.isfinite(mean) and len(values) > 1:
        # Next to a mean without a power of ten, a spread of 0.00 is clear; next to one with, the spread has one too.
        plain = (mean == 0 or is_plain(mean, column.digits)) and spread < LARGE
        other = f"{spread:,.{column.digits}f}" if plain else format_alike([mean, spread], column.digits)[1]
        text += f" ± {other}"
    return text if len(values) == seeds else f"{text} ({len(values)} of {seeds})"


def _mean_and_spread(values: Sequence[float], scale: float) -> tuple[float, float]:
    """Mean and standard deviation; nan if a value or a sum is not finite. The deviation of one value is 0."""
    try:
        if all(map(math.isfinite, values)):
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            return statistics.fmean(values) * scale, abs(spread * scale)
    except OverflowError:
        pass
    return math.nan, math.nan
