"""IDX, the format of MNIST and Fashion-MNIST."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import torch
from torch import Tensor

from .damage import damaged
from .images import Images, ImageSets

DIGITS = tuple("0123456789")
CLOTHES = (
    *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)


def read_idx(path: str | Path) -> Tensor:
    """The array in an IDX file of bytes, plain or compressed by gzip.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from ncode_lab.data import read_idx
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "labels-idx1-ubyte"
    ...     _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3]) + bytes([7, 2, 1]))
    ...     read_idx(path)
    tensor([7, 2, 1], dtype=torch.uint8)
    """
    path = Path(path)
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise damaged(path, error) from error
    if len(data) < 4 or data[:3] != b"\x00\x00\x08":
        raise damaged(path, f"it begins with {data[:4].hex() or 'nothing'}, and an IDX file of bytes with 000008")
    header = 4 + 4 * data[3]
    shape = [int.from_bytes(data[at : at + 4], "big") for at in range(4, header, 4)]
    if len(data) != header + math.prod(shape) or not shape:
        wanted = " x ".join(map(str, shape))
        raise damaged(path, f"it announces {wanted} bytes, and {max(len(data) - header, 0)} follow")
    return _tensor(data[header:]).reshape(shape)


def read_idx_sets(paths: tuple[Path, ...], name: str, classes: tuple[str, ...]) -> ImageSets:
    """Training and test images of four files: images and labels, images and labels."""
    train_images, train_labels, test_images, test_labels = paths
    return ImageSets(
        _read(train_images, train_labels, name, classes, "train"),
        _read(test_images, test_labels, name, classes, "test"),
    )


def _read(images_path: Path, labels_path: Path, name: str, classes: tuple[str, ...], split: str) -> Images:
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.dim() != 3:
        raise damaged(images_path, f"it holds an array of shape {tuple(images.shape)}, and not (N, height, width)")
    if labels.shape != images.shape[:1]:
        raise damaged(labels_path, f"it holds an array of shape {tuple(labels.shape)} for {len(images)} images")
    if len(labels) and int(labels.max()) >= len(classes):
        raise damaged(labels_path, f"it has a label {int(labels.max())}, and there are {len(classes)} classes")
    return Images(images[:, None], labels.long(), name, classes, split)


def _tensor(data: bytes) -> Tensor:
    # A copy, since torch wants memory it may write to; frombuffer refuses none at all.
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
