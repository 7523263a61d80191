"""Files that are whole or not there: written under another name, then renamed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from .errors import RunError


def write_file(path: Path, content: bytes) -> None:
    """Write a file in one go: whoever looks sees the old content or the new one, even after a crash.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_file(Path(folder) / "note.txt", b"whole")
    ...     os.listdir(folder)
    ['note.txt']
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with explain_os_errors(path):
        try:
            write_through(temporary, content)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """A file of JSON, in one go: see `json_text`."""
    write_file(path, json_text(value).encode())


def write_through(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on the disk, so that no rename can overtake it."""
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
def explain_os_errors(path: Path):
    """Turn the system's error into a sentence. What was written before is whole, so a run can go on later."""
    try:
        yield
    # A file where a folder should be: nothing was written yet, and room would not help.
    except (FileExistsError, NotADirectoryError) as error:
        raise RunError(f"{path} cannot be made: a file is in its way; name another folder") from error
    except OSError as error:
        reason = error.strerror or error
        raise RunError(
            f"{path} could not be written: {reason}. What was written before is whole: "
            "make room or give access, then go on with --resume"
        ) from error


def json_text(value: Any, sort: bool = False) -> str:
    """Strict JSON, see `to_json_value`: each entry of a dict on a line of its own, all numbers of a list on one.

    Args:
        value: What to write.
        sort: Whether keys come in the order of the alphabet.

    >>> print(json_text({"sizes": (8, 16), "loss": [0.5, 0.25]}, sort=True), end="")
    {
     "loss": [0.5, 0.25],
     "sizes": [8, 16]
    }
    """
    return _text(to_json_value(value), sort, "\n") + "\n"


def _text(value: Any, sort: bool, line: str) -> str:
    inner = line + " "
    if isinstance(value, dict) and value:
        items = sorted(value.items()) if sort else value.items()
        entries = [f"{json.dumps(name, ensure_ascii=False)}: {_text(each, sort, inner)}" for name, each in items]
        return "{" + inner + f",{inner}".join(entries) + line + "}"
    if isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
        return "[" + inner + f",{inner}".join(_text(each, sort, inner) for each in value) + line + "]"
    return json.dumps(value, ensure_ascii=False)


def to_json_value(value: Any) -> Any:
    """A value as strict JSON has it: paths as text, tuples as lists, numbers that are not finite as null.

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
