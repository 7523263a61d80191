"""`RunFolder`: the folder of a run, with its record, results, figures and lock."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from ncode import InputError

from .devices import broadcast
from .files import explain_os_errors, read_json, remove_folder, remove_leftovers, to_json_value, write_json
from .lock import FolderLock, is_locked, lock_owner
from .result import Result

if TYPE_CHECKING:
    from lightning_fabric import Fabric

RECORD, RESULT = "run.json", "result.json"
SEQUENCE = "sequence"  # in run.json: counts the runs of an experiment, whatever the clock says
_STAMP = re.compile(r"(\d{4}-\d{2}-\d{2}-\d{6})(?:-(\d+))?")


class RunFolder:
    """A run's settings, results, figures and checkpoints.

    Made by `create` or `open`, which lock the folder for this process until `finish`, `close` or the end of a `with`
    block. If that block ends with an `InputError` before a trial has written anything, a new folder is removed.
    For a run on several devices, pass its `fabric`: one process then writes, and all get the same values.

    Attributes:
        path: The folder.
        record: The content of run.json; change it with `update`.

    >>> from tempfile import TemporaryDirectory
    >>> out = TemporaryDirectory()
    >>> with RunFolder.create(out.name, "annuli", {"preset": "quick"}) as folder:
    ...     folder.update(columns=["error"])
    >>> with RunFolder.open(folder.path) as folder:
    ...     folder.record["columns"]
    ['error']
    >>> out.cleanup()
    """

    def __init__(
        self, path: Path, record: dict[str, Any], fabric: Fabric | None = None, lock: FolderLock | None = None
    ):
        self.path, self.record, self._fabric, self._lock = path, record, fabric, lock
        self._is_new = False

    @classmethod
    def create(cls, out: str | Path, experiment: str, record: Mapping[str, Any], fabric: Fabric | None = None) -> Self:
        """Create `out/EXPERIMENT-YYYY-MM-DD-HHMMSS`, with a number appended if that exists."""
        made = _create_folder(Path(out), experiment) if _writes(fabric) else (None, None, None)
        path, sequence = broadcast(made[:2], fabric)
        first = {"experiment": experiment, "started": _now(), SEQUENCE: sequence, **record, "finished": None}
        with ExitStack() as on_error:
            folder = on_error.enter_context(cls(path, to_json_value(first), fabric, made[2]))
            folder.update()
            folder._is_new = True
            on_error.pop_all()
        return folder

    @classmethod
    def open(cls, path: str | Path, fabric: Fabric | None = None) -> Self:
        """Open an existing folder to resume its run."""
        path, lock = Path(path), None
        if _writes(fabric):
            read_record(path)  # or say that this is no run folder, before a file is created there
            with explain_os_errors(path):
                lock = FolderLock.acquire(path)
            if lock is None:
                raise InputError(f"{path} is in use by {lock_owner(path)}: wait for it, or stop it first")
        with ExitStack() as on_error:
            folder = on_error.enter_context(cls(path, {}, fabric, lock))
            if _writes(fabric):
                with explain_os_errors(path):
                    remove_leftovers(path)
            # Read again: nobody else changes it any more.
            folder.record = broadcast(read_record(path) if _writes(fabric) else None, fabric)
            on_error.pop_all()
        return folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.close()
        refused = kind is not None and issubclass(kind, InputError)
        if refused and self._is_new and _writes(self._fabric) and not _has_files(self.path / "trials"):
            remove_folder(self.path)  # or --resume would take a run that is refused each time

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

    def finish(self) -> None:
        """Record when the run finished, and unlock the folder."""
        self.update(finished=_now())
        self.close()

    def close(self) -> None:
        """Unlock the folder. The run can then be resumed, also by another process."""
        if self._lock is not None:
            self._lock.release()

    def result(self, trial: str, warn: Callable[[str], None] = lambda text: None) -> Result | None:
        """The result of a trial; None if it is not done.

        A damaged result is renamed and counts as not done; `warn` is called with a sentence about it.
        """
        path = self.path / "trials" / trial / RESULT
        return broadcast(_read_result(path, warn) if _writes(self._fabric) else None, self._fabric)

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
    """Find the folder of an experiment's newest run that lacks something and is not in use.

    A run is finished if its record says so and all results are there and whole.
    """
    for path in reversed(_run_folders(Path(out), experiment)):
        if not is_locked(path) and not _is_finished(path):
            return path
    return None


def list_unfinished(out: str | Path, experiment: str) -> list[Path]:
    """All runs that `find_unfinished` could find, newest first. Those with a damaged record are left out."""
    found = []
    for path in reversed(_run_folders(Path(out), experiment)):
        with suppress(InputError):
            if not is_locked(path) and not _is_finished(path):
                found.append(path)
    return found


def find_finished(out: str | Path, experiment: str) -> Path | None:
    """Find the folder of an experiment's newest run that is finished, with all of its results."""
    for path in reversed(_run_folders(Path(out), experiment)):
        if _is_finished(path):
            return path
    return None


