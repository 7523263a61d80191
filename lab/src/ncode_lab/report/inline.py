"""Figures as part of a page: nothing is fetched when it is opened."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ncode import InputError

# Scatter plots of many points grow without bound as SVG, and look no better for it.
LARGEST_SVG = 1_500_000
SIGNATURE = b"\x89PNG\r\n\x1a\n"
# What a browser shows of one unit of an SVG's width and height.
PIXELS = {"": 1.0, "px": 1.0, "pt": 96 / 72, "in": 96.0, "cm": 96 / 2.54, "mm": 96 / 25.4}


class Inline(NamedTuple):
    """A figure as an address that holds the whole of it, and its size in pixels of the page."""

    source: str
    width: int
    height: int


def inline(files: Sequence[Path]) -> Inline:
    """The figure in the first file that will do.

    It becomes an image of its own rather than a part of the page: names inside one SVG cannot meet those in another,
    and no script in one can run.
    """
    small = [path for path in files if path.suffix != ".svg" or path.stat().st_size <= LARGEST_SVG]
    faults = []
    for path in small or files:
        try:
            return _inline_svg(path) if path.suffix == ".svg" else _inline_png(path)
        except (OSError, InputError) as error:
            faults.append(f"{path.name} cannot be shown: {error}")
    raise InputError("; ".join(faults) or "it has no file")


def _inline_svg(path: Path) -> Inline:
    data = path.read_bytes()
    root = re.search(rb"<svg\b[^>]*>", data)
    if root is None or not data.rstrip().endswith(b"</svg>"):
        raise InputError("it is no whole SVG")
    sizes = [_length(root[0].decode("utf-8", "replace"), name) for name in ("width", "height")]
    return Inline(_address("svg+xml", data), *sizes)


def _length(root: str, name: str) -> int:
    match = re.search(rf'\b{name}="([\d.]+)([a-z]*)"', root)
    if match is None or match[2] not in PIXELS:
        raise InputError(f"it has no {name}")
    return max(1, round(float(match[1]) * PIXELS[match[2]]))


def _inline_png(path: Path) -> Inline:
    """At its size on paper, where it tells its resolution."""
    data = path.read_bytes()
    if not data.startswith(SIGNATURE) or not data.rstrip().endswith(b"IEND\xaeB`\x82"):
        raise InputError("it is no whole PNG")
    width, height = struct.unpack(">II", data[16:24])
    per_metre = _per_metre(data)
    shrink = min(1.0, 96 / 0.0254 / per_metre) if per_metre else 1.0
    return Inline(_address("png", data), round(width * shrink), round(height * shrink))


def _per_metre(data: bytes) -> int:
    """Dots a metre, from the chunk that says so, or 0."""
    at = data.find(b"pHYs", 0, data.find(b"IDAT"))
    return 0 if at < 0 else int(struct.unpack(">I", data[at + 4 : at + 8])[0])


def _address(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
