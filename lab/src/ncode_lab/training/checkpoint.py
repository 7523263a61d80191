"""Checkpoints: folders that are whole or not there, and known by their sums."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .files import explain_os_errors, sync_folder, write_through

WEIGHTS, STATE, MANIFEST = "weights.safetensors", "state.pt", "manifest.json"
KEPT = 2
_NAME = re.compile(r"step-(\d+)")


class Saved(NamedTuple):
    """A model after so many steps, and what is needed to go on."""

    step: int
    weights: dict[str, Tensor]
    state: dict[str, Any]


class Checkpoints:
    """The checkpoints of one fit, the last two of them.

    Args:
        folder: Where they are, one folder each: step-000200.
        warn: Told of each that is damaged.

    >>> from tempfile import TemporaryDirectory
    >>> place = TemporaryDirectory()
    >>> checkpoints = Checkpoints(Path(place.name), warn=print)
    >>> checkpoints.write(Saved(200, {"weight": torch.ones(2)}, {"optimiser": {}}))
    >>> checkpoints.load().step
    200
    >>> place.cleanup()
    """

    def __init__(self, folder: Path, warn: Callable[[str], None]):
        self.folder, self._warn = folder, warn

    def write(self, saved: Saved) -> None:
        """Write one, and remove all but the last two. Where it fails, those before it are left as they are."""
        target = self.folder / f"step-{saved.step:06d}"
        temporary = self.folder / f".{target.name}.{os.getpid()}.tmp"
        contents = _pack(saved)
        with explain_os_errors(target):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                temporary.mkdir()
                for name, content in contents.items():
                    write_through(temporary / name, content)
                sync_folder(temporary)
                self._discard(target)
                os.rename(temporary, target)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            sync_folder(self.folder)
            for old in self._whole()[:-KEPT]:
                self._discard(old)

    def load(self) -> Saved | None:
        """The newest that is not damaged; None where there is none. Remains of a write that was cut off are removed."""
        if not self.folder.is_dir():
            return None
        for remains in self.folder.glob(".*.tmp"):
            shutil.rmtree(remains, ignore_errors=True)
        for path in reversed(self._whole()):
            try:
                return _unpack(path)
            except Damaged as reason:
                aside = self._set_aside(path)
                self._warn(
                    f"the checkpoint {path} is damaged ({reason}): the one before is used, this one is now {aside}"
                )
        return None

    def _whole(self) -> list[Path]:
        """Those in place, oldest first."""
        found = [(int(match[1]), path) for path in self.folder.iterdir() if (match := _NAME.fullmatch(path.name))]
        return [path for _, path in sorted(found)]

    def _set_aside(self, path: Path) -> str:
        """Out of the way of what is written next, but there to be looked at."""
        aside = path.with_name(f"damaged-{path.name}")
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(path, aside)
        return aside.name

    def _discard(self, path: Path) -> None:
        """Remove one. It is renamed first, so that one half-removed is not taken for one that is damaged."""
        with suppress(FileNotFoundError):
            remains = path.with_name(f".{path.name}.{os.getpid()}.old.tmp")
            os.rename(path, remains)
            shutil.rmtree(remains, ignore_errors=True)


class Damaged(Exception):
    """A checkpoint that is not what was written."""


def _pack(saved: Saved) -> dict[str, bytes]:
    from safetensors.torch import save

    buffer = io.BytesIO()
    torch.save({"step": saved.step, **saved.state}, buffer)
    contents = {WEIGHTS: save(saved.weights, metadata={"format": "pt"}), STATE: buffer.getvalue()}
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    manifest = json.dumps({"step": saved.step, "sha256": sums}, indent=2) + "\n"
    return {**contents, MANIFEST: manifest.encode()}


def _unpack(path: Path) -> Saved:
    from safetensors.torch import load

    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        sums, step = dict(manifest["sha256"]), int(manifest["step"])
        contents = {name: (path / name).read_bytes() for name in (WEIGHTS, STATE)}
    except FileNotFoundError as error:
        raise Damaged(f"{Path(error.filename).name} is missing") from error
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise Damaged(f"{MANIFEST} cannot be read: {error}") from error
    for name, content in contents.items():
        if hashlib.sha256(content).hexdigest() != sums.get(name):
            raise Damaged(f"{name} is not what was written")
    state = torch.load(io.BytesIO(contents[STATE]), map_location="cpu", weights_only=True)
    if state.pop("step") != step:
        raise Damaged(f"{MANIFEST} and {STATE} are of different steps")
    return Saved(step, load(contents[WEIGHTS]), state)
