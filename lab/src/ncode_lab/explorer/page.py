"""The files of this folder as one HTML page that loads nothing."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from ncode import InputError

from ..training.files import check_replaceable, replace_file

FOLDER = Path(__file__).parent
# One program: each file uses those before it.
SCRIPTS = (
    *("solver.js", "model.js", "tasks.js", "captions.js", "training.js", "python.js", "scene.js"),
    *("draw.js", "figures.js", "charts.js", "address.js", "app.js", "controls.js"),
)
TITLE = "N-CODE explorer"
DESCRIPTION = "Neural ODEs and neurally controlled ODEs on small problems: drag a sample, train, and watch its field."


def render_explorer() -> str:
    """Return the page as text: style, scripts and trained weights are part of it.

    >>> from ncode_lab.explorer import render_explorer
    >>> page = render_explorer()
    >>> len(page.encode()) < 500_000, "http" in page.replace("http-equiv", "")
    (True, False)
    """
    shipped = _read("pretrained.json").strip()
    script = "\n".join(['"use strict";', f"const SHIPPED = {shipped};", *map(_read, SCRIPTS)])
    style = _read("style.css")
    # The browser runs this script and this style, and loads nothing.
    policy = f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; base-uri 'none'"
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            f'<meta name="description" content="{DESCRIPTION}">\n<link rel="icon" href="data:,">',
            f"<title>{TITLE}</title>\n<style>{style}</style>\n</head>",
            _read("index.html").replace("</body>", f"<script>{script}</script>\n</body>"),
            "</html>\n",
        ]
    )


def write_explorer(out: str | Path = "explorer.html") -> Path:
    """Write the page to a file, or into a folder as explorer.html, and return its path.

    >>> import tempfile
    >>> from ncode_lab.explorer import write_explorer
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_explorer(folder).name
    'explorer.html'
    """
    out = Path(out)
    if out.is_dir():
        out = out / "explorer.html"
    check_replaceable(out)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        replace_file(out, render_explorer().encode())
    except OSError as error:
        raise InputError(f"the explorer cannot be written to {out}: {error.strerror or error}") from error
    return out


def _read(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
