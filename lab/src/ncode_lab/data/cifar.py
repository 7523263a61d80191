"""CIFAR-10: its binary and its Python version, unpacked or in their archives."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .damage import damaged
from .images import Images, ImageSets
from .pickles import read_pickle

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_SHAPE = (3, 32, 32)
_ROW = 1 + 3 * 32 * 32

Read = Callable[[bytes, str], tuple[Tensor, Tensor]]


def read_cifar10(path: str | Path) -> ImageSets:
    """CIFAR-10 from cifar-10-batches-bin, cifar-10-batches-py, or the archive of either.

    The Python version is a set of pickles: they are read without running anything they ask for.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from ncode_lab.data import read_cifar10
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"):
    ...         _ = (Path(folder) / f"{name}.bin").write_bytes(bytes([3]) + bytes(3072))
    ...     train, test = read_cifar10(folder)
    >>> train, train.classes[train.labels[0]]
    (Images(CIFAR-10, train, 5 of 3 x 32 x 32, on cpu), 'cat')
    """
    path = Path(path)
    suffix, read = _form(path)
    names = [f"data_batch_{k}{suffix}" for k in range(1, 6)] + [f"test_batch{suffix}"]
    data = _from_folder(path, names) if path.is_dir() else _from_archive(path, names)
    parts = [read(data[name], str(path / name)) for name in names]
    images, labels = zip(*parts, strict=True)
    return ImageSets(
        Images(torch.cat(images[:-1]), torch.cat(labels[:-1]), "CIFAR-10", CLASSES, "train"),
        Images(images[-1], labels[-1], "CIFAR-10", CLASSES, "test"),
    )


def _form(path: Path) -> tuple[str, Read]:
    binary = any(path.glob("*.bin")) if path.is_dir() else "python" not in path.name
    return (".bin", _binary) if binary else ("", _pickled)


def _from_folder(path: Path, names: list[str]) -> dict[str, bytes]:
    for name in names:
        if not (path / name).is_file():
            raise damaged(path, f"it has no {name}")
    return {name: (path / name).read_bytes() for name in names}


def _from_archive(path: Path, names: list[str]) -> dict[str, bytes]:
    """The files wanted, read where they are: nothing is unpacked, so no name in the archive can lead anywhere."""
    found: dict[str, bytes] = {}
    try:
        with gzip.open(path) as packed:
            with tarfile.open(fileobj=packed, mode="r|") as archive:
                for member in archive:
                    name = Path(member.name).name
                    if name in names and (file := archive.extractfile(member)) is not None:
                        found[name] = file.read()
            while packed.read(1 << 20):  # to the end, where the checksum is
                pass
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise damaged(path, error) from error
    for name in names:
        if name not in found:
            raise damaged(path, f"it has no {name}")
    return found


def _binary(data: bytes, name: str) -> tuple[Tensor, Tensor]:
    """Rows of a label and 3072 bytes of an image."""
    if not data or len(data) % _ROW:
        raise damaged(name, f"it has {len(data)} bytes, which are not whole rows of {_ROW}")
    rows = torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(-1, _ROW)
    return rows[:, 1:].reshape(-1, *_SHAPE), _labels(rows[:, 0], name)


def _pickled(data: bytes, name: str) -> tuple[Tensor, Tensor]:
    """A dictionary with an array of images and a list of labels."""
    batch = read_pickle(data, name)
    images, labels = (_entry(batch, key) for key in ("data", "labels"))
    whole = isinstance(labels, list) and all(isinstance(label, int) and label >= 0 for label in labels)
    if not isinstance(images, Tensor) or images.dim() != 2 or images.shape[1] != _ROW - 1 or not whole:
        raise damaged(name, "it has no array of images of 3072 bytes each under 'data', or no list under 'labels'")
    if len(labels) != len(images):
        raise damaged(name, f"it has {len(labels)} labels for {len(images)} images")
    return images.reshape(-1, *_SHAPE), _labels(torch.tensor(labels, dtype=torch.int64), name)


def _entry(batch: Any, key: str) -> Any:
    return batch.get(key, batch.get(key.encode())) if isinstance(batch, dict) else None


def _labels(labels: Tensor, name: str) -> Tensor:
    if len(labels) and int(labels.max()) >= len(CLASSES):
        raise damaged(name, f"it has a label {int(labels.max())}, and there are {len(CLASSES)} classes")
    return labels.long()
