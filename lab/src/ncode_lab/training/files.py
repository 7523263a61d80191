"""Crash-safe files and folders: written under a temporary name and then renamed, so they are complete or absent."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from ncode import InputError

from ..limits import TEXT_LIMIT, read_bytes
from .errors import RunError


def write_file(path: Path, content: bytes) -> None:
    """Write a file of a run atomically; an error says how to continue the run."""
    with explain_os_errors(path):
        replace_file(path, content)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically: a reader sees the old content or the new one, even after a crash."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        # On the disk before its new name is, so that after a crash the name does not stand for an empty file.
        _sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)


def check_replaceable(path: Path) -> None:
    """Refuse to replace anything but a file: links and devices are somebody's arrangement."""
    if path.is_symlink():
        raise InputError(f"{path} is a link, which would be replaced: give the file it points to, or delete it")
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is a device or a pipe, which would be replaced: give a file or a folder")


@contextmanager
def replace_folder(path: Path) -> Iterator[Path]:
    """Replace a folder by the temporary one that the block fills. If the block fails, nothing is left of it.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as parent:
    ...     with replace_folder(Path(parent) / "model") as folder:
    ...         _ = (folder / "config.json").write_text("{}")
    ...     [str(file.relative_to(parent)) for file in Path(parent).rglob("*.json")]
    ['model/config.json']
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        for file in temporary.iterdir():
            _sync(file)
        _sync_folder(temporary)
        remove_folder(path)
        os.rename(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    _sync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder. Renamed first: a folder that is removed only in part keeps the name of a temporary one."""
    with suppress(FileNotFoundError):
        leftover = path.with_name(f".{path.name}.{os.getpid()}.old.tmp")
        os.rename(path, leftover)
        shutil.rmtree(leftover, ignore_errors=True)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files and folders that killed processes left anywhere in a folder."""
    for leftover in list(folder.rglob(".*.tmp")):
        if leftover.is_dir() and not leftover.is_symlink():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def write_json(path: Path, value: Any, sort: bool = False) -> None:
    """Write a value as strict JSON, atomically: see `json_text`."""
    # Half a surrogate pair, which UTF-8 cannot hold, becomes its JSON escape.
    write_file(path, json_text(value, sort).encode("utf-8", "backslashreplace"))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; an `InputError` says what is wrong with it."""
    try:
        value = json.loads(read_bytes(path, TEXT_LIMIT).decode("utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{path.name} is missing") from error
    # RecursionError: endlessly nested brackets are damage too.
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path.name} holds a {type(value).__name__}; one JSON object was expected")
    return value


def check_file_name(what: str, name: str) -> str:
    """Return a name that may be the name of a file or folder; refuse one that could lead elsewhere, such as "../x".

    >>> check_file_name("experiment", "annuli")
    'annuli'
    >>> check_file_name("experiment", "../results")
    Traceback (most recent call last):
    ncode.errors.InputError: the experiment '../results' cannot be the name of a folder: ...
    """
    if not re.fullmatch(r"\w[\w.=+ -]*", name) or len(name.encode("utf-8", "replace")) > 200:
        raise InputError(
            f"the {what} {name!r:.80} cannot be the name of a folder: letters, digits and . = + - _ were expected, at"
            " most 200, the first a letter or a digit"
        )
    return name


def _sync(path: Path) -> None:
    """Wait until a file or the names in a folder are on the disk."""
    handle = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # Windows cannot open a folder
        _sync(folder)


@contextmanager
def explain_os_errors(path: Path) -> Iterator[None]:
    """Turn an error of the operating system about `path` into a `RunError` that says what to do."""
    try:
        yield
    # A file where a folder should be: nothing was written yet, and freeing space would not help.
    except (FileExistsError, NotADirectoryError) as error:
        raise RunError(f"{path} cannot be created: a file is in its way; choose another folder") from error
    except OSError as error:
        raise RunError(
            f"{path} could not be written: {error.strerror or error}. Everything written earlier is complete: "
            "free space or fix the permissions, then continue with --resume"
        ) from error


def json_text(value: Any, sort: bool = False) -> str:
    """Format a value as strict JSON (see `to_json_value`): one line per entry of a dict, one line per list of numbers.

    >>> print(json_text({"sizes": (8, 16), "loss": [0.5, 0.25]}, sort=True), end="")
    {
     "loss": [0.5, 0.25],
     "sizes": [8, 16]
    }
    """
    return _format(to_json_value(value), sort, "\n") + "\n"


def _format(value: Any, sort: bool, line: str) -> str:
    inner = line + " "
    if isinstance(value, dict) and value:
        items = sorted(value.items()) if sort else value.items()
        entries = [f"{json.dumps(name, ensure_ascii=False)}: {_format(each, sort, inner)}" for name, each in items]
        return "{" + inner + f",{inner}".join(entries) + line + "}"
    if isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
        return "[" + inner + f",{inner}".join(_format(each, sort, inner) for each in value) + line + "]"
    return json.dumps(value, ensure_ascii=False)


def to_json_value(value: Any) -> Any:
    """Convert a value to what strict JSON can hold: paths to text, tuples to lists, non-finite numbers to null.

    >>> to_json_value({"out": Path("runs"), "sizes": (1, 2), "loss": float("nan")})
    {'out': 'runs', 'sizes': [1, 2], 'loss': None}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return to_json_value(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): to_json_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json_value(each) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int | bool) else str(value)
