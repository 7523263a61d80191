"""Crash-safe files: each is written under a temporary name and then renamed, so it is complete or absent."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from ncode import InputError

from .errors import RunError


def write_file(path: Path, content: bytes) -> None:
    """Write a file of a run atomically; an error says how to continue the run."""
    with explain_os_errors(path):
        replace_file(path, content)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically: a reader sees the old content or the new one, even after a crash."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        write_synced(temporary, content)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write a value as strict JSON, atomically: see `json_text`."""
    write_file(path, json_text(value).encode())


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; an `InputError` says what is wrong with it."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{path.name} is missing") from error
    # RecursionError: endlessly nested brackets are damage too.
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path.name} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path.name} holds a {type(value).__name__}; one JSON object was expected")
    return value


def write_synced(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on the disk, so that a later rename cannot overtake it."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    # Windows cannot open a folder.
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
