"""Features of test images, kept in the cache: every run that scores images against them needs the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from ..data import cache_dir
from ..training.errors import RunError
from ..training.files import write_file


def kept_features(images: Tensor, about: str, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """What `compute` makes of images, from the cache where it was made before.

    Args:
        images: Bytes. A change in any of them makes other features.
        about: All that features depend on beside the images, in words.
        compute: Images to features (n, d), on the device of the images.

    >>> import os, tempfile, torch
    >>> before, calls = os.environ.get("XDG_CACHE_HOME"), []
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     os.environ["XDG_CACHE_HOME"] = folder
    ...     for _ in range(2):
    ...         features = kept_features(torch.ones(3, 2), "sums", lambda x: (calls.append(1), x.sum(1, True))[1])
    >>> _ = os.environ.pop("XDG_CACHE_HOME") if before is None else os.environ.update(XDG_CACHE_HOME=before)
    >>> features.flatten(), len(calls)
    (tensor([2., 2., 2.]), 1)
    """
    path = cache_dir() / "features" / f"{_digest(images, about)}.safetensors"
    found = _read(path, len(images))
    if found is None:
        found = compute(images)
        _write(path, found)
    return found.to(images.device)


def _digest(images: Tensor, about: str) -> str:
    digest = hashlib.sha256(f"{about}, {tuple(images.shape)}".encode())
    digest.update(images.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def _read(path: Path, count: int) -> Tensor | None:
    """None where there are none, or where the file is damaged: then they are made again."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        found = load(path.read_bytes())["features"]
    except (OSError, SafetensorError, KeyError):
        return None
    return found if len(found) == count and found.isfinite().all() else None


def _write(path: Path, features: Tensor) -> None:
    """A cache that cannot be written is no reason to stop a run."""
    from safetensors.torch import save

    with suppress(OSError, RunError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, save({"features": features.detach().cpu().contiguous()}))