def find_in_use(out: str | Path, experiment: str) -> Path | None:
    """Find the folder of an experiment's newest run that a process is working in."""
    return next(filter(is_locked, reversed(_run_folders(Path(out), experiment))), None)


def _is_finished(path: Path) -> bool:
    record = read_record(path)
    trials = record.get("trials")
    if not record.get("finished"):
        return False
    names = [name for name in trials if isinstance(name, str)] if isinstance(trials, list) else []
    with suppress(InputError):
        for name in names:
            # A name with a separator could point outside the run.
            Result.from_json(read_json(path / "trials" / Path(name).name / RESULT))
        return True
    return False


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


def _writes(fabric: Fabric | None) -> bool:
    return fabric is None or fabric.is_global_zero


def _has_files(folder: Path) -> bool:
    return any(file.is_file() for file in folder.rglob("*"))


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _run_folders(out: Path, experiment: str) -> list[Path]:
    """The run folders of an experiment, oldest first."""
    found = []
    for path in out.iterdir() if out.is_dir() else ():
        stamp = _STAMP.fullmatch(path.name.removeprefix(f"{experiment}-"))
        # A run that was stopped before it wrote its record cannot be resumed.
        if stamp and path.name.startswith(experiment) and (path / RECORD).is_file():
            found.append((stamp[1], int(stamp[2] or 1), path))
    ordered, sequence = [], 0
    for _, _, path in sorted(found):
        # Names follow the clock, which may have been set back. Records without a number stay next to their neighbour.
        sequence = _sequence(path) or sequence
        ordered.append((sequence, path))
    return [path for _, path in sorted(ordered, key=lambda item: item[0])]


def _sequence(path: Path) -> int:
    """The number of a run; 0 if its record has none, or is damaged."""
    with suppress(InputError):
        number = read_record(path).get(SEQUENCE)
        return number if isinstance(number, int) else 0
    return 0


def _create_folder(out: Path, experiment: str) -> tuple[Path, int, FolderLock | None]:
    stamp, count = datetime.now().strftime("%Y-%m-%d-%H%M%S"), 1
    with explain_os_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        sequence = 1 + max(map(_sequence, _run_folders(out, experiment)), default=0)
        path = out / f"{experiment}-{stamp}"
        while True:
            with suppress(FileExistsError):
                path.mkdir()
                return path, sequence, FolderLock.acquire(path)
            count += 1
            path = out / f"{experiment}-{stamp}-{count}"


def _read_result(path: Path, warn: Callable[[str], None]) -> Result | None:
    if not path.is_file():
        return None
    try:
        return Result.from_json(read_json(path))
    except InputError as error:
        aside = path.with_suffix(".damaged")
        with explain_os_errors(path):
            path.replace(aside)
        warn(f"{path} is damaged ({error}): the trial is run again, and the damaged file is now {aside.name}")
        return None
