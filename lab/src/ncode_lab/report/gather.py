"""Finds runs and results, and reads them. What is missing or damaged is said in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ncode import InputError

from .folder import RECORD, read_folder
from .loose import read_loose
from .run import Run


def gather(paths: Sequence[str | Path], about: Mapping[str, Mapping[str, Any]] | None = None) -> list[Run]:
    """The runs in some places, in order.

    Args:
        paths: Run folders, JSON files of one result each, or folders of any of these.
        about: What a record would say of the experiments of loose results (title, question, columns, paper), by name.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     gather([folder])
    Traceback (most recent call last):
    ncode.errors.InputError: there is no run and no result in ...
    """
    if isinstance(paths, str | Path):
        raise InputError(f"a list of paths was expected; given {str(paths)!r}: put it in brackets")
    if not paths:
        raise InputError("there is nothing to report on: give run folders, or result files")
    runs: list[Run] = []
    loose: list[Path] = []
    for path in map(Path, paths):
        _check_there(path)
        found = [read_folder(folder) for folder in _run_folders(path)]
        files = list(_loose_files(path))
        if not found and not files:
            raise InputError(
                f"there is no run and no result in {path}: give a run folder (it holds {RECORD}), a result file (JSON),"
                " or a folder of either"
            )
        runs += found
        loose += files
    return runs + read_loose(list(dict.fromkeys(loose)), about or {})


def _check_there(path: Path) -> None:
    if path.exists():
        return
    beside = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    close = get_close_matches(path.name, beside, 1)
    raise InputError(f"there is no {path}" + (f"; did you mean {path.with_name(close[0])}?" if close else ""))


def _is_run(folder: Path) -> bool:
    """A run that was stopped before it wrote its record still has its trials."""
    return (folder / RECORD).is_file() or (folder / "trials").is_dir()


def _run_folders(path: Path) -> Iterator[Path]:
    if path.name == RECORD:
        yield path.parent
    elif path.is_dir() and _is_run(path):
        yield path
    elif path.is_dir():
        yield from (folder for folder in sorted(path.iterdir()) if folder.is_dir() and _is_run(folder))


def _loose_files(path: Path) -> Iterator[Path]:
    if path.is_file() and path.name != RECORD:
        yield path
    elif path.is_dir() and not _is_run(path):
        yield from sorted(path.glob("*.json"))
        yield from (f for f in sorted(path.glob("*/*.json")) if not _is_run(f.parent))
