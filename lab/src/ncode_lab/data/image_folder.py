"""A folder with one subfolder of PNG or JPEG images per class."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ncode import InputError

from ..limits import DATA_LIMIT, check_size, read_bytes
from .images import Labelled, Parts

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".png", ".jpg", ".jpeg")
OTHER_SUFFIXES = (".bmp", ".gif", ".tif", ".tiff", ".webp")
GREY_MODES = ("1", "L", "LA", "I;16", "I", "F")


class Entry(NamedTuple):
    """An image file, and the number of its class."""

    path: Path
    label: int


class Head(NamedTuple):
    """Size and mode of an image, read without decoding it."""

    size: tuple[int, int]
    mode: str


def read_image_folder(folder: Path, image_size: int = 0, channels: int = 0) -> Parts:
    """Training images with labels, test images if there is a folder `test`, and the names of the classes.

    Images directly in the folder have no labels. Photographs are turned upright as their camera says, and what is
    transparent becomes white.
    """
    _check_pillow()
    train_folder = folder / "train"
    has_parts = train_folder.is_dir() and (folder / "test").is_dir()
    train, classes = _list(train_folder if has_parts else folder)
    test: list[Entry] = []
    if has_parts:
        test, others = _list(folder / "test")
        if others != classes:
            extra = ", ".join(sorted(set(others) ^ set(classes))) or "their images"
            raise InputError(f"{folder}: train and test must have the same classes; they differ by {extra}")
    every = [*train, *test]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        heads = list(pool.map(_read_head, (entry.path for entry in every)))
        size = (image_size, image_size) if image_size else _one_size(every, heads)
        channels = channels or (1 if all(head.mode in GREY_MODES for head in heads) else 3)
        check_size(folder, len(every) * channels * size[0] * size[1], "Choose a smaller --image-size, or")
        images = torch.empty(len(every), channels, size[1], size[0], dtype=torch.uint8)
        jobs = pool.map(lambda entry: _decode(entry.path, size, channels), every)
        for place, image in enumerate(jobs):
            images[place] = image
    labels = torch.tensor([entry.label for entry in every]) if classes else None
    first, rest = (
        Labelled(images[part], None if labels is None else labels[part])
        for part in (slice(0, len(train)), slice(len(train), None))
    )
    return Parts(first, rest if has_parts else None, classes)


def _check_pillow() -> None:
    try:
        import PIL.Image  # noqa: F401  # before any thread needs it
    except ImportError as error:
        raise InputError("reading images needs the package pillow: pip install ncode-lab[images]") from error


def _list(folder: Path) -> tuple[list[Entry], tuple[str, ...]]:
    """The images of a folder and the names of its classes, both in the order of names."""
    visible = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    folders = [path for path in visible if path.is_dir()]
    loose = _image_files(folder, visible)
    if not folders and not loose:
        raise InputError(
            f"{folder} holds no images: one subfolder of PNG or JPEG files per class was expected, or, without labels,"
            " the files themselves"
        )
    if not folders:
        return [Entry(path, 0) for path in loose], ()
    if loose:
        raise InputError(
            f"{folder} holds both folders and images, such as {loose[0].name}: move the images into folders of classes,"
            " or all of them into one folder without subfolders"
        )
    entries = []
    for label, each in enumerate(folders):
        files = sorted(path for path in each.iterdir() if not path.name.startswith("."))
        nested = next((path for path in files if path.is_dir()), None)
        if nested is not None:
            raise InputError(f"{nested} is a folder within a class: put the images of a class directly into {each}")
        found = _image_files(each, files)
        if not found:
            raise InputError(f"the class {each} holds no PNG or JPEG files: add some, or delete the folder")
        entries += [Entry(path, label) for path in found]
    return entries, tuple(each.name for each in folders)


def _image_files(folder: Path, files: Sequence[Path]) -> list[Path]:
    for path in files:
        if path.suffix.lower() in OTHER_SUFFIXES and path.is_file():
            raise InputError(f"{path} is neither PNG nor JPEG: convert it, or remove it from {folder}")
    found = [path for path in files if path.suffix.lower() in SUFFIXES and not path.is_dir()]
    for path in found:
        if not path.is_file():  # a pipe, which would be waited for, or a link to nothing
            raise _unreadable(path, "it is not a file")
    return found


def _open(path: Path) -> Image.Image:
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(io.BytesIO(read_bytes(path, DATA_LIMIT)), formats=("PNG", "JPEG"))
    except UnidentifiedImageError as error:
        raise _unreadable(path, "it is neither PNG nor JPEG, or damaged") from error
    except Exception as error:  # bytes of others can make a decoder raise anything
        raise _unreadable(path, error) from error


def _unreadable(path: Path, fault: object) -> InputError:
    if isinstance(fault, InputError):
        return fault
    return InputError(f"{path} cannot be read: {fault}. Replace or remove it")


def _read_head(path: Path) -> Head:
    image = _open(path)
    try:
        # As the camera was held: 5 to 8 lie on their side.
        turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)
    except Exception as error:
        raise _unreadable(path, error) from error
    width, height = image.size
    return Head((height, width) if turned else (width, height), image.mode)


def _one_size(entries: Sequence[Entry], heads: Sequence[Head]) -> tuple[int, int]:
    size = heads[0].size
    for entry, head in zip(entries, heads, strict=True):
        if head.size != size:
            raise InputError(
                f"{entry.path} has {head.size[0]} x {head.size[1]} pixels and {entries[0].path} {size[0]} x {size[1]}:"
                " all images need one size; --image-size 32 crops them to squares and resizes them to 32 x 32"
            )
    return size


def _decode(path: Path, size: tuple[int, int], channels: int) -> Tensor:
    from PIL import Image, ImageOps

    try:
        image = ImageOps.exif_transpose(_open(path))
        if image.has_transparency_data:
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
        if image.mode.startswith("I"):  # 16 bits to 8
            image = image.convert("I").point(lambda value: value * (1 / 257)).convert("L")
        image = image.convert("L" if channels == 1 else "RGB")
        if image.size != size:
            image = ImageOps.fit(image, size, Image.Resampling.BILINEAR)
        data = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    except Exception as error:
        raise _unreadable(path, error) from error
    return data.reshape(size[1], size[0], channels).permute(2, 0, 1)
