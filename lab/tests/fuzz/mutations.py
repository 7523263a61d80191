"""Random damage to files and folders, which Hypothesis draws, shrinks and prints."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

PIECES = (
    b"",
    b"\0",
    b"\xff" * 8,
    b"\0" * 64,
    b"-1",
    b"1e999",
    b"{",
    b"[" * 3000,
    b'"',
    b"\n",
    b"\xc3",
    b"NaN",
    b"../../x",
)
ODD_VALUES = (
    None,
    True,
    -1,
    0,
    1.5,
    1e308,
    2**63,
    10**400,
    float("nan"),
    float("inf"),
    "",
    "\0",
    "../../x",
    "/etc/passwd",
)
ODD_VALUES += ("x" * 5000, "<script>", [], {}, [[]], {"": None}, [None] * 3, [1, "a"], "\udcff")


@st.composite
def _edits(draw: st.DrawFn) -> tuple[str, float, float, int]:
    kind = draw(st.sampled_from(["cut", "flip", "insert", "delete", "overwrite", "repeat"]))
    return kind, draw(st.floats(0, 1, width=16)), draw(st.floats(0, 1, width=16)), draw(st.integers(0, 255))


edits = st.lists(_edits(), min_size=1, max_size=3)


def edited(content: bytes, changes: list[tuple[str, float, float, int]]) -> bytes:
    """The content after some edits; places are fractions of its length."""
    for kind, first, second, number in changes:
        start, end = sorted((int(first * len(content)), int(second * len(content))))
        piece = PIECES[number % len(PIECES)]
        if kind == "cut":
            content = content[:start]
        elif kind == "flip" and content:
            at = min(start, len(content) - 1)
            content = content[:at] + bytes([content[at] ^ (1 << number % 8)]) + content[at + 1 :]
        elif kind == "insert":
            content = content[:start] + piece + content[start:]
        elif kind == "delete":
            content = content[:start] + content[min(end, start + 50) :]
        elif kind == "overwrite":
            content = content[:start] + piece + content[start + len(piece) :]
        elif kind == "repeat":
            content = content[:start] + content[start:end][:200] * (1 + number % 4) + content[end:]
    return content


@st.composite
def json_changes(draw: st.DrawFn) -> list[tuple[list[int], str, int]]:
    """Changes of values somewhere inside of a JSON document: the way there, what happens, and an odd value."""
    way = st.lists(st.integers(0, 30), min_size=1, max_size=4)
    kind = st.sampled_from(["replace", "replace", "remove", "add"])
    return draw(st.lists(st.tuples(way, kind, st.integers(0, len(ODD_VALUES) - 1)), min_size=1, max_size=3))


def changed_json(text: str, changes: list[tuple[list[int], str, int]]) -> str:
    """A JSON document with some changes."""
    value = json.loads(text)
    for way, kind, number in changes:
        _change(value, way, kind, copy.deepcopy(ODD_VALUES[number]))  # or a later change would change the original
    return json.dumps(value)


def _change(value: Any, way: list[int], kind: str, odd: Any) -> None:
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    if not keys:
        return
    key = keys[way[0] % len(keys)]
    if len(way) > 1 and isinstance(value[key], dict | list) and value[key]:
        _change(value[key], way[1:], kind, odd)
    elif kind == "remove":
        del value[key]
    elif kind == "add" and isinstance(value, dict):
        value[str(odd)[:50]] = odd
    elif kind == "add":
        value.append(odd)
    else:
        value[key] = odd


def _to_folder(path: Path) -> None:
    remove(path)
    path.mkdir()


def _to_file(path: Path) -> None:
    remove(path)
    path.write_text("a file")


def _to_link(target: str) -> Callable[[Path], None]:
    def link(path: Path) -> None:
        remove(path)
        path.symlink_to(target)

    return link


def _to_pipe(path: Path) -> None:
    remove(path)
    os.mkfifo(path)


def _to_huge(path: Path) -> None:
    remove(path)
    with open(path, "wb") as file:
        file.truncate(2**30)


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _beside(name: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        (path.parent / name).mkdir(exist_ok=True)

    return make


HOSTILE: dict[str, Callable[[Path], None]] = {
    "missing": remove,
    "empty": lambda path: path.write_bytes(b"") if path.is_file() else _to_file(path),
    "a folder": _to_folder,
    "a file": _to_file,
    "a link to itself": lambda path: _to_link(path.name)(path),
    "a link to nothing": _to_link("nothing"),
    "a link to its parent": _to_link(".."),
    "a link to zeros without end": _to_link("/dev/zero"),
    "a link to the terminal": _to_link("/dev/null"),
    "a named pipe": _to_pipe,
    "huge": _to_huge,
    "unreadable": lambda path: path.chmod(0),
    "beside a folder with a line break": _beside("a\nb"),
    "beside a folder with bytes that are no text": _beside("\udcff\udcfe"),
    "beside a folder with a long name": _beside("x" * 250),
    "beside a hidden folder": _beside(".step-000001.1.tmp"),
}
