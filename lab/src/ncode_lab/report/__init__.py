"""The report: one HTML page about some runs, and the tables of the README."""

from .gather import gather
from .order import in_order
from .page import write_report
from .run import Drawing, Run
from .summary import summary_markdown
from .tables import BLOCK, Table, as_html, as_markdown, make_table, replace_block, stale

__all__ = [
    "BLOCK",
    "Drawing",
    "Run",
    "Table",
    "as_html",
    "as_markdown",
    "gather",
    "in_order",
    "make_table",
    "replace_block",
    "stale",
    "summary_markdown",
    "write_report",
]
