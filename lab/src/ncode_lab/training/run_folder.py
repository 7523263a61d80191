"""`RunFolder`: all that a run writes, in a folder of its own."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncode import InputError

from . import lock
from .files import explain_os_errors, to_json_value, write_json
from .result import Result

if TYPE_CHECKING:
    from lightning_fabric import Fabric

RECORD = "run.json"
_STAMP = re.compile(r"(\d{4}-\d{2}-\d{2}-\d{6})(?:-(\d+))?")


class RunFolder:
    """A run's settings, results, figures and checkpoints.

    Made by `create`, `open` or `latest_unfinished`. Give them the `fabric` of a run on several devices: one process
    then writes, and all know the same.

    Attributes:
        path: The folder.
        record: What run.json holds; changed by `update`.

    >>> from tempfile import TemporaryDirectory
    >>> out = TemporaryDirectory()
    >>> folder = RunFolder.create(out.name, "annuli", {"preset": "quick"})
    >>> folder.update(columns=["error"])
    >>> RunFolder.latest_unfinished(out.name, "annuli").record["columns"]
    ['error']
    >>> folder.finish(); out.cleanup()
    """

    def __init__(self, path: Path, record: dict[str, Any], fabric: Fabric | None = None):
        self.path, self.record, self._fabric = path, record, fabric

    @classmethod
    def create(
        cls, out: str | Path, experiment: str, record: Mapping[str, Any], fabric: Fabric | None = None
    ) -> RunFolder:
        """A new folder, `out/EXPERIMENT-YYYY-MM-DD-HHMMSS`, with a number at its end where that one is taken."""
        first = to_json_value({"experiment": experiment, "started": _now(), **record, "finished": None})
        path = _make_new(Path(out), experiment) if _writes(fabric) else None
        folder = cls(_shared(path, fabric), first, fabric)
        folder.update()
        return folder

    @classmethod
    def open(cls, path: str | Path, fabric: Fabric | None = None) -> RunFolder:
        """A folder that a run has made, to go on with it."""
        path = Path(path)
        record = _shared(_read(path) if _writes(fabric) else None, fabric)
        if _writes(fabric) and not lock.acquire(path):
            raise InputError(f"another process is running in {path}: wait for it, or stop it first")
        if _writes(fabric):
            _remove_remains(path)
        return cls(path, record, fabric)

    @classmethod
    def latest_unfinished(cls, out: str | Path, experiment: str, fabric: Fabric | None = None) -> RunFolder | None:
        """The newest folder of an experiment whose run neither finished nor is under way; None where there is none."""
        path = _shared(_find_unfinished(Path(out), experiment) if _writes(fabric) else None, fabric)
        return None if path is None else cls.open(path, fabric)

    @property
    def figures(self) -> Path:
        """Where the figures go."""
        return self._made(self.path / "figures")

    def trial(self, name: str) -> Path:
        """The folder of a trial."""
        return self._made(self.path / "trials" / name)

    def update(self, **changes: Any) -> None:
        """Change the record, and write it."""
        self.record = {**self.record, **to_json_value(changes)}
        if _writes(self._fabric):
            write_json(self.path / RECORD, self.record)
        if self.record["finished"]:
            lock.release(self.path)

    def finish(self) -> None:
        """Note when the run finished, and let go of the folder."""
        self.update(finished=_now())

    def result(self, trial: str) -> Result | None:
        """What came out of a trial; None where it is not done."""
        return _shared(_read_result(self._result_file(trial)) if _writes(self._fabric) else None, self._fabric)

    def write_result(self, trial: str, result: Result) -> None:
        """Write down that a trial is done, and what came out."""
        self.trial(trial)
        if _writes(self._fabric):
            write_json(self._result_file(trial), result.as_json())

    def _result_file(self, trial: str) -> Path:
        return self.path / "trials" / trial / "result.json"

    def _made(self, folder: Path) -> Path:
        if _writes(self._fabric):
            with explain_os_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
        return folder


def _writes(fabric: Fabric | None) -> bool:
    return fabric is None or fabric.is_global_zero


def _shared(value: Any, fabric: Fabric | None) -> Any:
    """What the writing process knows, on all of them."""
    return value if fabric is None or fabric.world_size == 1 else fabric.broadcast(value)


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")


def _make_new(out: Path, experiment: str) -> Path:
    stamp, count = datetime.now().strftime("%Y-%m-%d-%H%M%S"), 1
    with explain_os_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        while True:
            path = out / (f"{experiment}-{stamp}" + (f"-{count}" if count > 1 else ""))
            try:
                path.mkdir()
            except FileExistsError:
                count += 1
                continue
            lock.acquire(path)
            return path


def find_unfinished(out: str | Path, experiment: str) -> Path | None:
    """The newest folder of an experiment whose run neither finished nor is under way. Nothing is locked.

    >>> find_unfinished("no/such/folder", "annuli") is None
    True
    """
    path = _find_unfinished(Path(out), experiment)
    if path is not None:
        lock.release(path)
    return path


def read_record(path: str | Path) -> dict[str, Any]:
    """What run.json of a folder says."""
    return _read(Path(path))


def _find_unfinished(out: Path, experiment: str) -> Path | None:
    found = []
    for path in out.iterdir() if out.is_dir() else ():
        stamp = _STAMP.fullmatch(path.name.removeprefix(f"{experiment}-"))
        # Stopped before it had written its record: there is nothing to go on with.
        if stamp and path.name.startswith(experiment) and (path / RECORD).is_file():
            found.append((stamp[1], int(stamp[2] or 1), path))
    for _, _, path in sorted(found, reverse=True):
        if not _read(path).get("finished") and lock.acquire(path):
            return path
    return None


def _remove_remains(path: Path) -> None:
    """Of files that a killed process was writing."""
    for remains in path.rglob(".*.tmp"):
        if remains.is_file():
            remains.unlink()


def _read(path: Path) -> dict[str, Any]:
    if not (path / RECORD).is_file():
        raise InputError(f"{path} has no {RECORD}: it is not the folder of a run")
    return _read_json(path / RECORD, "the run cannot go on: start a new one without --resume")


def _read_json(path: Path, advice: str) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}); {advice}") from error
    if not isinstance(data, dict):
        raise InputError(f"{path} is damaged (it holds no JSON object); {advice}")
    return data


def _read_result(path: Path) -> Result | None:
    if not path.is_file():
        return None
    advice = "delete it, and the trial is run again"
    data = _read_json(path, advice)
    known = {field.name for field in fields(Result)}
    data = {name: value for name, value in data.items() if name in known}
    try:
        data["metrics"] = {name: _number(value) for name, value in data["metrics"].items()}
        data["curves"] = {name: [_number(each) for each in value] for name, value in data.get("curves", {}).items()}
        return Result(**data)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({error}); {advice}") from error


def _number(value: Any) -> Any:
    """JSON has no nan: null stands for it."""
    return math.nan if value is None else value
