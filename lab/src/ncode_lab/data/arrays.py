"""Images and labels in arrays: of an .npz file, or from a function."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ncode import InputError

from ..limits import DATA_LIMIT, check_size, read_bytes
from .images import Labelled, Parts
from .readers import damaged

if TYPE_CHECKING:
    import numpy as np

KEYS = ("images", "labels", "test_images", "test_labels", "classes")
# As other programs call them.
ALIASES = {
    "x_train": "images",
    "y_train": "labels",
    "x_test": "test_images",
    "y_test": "test_labels",
    "train_images": "images",
    "train_labels": "labels",
}
GREY = (0.299, 0.587, 0.114)  # weights of red, green and blue, as Pillow has them


def read_npz(path: Path, image_size: int = 0, channels: int = 0) -> Parts:
    """The arrays of an .npz file: see `read_arrays`. Nothing in the file is run, and no more than the limit is read."""
    try:
        with zipfile.ZipFile(io.BytesIO(read_bytes(path, DATA_LIMIT))) as archive:
            _check_names([name.removesuffix(".npy") for name in archive.namelist()], str(path))
            # No member gives more bytes than it announces.
            check_size(path, sum(member.file_size for member in archive.infolist()))
            contents = {name.removesuffix(".npy"): archive.read(name) for name in archive.namelist()}
    except InputError:
        raise
    except Exception as error:  # other bytes can make the reader of archives raise anything
        raise damaged(path, error) from error
    found = {name: _read_npy(content, path, name) for name, content in contents.items()}
    return read_arrays(found, str(path), image_size, channels)


def _read_npy(content: bytes, path: Path, name: str) -> np.ndarray[Any, Any]:
    """Read an array whose header announces exactly the bytes that follow."""
    import numpy as np
    from numpy.lib import format as npy

    file = io.BytesIO(content)
    try:
        version = npy.read_magic(file)
        read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read_header(file)
    except Exception as error:
        raise damaged(path, f"{name} is no array ({error})") from error
    if dtype.hasobject:
        raise InputError(f"{path}: {name} holds Python objects, which are not read: save numbers or strings instead")
    rest = content[file.tell() :]
    if math.prod(shape) * dtype.itemsize != len(rest) or min(shape, default=0) < 0 or not dtype.itemsize:
        raise damaged(path, f"{name} announces an array {shape} of {dtype}, and {len(rest)} bytes follow")
    array = np.frombuffer(rest, dtype) if rest else np.empty(0, dtype)
    return array.reshape(shape, order="F" if fortran else "C")


def read_arrays(arrays: Mapping[str, Any], where: str, image_size: int = 0, channels: int = 0) -> Parts:
    """Training images with labels, test images if there are any, and the names of the classes.

    Images are (N, H, W), (N, H, W, C) or (N, C, H, W), with C 1 or 3: whole numbers from 0 to 255, numbers from 0 to 1,
    or booleans. Labels are (N,), whole numbers or strings. `classes` names the whole numbers from 0 on.
    """
    named = {ALIASES.get(str(key), str(key)): value for key, value in arrays.items()}
    _check_names([str(key) for key in arrays], where)
    train = _images(named["images"], f"{where}: images", image_size, channels)
    labels, classes = _labels(named, where, len(train))
    if "test_images" not in named:
        if "test_labels" in named:
            raise InputError(f"{where} holds test_labels without test_images: add them, or leave both out")
        return Parts(Labelled(train, labels.get("labels")), None, classes)
    test = _images(named["test_images"], f"{where}: test_images", image_size, channels or train.shape[1])
    if "test_labels" in labels and len(labels["test_labels"]) != len(test):
        raise InputError(f"{where} has {len(labels['test_labels'])} test_labels for {len(test)} test_images")
    return Parts(Labelled(train, labels.get("labels")), Labelled(test, labels.get("test_labels")), classes)


def _check_names(given: Sequence[str], where: str) -> None:
    named = [ALIASES.get(key, key) for key in given]
    if "images" not in named or not set(named) <= set(KEYS) or len(set(named)) < len(named):
        raise InputError(
            f"{where} must hold the array images, and perhaps {', '.join(KEYS[1:])}; given"
            f" {', '.join(given)[:200] or 'none'}"
        )


def _images(value: Any, what: str, image_size: int, channels: int) -> Tensor:
    images = _to_bytes(_tensor(value, what), what)
    if images.dim() == 3:
        images = images[:, None]
    elif images.dim() != 4:
        raise InputError(f"{what} must be (N, H, W), (N, H, W, C) or (N, C, H, W); given {tuple(images.shape)}")
    else:
        images = _channels_first(images, what)
    if not images.numel():
        raise InputError(f"{what} is empty; its shape is {tuple(images.shape)}")
    if channels == 3:
        images = images.expand(-1, 3, -1, -1)
    elif channels == 1 and images.shape[1] == 3:
        images = torch.einsum("nchw,c->nhw", images.float(), torch.tensor(GREY))[:, None].round().to(torch.uint8)
    return _resize(images, image_size).contiguous() if image_size else images.contiguous()


def _channels_first(images: Tensor, what: str) -> Tensor:
    first, last = images.shape[1] in (1, 3), images.shape[3] in (1, 3)
    if first == last:
        problem = "either axis could be the channels" if first else "there must be 1 or 3 channels"
        raise InputError(f"{what} has the shape {tuple(images.shape)}: {problem}; give (N, H, W) for grey images")
    return images if first else images.permute(0, 3, 1, 2)


def _resize(images: Tensor, side: int) -> Tensor:
    """Crop to the central square, and resize."""
    height, width = images.shape[2:]
    square = min(height, width)
    top, left = (height - square) // 2, (width - square) // 2
    images = images[:, :, top : top + square, left : left + square]
    parts = [F.interpolate(part, (side, side), mode="bilinear", antialias=True) for part in images.split(1000)]
    return torch.cat(parts)


def _tensor(value: Any, what: str) -> Tensor:
    try:
        return value.detach().cpu() if isinstance(value, Tensor) else torch.as_tensor(_native(value))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{what} must be an array or a tensor of numbers: {error}") from error


def _native(value: Any) -> Any:
    """An array that torch can take: writable, in the byte order of this machine."""
    import numpy as np

    array = np.asarray(value)
    return array.astype(array.dtype.newbyteorder("="), copy=True)


def _to_bytes(images: Tensor, what: str) -> Tensor:
    """Values from 0 to 255 as bytes. Those from 0 to 1 are multiplied by 255."""
    if images.dtype in (torch.uint8, torch.bool):
        whole = images.to(torch.uint8)
        return whole if images.dtype == torch.uint8 and (not whole.numel() or whole.max() > 1) else whole * 255
    if images.is_complex() or not images.numel():
        raise InputError(f"{what} must be numbers, at least one; given {images.dtype}, {tuple(images.shape)}")
    images = images.float() if images.is_floating_point() else images.long()
    low, high = float(images.min()), float(images.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InputError(f"{what} holds values that are not finite: replace nan and inf")
    if low < 0 or high > 255:
        raise InputError(f"{what} has values from {low:g} to {high:g}: scale them to 0 to 1, or to 0 to 255")
    scale = 255.0 if high <= 1 else 1.0
    return (images * scale).round().to(torch.uint8)


def _labels(named: Mapping[str, Any], where: str, count: int) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Labels as numbers from 0 on, by key, and the names of the classes."""
    if "labels" not in named:
        if "test_labels" in named or "classes" in named:
            raise InputError(f"{where} holds classes or test_labels without labels: add them, or leave both out")
        return {}, ()
    if "test_images" in named and "test_labels" not in named:
        raise InputError(f"{where} holds labels and test_images without test_labels: add them")
    found = {key: _flat(named[key], f"{where}: {key}") for key in ("labels", "test_labels") if key in named}
    if len(found["labels"]) != count:
        raise InputError(f"{where} has {len(found['labels'])} labels for {count} images")
    names = [str(name) for name in _flat(named["classes"], f"{where}: classes")] if "classes" in named else []
    values = sorted(set(found["labels"])) if not names else list(range(len(names)))
    places = {value: place for place, value in enumerate(values)}
    for key, labels in found.items():
        for label in labels:
            if label not in places:
                raise InputError(
                    f"{where}: {key} holds {label!r}, which is "
                    + (f"no number of one of the {len(names)} classes" if names else "no label of a training image")
                )
    return {key: torch.tensor([places[label] for label in labels]) for key, labels in found.items()}, (
        tuple(names) or tuple(map(str, values))
    )


def _flat(value: Any, what: str) -> list[Any]:
    """A list of whole numbers or strings."""
    import numpy as np

    array = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or array.dtype.kind not in "iuUSb":
        raise InputError(f"{what} must be (N,), whole numbers or strings; given {array.dtype}, {array.shape}")
    return [each.decode("utf-8", "replace") if isinstance(each, bytes) else each for each in array.tolist()]
