"""A disk that can be full, and files that are torn as a crash leaves them."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

ROOMY = "64m"


class Disk:
    """A folder for runs: a tmpfs whose size can be changed where mounting is allowed, otherwise a plain folder.

    Attributes:
        path: The folder.
        torn: The files that were torn, with their content before.
    """

    def __init__(self, path: Path, mounts: bool):
        self.path, self._mounts = path, mounts
        self.torn: dict[Path, bytes] = {}
        path.mkdir()
        if mounts:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOMY}", "soak", str(path)], check=True)

    def leave(self, kibibytes: int) -> None:
        """Make the disk so small that only this much can be written."""
        used = sum(file.lstat().st_size // 4096 + 1 for file in self.path.rglob("*")) * 4
        self._remount(f"{used + kibibytes}k")

    def grow(self) -> None:
        """Make room again."""
        self._remount(ROOMY)

    def tear(self, rng: random.Random) -> bool:
        """End the file that was written last at a random byte, or the journal of a sweep."""
        files = [path for path in self.path.rglob("*") if path.is_file() and path.name != ".lock"]
        if not files:
            return False
        last = max(files, key=lambda file: (file.stat().st_mtime_ns, str(file)))
        path = rng.choice([last, *(file for file in files if file.name == "values.json")])
        content = path.read_bytes()
        start = _synced_length(path) if path.name == "metrics.jsonl" else 0
        os.truncate(path, rng.randint(min(start, len(content)), len(content)))
        if not self.torn.get(path, b"").startswith(content):  # otherwise it was torn before
            self.torn[path] = content
        return True

    def follow_advice(self, torn: Sequence[Path]) -> int:
        """Delete damaged files, as messages advise. Without run.json a run cannot be resumed, so that is put back."""
        for path in torn:
            if path.name == "run.json":
                path.write_bytes(self.torn[path])
            else:
                path.unlink(missing_ok=True)
        return len(torn)

    def close(self, keep: Path | None) -> None:
        """Unmount the disk; `keep` receives a copy of what is on it."""
        if self._mounts:
            if keep is not None:
                shutil.copytree(self.path, keep, symlinks=True)
            subprocess.run(["umount", "-l", str(self.path)], check=True)

    def _remount(self, size: str) -> None:
        if self._mounts:
            subprocess.run(["mount", "-o", f"remount,size={size}", str(self.path)], check=True, capture_output=True)


def can_mount(out: Path) -> bool:
    """Whether this process may mount a tmpfs."""
    trial = out / "mount"
    trial.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "soak", str(trial)]
    try:
        done = [subprocess.run(command, capture_output=True).returncode for command in (mount, ["umount", str(trial)])]
    except OSError:  # no such command
        return False
    return not any(done)


def _synced_length(log: Path) -> int:
    """Bytes of a metrics log up to the newest checkpoint of each fit, before which it is synced."""
    newest = {
        fit.name: max((int(step.name[5:]) for step in fit.glob("step-*")), default=0)
        for fit in (log.parent / "checkpoints").glob("*")
    }
    length = synced = 0
    for line in log.read_bytes().splitlines(keepends=True):
        length += len(line)
        with suppress(ValueError):
            entry = json.loads(line)
            if entry["step"] <= newest.get(entry["fit"], 0):
                synced = length
    return synced
