"""Reports: one HTML page about runs, and tables of results in Markdown."""

from .html import as_html
from .markdown import BLOCK, as_markdown, replace_block, stale_blocks, summary_markdown
from .page import write_report
from .runs import Drawing, Run, gather, sort_results
from .tables import Table, make_table

__all__ = [
    "BLOCK",
    "Drawing",
    "Run",
    "Table",
    "as_html",
    "as_markdown",
    "gather",
    "make_table",
    "replace_block",
    "sort_results",
    "stale_blocks",
    "summary_markdown",
    "write_report",
]
