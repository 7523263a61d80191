"""The sentence for files that are there but cannot be read."""

from __future__ import annotations

from pathlib import Path

from ncode import InputError


def damaged(path: Path | str, what: object) -> InputError:
    """An error that names the file, what is wrong with it, and what to do."""
    return InputError(
        f"{path} is damaged: {what}. Put a good copy there, or delete it: data with a public address are then"
        " downloaded again."
    )
