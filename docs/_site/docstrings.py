"""Docstrings as reStructuredText, and links from names in code to their pages.

Docstrings are written to be read in a terminal: `code` in single backquotes, and formulas as they are. Here they become
reStructuredText that shows the same.
"""

import dataclasses
import inspect
import re
from typing import Any

import api
from docutils import nodes
from sphinx import addnodes
from sphinx.ext.napoleon import Config, GoogleDocstring

NAPOLEON = Config(napoleon_use_param=False, napoleon_use_rtype=False)
CODE = re.compile(r"(`[^`]+`)")
EMPHASIS = re.compile(r"(?<![\w*])(\*\w[\w -]*\*)(?![\w*])")
FIELD = re.compile(r"^    (\w+): [^#\n]*?(?:  # (.+))?$", re.MULTILINE)


def to_rst(lines: list[str]) -> list[str]:
    """Escape what reStructuredText would read as markup; examples and indented blocks stay as they are."""
    out: list[str] = []
    example = block = False
    for line in lines:
        indent = len(line) - len(line.lstrip())
        example = bool(line.strip()) and (example or line.lstrip().startswith(">>>"))
        starts = indent >= 4 and out and not out[-1].strip() and not _in_section(out)
        if starts and not block and not example:
            out += ["::", ""]
        block = bool(starts) or (block and (indent >= 4 or not line.strip()))
        out.append(line if example or block else _escape(line))
    return out


def _in_section(lines: list[str]) -> bool:
    """Whether the lines end in a section like `Args:`, whose content is indented."""
    flush = next((line for line in reversed(lines) if line and not line[0].isspace()), "")
    return flush.rstrip() in ("Args:", "Returns:", "Raises:", "Yields:")


def _escape(line: str) -> str:
    parts = CODE.split(line)
    shown = "".join(f"`{part}`" if CODE.fullmatch(part) else _escape_text(part) for part in parts)
    return re.sub(r"``(?=s\b)", r"``\\ ", shown)  # the plural of a name


def _escape_text(text: str) -> str:
    parts = EMPHASIS.split(text)
    return "".join(
        part if EMPHASIS.fullmatch(part) else re.sub(r"_(?=\W|$)", r"\\_", re.sub(r"([*|])", r"\\\1", part))
        for part in parts
    )


def process_docstring(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Make a docstring reStructuredText, sections like `Args:` included."""
    lines[:] = to_rst(lines)
    if what not in ("attribute", "property", "data"):  # of which napoleon would read `a: b` as a type and a description
        lines[:] = GoogleDocstring(lines, NAPOLEON, app, what, name, thing, options).lines()
    if what == "class":
        lines += _fields(thing)


def process_signature(
    app: Any, what: str, name: str, thing: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Show a module without a constructor of its own as one without arguments."""
    return ("()" if what == "class" and signature == "(*args, **kwargs)" else signature), returns


def skip_member(app: Any, what: str, name: str, thing: Any, skip: bool, options: Any) -> bool | None:
    """Leave out what namedtuple writes itself."""
    return True if (getattr(thing, "__doc__", "") or "").startswith("Alias for field number") else None


def _fields(thing: Any) -> list[str]:
    """The fields of a dataclass or named tuple, with the comments behind them."""
    if not (dataclasses.is_dataclass(thing) or hasattr(thing, "_fields")):
        return []
    after_docstring = inspect.getsource(thing).split('"""', 2)[2]
    body = re.split(r"\n\n?    (?:@|def )", after_docstring)[0]
    found = [(name, comment) for name, comment in FIELD.findall(body) if not name.startswith("_")]
    if not any(comment for _, comment in found):
        return []
    lines = [f"- ``{name}``" + (f": {_escape(comment)}" if comment else "") for name, comment in found]
    return ["", "Fields:", "", *lines, ""]


def link_names(app: Any, doctree: nodes.document) -> None:
    """Turn code that is a public name into a link to its page: `ncode.solve`, `OpenLoop`."""
    full = {it.name for it in api.public_names() if it.name != "ncode.__version__"}
    short = {name.rpartition(".")[2]: name for name in full if name.rpartition(".")[2][0].isupper()}
    for node in list(doctree.findall(nodes.literal)):
        text = node.astext().removesuffix("()")
        target = text if text in full else short.get(text)
        within = node.parent
        if target is None or isinstance(within, (nodes.reference, addnodes.pending_xref, nodes.title)):
            continue
        link = addnodes.pending_xref(
            "", node.deepcopy(), refdomain="py", reftype="obj", reftarget=target, refdoc=app.env.docname, refwarn=True
        )
        node.replace_self(link)


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process_docstring)
    app.connect("autodoc-process-signature", process_signature)
    app.connect("autodoc-skip-member", skip_member)
    app.connect("doctree-read", link_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
