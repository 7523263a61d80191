"""Figures as data addresses, so that a page loads nothing."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ncode import InputError

from ..limits import TEXT_LIMIT, read_bytes

# An SVG of many points grows without bound, and looks no better than a PNG.
LARGEST_SVG = 1_500_000
SIGNATURE = b"\x89PNG\r\n\x1a\n"
SHORTEST_PNG = 8 + 25 + 12  # bytes of the signature, the header and the end
# Pixels of a browser per unit of an SVG's width and height.
PIXELS = {"": 1.0, "px": 1.0, "pt": 96 / 72, "in": 96.0, "cm": 96 / 2.54, "mm": 96 / 25.4}


class Embedded(NamedTuple):
    """A figure as a data address, and its size in pixels of the page."""

    source: str
    width: int
    height: int


def embed(files: Sequence[Path]) -> Embedded:
    """Embed the first usable file of a figure.

    It becomes an image, not a part of the page's markup: ids of one SVG cannot clash with those of another, and no
    script in it can run.
    """
    small = [path for path in files if path.suffix != ".svg" or path.stat().st_size <= LARGEST_SVG]
    faults = []
    for path in small or files:
        try:
            return _embed_svg(path) if path.suffix == ".svg" else _embed_png(path)
        # OverflowError, ValueError: a width or height that is no number.
        except (OSError, InputError, OverflowError, ValueError) as error:
            faults.append(f"{path.name} cannot be shown: {error}")
    raise InputError("; ".join(faults) or "it has no file")


def _embed_svg(path: Path) -> Embedded:
    data = read_bytes(path, TEXT_LIMIT)
    root = re.search(rb"<svg\b[^>]*>", data)
    if root is None or not data.rstrip().endswith(b"</svg>"):
        raise InputError("it is not a complete SVG")
    sizes = [_svg_length(root[0].decode("utf-8", "replace"), name) for name in ("width", "height")]
    return Embedded(_data_address("svg+xml", data), *sizes)


def _svg_length(root: str, name: str) -> int:
    match = re.search(rf'\b{name}="([\d.]+)([a-z]*)"', root)
    if match is None or match[2] not in PIXELS:
        raise InputError(f"it has no {name}")
    return max(1, round(float(match[1]) * PIXELS[match[2]]))


def _embed_png(path: Path) -> Embedded:
    """Embed at the size on paper, if the file states its resolution."""
    data = read_bytes(path, TEXT_LIMIT)
    begins = data.startswith(SIGNATURE) and data[12:16] == b"IHDR" and len(data) >= SHORTEST_PNG
    if not begins or not data.rstrip().endswith(b"IEND\xaeB`\x82"):
        raise InputError("it is not a complete PNG")
    width, height = struct.unpack(">II", data[16:24])
    at = data.find(b"pHYs", 0, data.find(b"IDAT"))
    dots_per_metre = 0 if at < 0 else int(struct.unpack(">I", data[at + 4 : at + 8])[0])
    shrink = min(1.0, 96 / 0.0254 / dots_per_metre) if dots_per_metre else 1.0
    return Embedded(_data_address("png", data), round(width * shrink), round(height * shrink))


def _data_address(kind: str, data: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
