"""What the command says about an error, and the exit status that it ends with."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Sequence

import torch

from ncode import InputError, SolveError

from ..training.errors import RunError, solve_failed

# The extra of ncode-lab that installs a package; the others come with ncode-lab itself.
EXTRAS = {"submitit": "sweep", "tensorboard": "tensorboard"}
EXTRAS |= dict.fromkeys(("PIL", "numpy", "scipy", "sklearn", "openTSNE"), "images")


def check_arguments(arguments: Sequence[str]) -> None:
    """Refuse arguments that no file can hold: those with a NUL, or with bytes that are not UTF-8."""
    for argument in arguments:
        if "\0" in argument:
            raise InputError(f"the argument {argument!r} contains a NUL character: leave it out")
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"the argument {argument!r} is not valid UTF-8, in which records and results are written: rename the"
                " file or folder"
            ) from error


def explain(error: Exception, command: str) -> tuple[str, int]:
    """Return a message for the user, and the exit status: 2 for wrong arguments or files, otherwise 1.

    >>> explain(InputError("there is no file x"), "report")
    ('there is no file x', 2)
    """
    if isinstance(error, InputError):
        return str(error), 2
    if isinstance(error, RunError):
        return str(error), 1
    if isinstance(error, SolveError):
        return str(solve_failed(error)), 1
    if isinstance(error, ModuleNotFoundError) and (package := _package(error)):
        install = f"'ncode-lab[{EXTRAS[package]}]'" if package in EXTRAS else "ncode-lab"
        return f"`ncode {command}` needs the package {package}: pip install {install}", 2
    if _is_out_of_memory(error):
        fault = str(error).partition("\n")[0]
        return f"there is not enough memory: choose a smaller model, batch or data set ({fault})", 1
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        return (
            f"{place}{error.strerror or error}. Everything written earlier is complete; a run continues with --resume",
            1,
        )
    return _unexpected(error), 1


def _package(error: ModuleNotFoundError) -> str:
    """The package to install; empty if a module of our own is missing."""
    package = (error.name or "ncode").partition(".")[0]
    return "" if package in ("ncode", "ncode_lab") else package


def _is_out_of_memory(error: Exception) -> bool:
    # On the CPU torch raises a plain RuntimeError.
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)


def _unexpected(error: Exception) -> str:
    """Describe an error that nobody foresaw, and put its traceback into a file."""
    notes = "".join(f", {note}" for note in getattr(error, "__notes__", ()))
    message = f"unexpected {type(error).__name__}{notes}: {error}".partition("\n")[0]
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="ncode-error-", suffix=".txt", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.writelines(traceback.format_exception(error))
    except OSError as reason:
        return f"{message}\nThe traceback could not be written to a file: {reason}"
    return f"{message}\nThis is a defect of ncode: please report it, with the traceback in {file.name}"
