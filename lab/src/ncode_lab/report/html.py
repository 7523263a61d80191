"""HTML in which every text is escaped, and tables in it."""

from __future__ import annotations

from html import escape

from ..training import Column
from ..wording import problem_name
from .tables import NONE, Row, Table

# Elements without an end tag.
VOID = {"img", "meta", "br"}
# Longer names may break into lines on a small screen.
LONG = 14


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | int | None) -> Markup:
    """Make an element. Plain text among its children is escaped; an attribute that is None is left out.

    A trailing underscore of an attribute's name is dropped, others become hyphens: `class_`, `aria_label`.

    >>> tag("p", "1 < 2 ", tag("b", "yes"), class_="note")
    '<p class="note">1 &lt; 2 <b>yes</b></p>'
    """
    pairs = ((key.rstrip("_").replace("_", "-"), value) for key, value in attributes.items() if value is not None)
    opening = "".join([f"<{name}", *(f' {key}="{escape(str(value))}"' for key, value in pairs), ">"])
    return Markup(opening) if name in VOID else Markup(f"{opening}{join(*children)}</{name}>")


def join(*children: str) -> Markup:
    """Concatenate pieces, and escape plain text."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children))


def as_html(table: Table, caption: str = "") -> Markup:
    """Format a table as HTML, in a box that scrolls sideways, with footnotes below.

    >>> html = as_html(Table((), (Row("node", "annuli", (), 3, "354"),), ()), "Two annuli.")
    >>> '<th scope="row">node</th><td class="number">3</td><td class="number">354</td>' in html
    True
    """
    parts = [tag("caption", tag("span", caption)), _head(table)]
    width = 3 + len(table.columns) + sum(table.in_paper)
    for dataset in table.datasets:
        rows = [_row(row, table.in_paper) for row in table.rows if row.dataset == dataset]
        if len(table.datasets) > 1:
            name = tag("th", tag("span", problem_name(dataset)), scope="rowgroup", colspan=width)
            rows.insert(0, tag("tr", name, class_="group"))
        parts.append(tag("tbody", *rows))
    box = tag("div", tag("table", *parts), class_="box", role="region", tabindex=0, aria_label=caption or "table")
    return join(box, *(tag("p", note, class_="footnote") for note in table.footnotes))


def _head(table: Table) -> Markup:
    """Make one line of heads, or two if the paper has numbers: the metric above, ours and the paper's below."""
    double = any(table.in_paper)

    def head(text: str, kind: str | None = None) -> Markup:
        return tag("th", text, scope="col", rowspan=2 if double else None, class_=kind)

    def pair(column: Column) -> Markup:
        return tag("th", column.title, scope="colgroup", colspan=2, class_="pair")

    columns = list(zip(table.columns, table.in_paper, strict=True))
    top = [pair(column) if in_paper else head(column.title, "number") for column, in_paper in columns]
    ours, paper = tag("th", "ours", scope="col", class_="number"), tag("th", "paper", scope="col", class_="paper")
    first = tag("tr", head("model"), *top, head("seeds", "number"), head("parameters", "number"))
    return tag("thead", first, *[tag("tr", *[ours, paper] * sum(table.in_paper))] * double)


def _row(row: Row, in_paper: tuple[bool, ...]) -> Markup:
    cells = [tag("th", row.model, scope="row", class_="long" if len(row.model) > LONG else None)]
    for cell, both in zip(row.cells, in_paper, strict=True):
        cells.append(tag("td", cell.ours or NONE, class_="number"))
        cells += [tag("td", cell.paper or NONE, class_="paper")] * both
    cells += [tag("td", text, class_="number") for text in (row.seeds_text, row.parameters or NONE)]
    return tag("tr", *cells)
