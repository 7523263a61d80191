"""`RunFolder`: the folder of a run, with its record, results, figures and lock."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncode import InputError

from .devices import broadcast
from .files import explain_os_errors, read_json, to_json_value, write_json
from .result import Result

try:
    import fcntl
except ImportError:  # Windows has none: there, the user must see to it that each folder has one process.
    fcntl = None

if TYPE_CHECKING:
    from lightning_fabric import Fabric

RECORD, RESULT, LOCK = "run.json", "result.json", ".lock"
_STAMP = re.compile(r"(\d{4}-\d{2}-\d{2}-\d{6})(?:-(\d+))?")
_lock_handles: dict[Path, int] = {}


class RunFolder:
    """A run's settings, results, figures and checkpoints.

    Made by `create` or `open`. For a run on several devices, pass its `fabric`: one process then writes, and all get
    the same values.

    Attributes:
        path: The folder.
        record: The content of run.json; change it with `update`.

    >>> from tempfile import TemporaryDirectory
    >>> out = TemporaryDirectory()
    >>> folder = RunFolder.create(out.name, "annuli", {"preset": "quick"})
    >>> folder.update(columns=["error"])
    >>> RunFolder.open(folder.path).record["columns"]
    ['error']
    >>> folder.finish(); out.cleanup()
    """

    def __init__(self, path: Path, record: dict[str, Any], fabric: Fabric | None = None):
        self.path, self.record, self._fabric = path, record, fabric

    @classmethod
    def create(
        cls, out: str | Path, experiment: str, record: Mapping[str, Any], fabric: Fabric | None = None
    ) -> RunFolder:
        """Create `out/EXPERIMENT-YYYY-MM-DD-HHMMSS`, with a number appended if that exists."""
        first = to_json_value({"experiment": experiment, "started": _now(), **record, "finished": None})
        path = _create_folder(Path(out), experiment) if _writes(fabric) else None
        folder = cls(broadcast(path, fabric), first, fabric)
        folder.update()
        return folder

    @classmethod
    def open(cls, path: str | Path, fabric: Fabric | None = None) -> RunFolder:
        """Open an existing folder to resume its run."""
        path = Path(path)
        record = broadcast(read_record(path) if _writes(fabric) else None, fabric)
        if _writes(fabric):
            if not lock_folder(path):
                raise InputError(f"another process is running in {path}: wait for it, or stop it first")
            for leftover in path.rglob(".*.tmp"):  # of killed processes; folders are those of checkpoints
                if leftover.is_file():
                    leftover.unlink()
        return cls(path, record, fabric)

    @property
    def figures(self) -> Path:
        """The folder of the figures."""
        return self._make(self.path / "figures")

    def trial(self, name: str) -> Path:
        """The folder of a trial."""
        return self._make(self.path / "trials" / name)

    def update(self, **changes: Any) -> None:
        """Change the record, and write it."""
        self.record = {**self.record, **to_json_value(changes)}
        if _writes(self._fabric):
            write_json(self.path / RECORD, self.record)
        if self.record["finished"]:
            unlock_folder(self.path)

    def finish(self) -> None:
        """Record when the run finished, and unlock the folder."""
        self.update(finished=_now())

    def result(self, trial: str) -> Result | None:
        """The result of a trial; None if it is not done."""
        path = self.path / "trials" / trial / RESULT
        return broadcast(_read_result(path) if _writes(self._fabric) else None, self._fabric)

    def write_result(self, trial: str, result: Result) -> None:
        """Write the result of a trial, which marks it as done."""
        folder = self.trial(trial)
        if _writes(self._fabric):
            write_json(folder / RESULT, result.as_json())

    def _make(self, folder: Path) -> Path:
        if _writes(self._fabric):
            with explain_os_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
        return folder


def find_unfinished(out: str | Path, experiment: str) -> Path | None:
    """Find the newest folder of an experiment that is neither finished nor running. It is not locked."""
    out, found = Path(out), []
    for path in out.iterdir() if out.is_dir() else ():
        stamp = _STAMP.fullmatch(path.name.removeprefix(f"{experiment}-"))
        # A run that was stopped before it wrote its record cannot be resumed.
        if stamp and path.name.startswith(experiment) and (path / RECORD).is_file():
            found.append((stamp[1], int(stamp[2] or 1), path))
    for _, _, path in sorted(found, reverse=True):
        if not read_record(path).get("finished") and lock_folder(path):
            unlock_folder(path)
            return path
    return None


def read_record(path: str | Path) -> dict[str, Any]:
    """Read run.json of a run folder."""
    file = Path(path) / RECORD
    if not file.is_file():
        raise InputError(f"{path} has no {RECORD}: it is not a run folder")
    try:
        return read_json(file)
    except InputError as error:
        raise InputError(
            f"{file} is damaged ({error}); the run cannot be resumed: start a new one without --resume"
        ) from error


def lock_folder(folder: Path) -> bool:
    """Lock a folder for this process; False if another running process has locked it.

    The lock ends with the process that holds it, however that ends.
    """
    folder = folder.resolve()
    if fcntl is None or folder in _lock_handles:
        return True
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        # Any other error: a file system without locks.
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    _lock_handles[folder] = handle
    return True


def unlock_folder(folder: Path) -> None:
    """Unlock a folder that this process has locked."""
    handle = _lock_handles.pop(folder.resolve(), None)
    if handle is not None:
        (folder / LOCK).unlink(missing_ok=True)
        os.close(handle)


def _writes(fabric: Fabric | None) -> bool:
    return fabric is None or fabric.is_global_zero


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _create_folder(out: Path, experiment: str) -> Path:
    stamp, count = datetime.now().strftime("%Y-%m-%d-%H%M%S"), 1
    with explain_os_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{experiment}-{stamp}"
        while True:
            with suppress(FileExistsError):
                path.mkdir()
                lock_folder(path)
                return path
            count += 1
            path = out / f"{experiment}-{stamp}-{count}"


def _read_result(path: Path) -> Result | None:
    if not path.is_file():
        return None
    try:
        return Result.from_json(read_json(path))
    except InputError as error:
        raise InputError(f"{path} is damaged ({error}); delete it, and the trial is run again") from error
