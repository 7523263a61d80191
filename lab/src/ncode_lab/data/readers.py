"""Readers of published files: IDX (MNIST and Fashion-MNIST) and CIFAR-10."""

from __future__ import annotations

import gzip
import io
import math
import tarfile
import zlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ncode import InputError

from ..limits import DATA_LIMIT, LimitedReader, read_bytes
from .images import Images, ImageSets
from .pickles import read_pickle

DIGITS = tuple("0123456789")
CLOTHES = (
    *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR_SHAPE = (3, 32, 32)
_CIFAR_ROW = 1 + 3 * 32 * 32  # a label and the bytes of an image


def damaged(path: Path | str, fault: object) -> InputError:
    """Return an error that names the file, its fault, and what to do."""
    return InputError(
        f"{path} is damaged: {fault}. Put a good copy there, or delete it: data with a public address are then"
        " downloaded again."
    )


def read_idx(path: str | Path) -> Tensor:
    """Read the array in an IDX file of bytes, plain or compressed with gzip."""
    path = Path(path)
    data = read_bytes(path, DATA_LIMIT)
    if data[:2] == b"\x1f\x8b":
        try:
            with gzip.open(io.BytesIO(data)) as packed:
                data = LimitedReader(packed, path, DATA_LIMIT).read()
        except (OSError, EOFError, zlib.error) as error:
            raise damaged(path, error) from error
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise damaged(path, f"it begins with {data[:4].hex() or 'nothing'}, and an IDX file of bytes with 000008")
    header = 4 + 4 * data[3]
    shape = [int.from_bytes(data[at : at + 4], "big") for at in range(4, header, 4)]
    if len(data) != header + math.prod(shape) or not shape:
        expected = " x ".join(map(str, shape))
        raise damaged(path, f"it announces {expected} bytes, and {max(len(data) - header, 0)} follow")
    try:
        return _bytes_to_tensor(data[header:]).reshape(shape)
    except RuntimeError as error:  # no bytes, in larger dimensions than torch has
        raise damaged(path, error) from error


def read_idx_sets(paths: tuple[Path, ...], name: str, classes: tuple[str, ...]) -> ImageSets:
    """Read training images and labels, test images and labels, from four files."""
    train, test = (
        _read_idx_set(paths[at], paths[at + 1], name, classes, split) for at, split in ((0, "train"), (2, "test"))
    )
    return ImageSets(train, test)


def _read_idx_set(images_path: Path, labels_path: Path, name: str, classes: tuple[str, ...], split: str) -> Images:
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.dim() != 3:
        raise damaged(images_path, f"it holds an array of shape {tuple(images.shape)}, and not (N, height, width)")
    if labels.shape != images.shape[:1]:
        raise damaged(labels_path, f"it holds an array of shape {tuple(labels.shape)} for {len(images)} images")
    return Images(images[:, None], _check_labels(labels, classes, labels_path), name, classes, split)


def read_cifar10(path: str | Path) -> ImageSets:
    """Read CIFAR-10 from cifar-10-batches-bin, cifar-10-batches-py, or the archive of either.

    The Python version is a set of pickles: they are read without running any code in them.
    """
    path = Path(path)
    binary = any(path.glob("*.bin")) if path.is_dir() else "python" not in path.name
    suffix, read = (".bin", _read_binary_batch) if binary else ("", _read_pickled_batch)
    names = [f"data_batch_{k}{suffix}" for k in range(1, 6)] + [f"test_batch{suffix}"]
    data = _read_folder(path, names) if path.is_dir() else _read_archive(path, names)
    for name in names:
        if name not in data:
            raise damaged(path, f"it has no {name}")
    images, labels = zip(*(read(data[name], str(path / name)) for name in names), strict=True)
    return ImageSets(
        Images(torch.cat(images[:-1]), torch.cat(labels[:-1]), "CIFAR-10", CIFAR10_CLASSES, "train"),
        Images(images[-1], labels[-1], "CIFAR-10", CIFAR10_CLASSES, "test"),
    )


def _read_folder(path: Path, names: list[str]) -> dict[str, bytes]:
    return {name: read_bytes(path / name, DATA_LIMIT) for name in names if (path / name).is_file()}


def _read_archive(path: Path, names: list[str]) -> dict[str, bytes]:
    """Read files without unpacking the archive, so that no path in it can point outside."""
    found: dict[str, bytes] = {}
    try:
        with gzip.open(path) as file:
            packed = LimitedReader(file, path, DATA_LIMIT)
            with tarfile.open(fileobj=packed, mode="r|") as archive:  # pyright: ignore[reportArgumentType, reportCallIssue]
                for member in archive:
                    name = Path(member.name).name
                    if name in names and (content := archive.extractfile(member)) is not None:
                        found[name] = content.read()
            while packed.read(1 << 20):  # to the end, where the checksum is
                pass
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise damaged(path, error) from error
    return found


def _read_binary_batch(data: bytes, name: str) -> tuple[Tensor, Tensor]:
    if not data or len(data) % _CIFAR_ROW:
        raise damaged(name, f"it has {len(data)} bytes, which are not whole rows of {_CIFAR_ROW}")
    rows = _bytes_to_tensor(data).reshape(-1, _CIFAR_ROW)
    return rows[:, 1:].reshape(-1, *_CIFAR_SHAPE), _check_labels(rows[:, 0], CIFAR10_CLASSES, name)


def _read_pickled_batch(data: bytes, name: str) -> tuple[Tensor, Tensor]:
    batch = read_pickle(data, name)
    images, labels = (_entry(batch, key) for key in ("data", "labels"))
    whole = isinstance(labels, list) and all(isinstance(label, int) and label >= 0 for label in labels)
    if not isinstance(images, Tensor) or images.dim() != 2 or images.shape[1] != _CIFAR_ROW - 1 or not whole:
        raise damaged(name, "it has no array of images of 3072 bytes each under 'data', or no list under 'labels'")
    if len(labels) != len(images):
        raise damaged(name, f"it has {len(labels)} labels for {len(images)} images")
    labels = torch.tensor(labels, dtype=torch.int64)
    return images.reshape(-1, *_CIFAR_SHAPE), _check_labels(labels, CIFAR10_CLASSES, name)


def _entry(batch: Any, key: str) -> Any:
    return batch.get(key, batch.get(key.encode())) if isinstance(batch, dict) else None


def _check_labels(labels: Tensor, classes: tuple[str, ...], path: Path | str) -> Tensor:
    if len(labels) and int(labels.max()) >= len(classes):
        raise damaged(path, f"it has a label {int(labels.max())}, and there are {len(classes)} classes")
    return labels.long()


def _bytes_to_tensor(data: bytes) -> Tensor:
    # A copy, since torch needs writable memory; frombuffer refuses an empty buffer.
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
