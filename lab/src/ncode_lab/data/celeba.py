"""CelebA: a folder of aligned JPEG files, cropped to the face and reduced to 64 x 64."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from ncode import InputError

from .download import Progress, cache_dir
from .images import Images, ImageSets
from .readers import damaged

WHOLE = 202_599
_FIRST_TEST = 182_638  # the publisher's split, by the number in the file name
_SIDE = 64
_CROPS = {(178, 218): 148, (89, 109): 74}  # side of the central crop, by the size of the image: published, and half
_RECIPE = "centre 148 of 178, 64 x 64, bilinear, 1"


def read_celeba(folder: str | Path, *, cache: str | Path | None = None, progress: Progress | None = None) -> ImageSets:
    """Read CelebA from img_align_celeba: the central 148 x 148 of 178 x 218 (74 x 74 of 89 x 109), resized to 64 x 64.

    The images are decoded once, on all cores, and stored as one file in the cache. The test images are the publisher's,
    by number, or the last tenth if the folder ends before them. There are no labels. Requires the package pillow.

    Args:
        folder: The folder of 000001.jpg and so on.
        cache: The folder of the cache; nothing is stored if it is not writable. Default: `cache_dir()`.
        progress: Called as progress("CelebA", images done, images in all).
    """
    folder = Path(folder)
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".jpg", ".jpeg"))
    if len(paths) < 2:
        raise InputError(f"{folder} has {len(paths)} JPEG files: expected those of img_align_celeba, 000001.jpg and on")
    stored = Path(cache or cache_dir()) / "celeba" / f"{_fingerprint(paths)}.pt"
    images = _load_cached(stored, len(paths))
    if images is None:
        images = _decode_all(paths, progress)
        _store(images, stored)
    return _split(images, paths)


def _split(images: Tensor, paths: Sequence[Path]) -> ImageSets:
    count = len(paths)
    short = f"{count // 1000}k" if count % 1000 == 0 else str(count)
    name = "CelebA" if count == WHOLE else f"CelebA (first {short})"
    numbers = [int(path.stem) if path.stem.isdigit() else 0 for path in paths]
    first = next((k for k, number in enumerate(numbers) if number >= _FIRST_TEST), None)
    start = first or count - max(count // 10, 1)
    train, test = (
        Images(part, torch.zeros(len(part), dtype=torch.int64), name, (), split)
        for part, split in ((images[:start], "train"), (images[start:], "test"))
    )
    return ImageSets(train, test)


def _decode_all(paths: Sequence[Path], progress: Progress | None) -> Tensor:
    try:
        import PIL.Image  # noqa: F401  # before any thread needs it
    except ImportError as error:
        raise InputError("reading JPEG files needs the package pillow: pip install ncode-lab[images]") from error
    images = torch.empty(len(paths), 3, _SIDE, _SIDE, dtype=torch.uint8)
    # Threads are enough: pillow releases the interpreter's lock while it decodes.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, image in enumerate(pool.map(_decode, paths), 1):
            images[done - 1] = image
            if progress and (done % 500 == 0 or done == len(paths)):
                progress("CelebA", done, len(paths))
    return images


def _decode(path: Path) -> Tensor:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path, formats=("JPEG",)) as image:
            if image.size not in _CROPS:
                raise InputError(
                    f"{path} is {image.size[0]} x {image.size[1]}: expected an aligned image of CelebA, 178 x 218, or"
                    " 89 x 109 at half size"
                )
            side = _CROPS[image.size]
            # A box may begin between two pixels, as the central 74 of 89 does.
            left, top = (image.size[0] - side) / 2, (image.size[1] - side) / 2
            small = image.convert("RGB").resize(
                (_SIDE, _SIDE), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side)
            )
    # A size of many million pixels is refused as pillow reads the header.
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise damaged(path, error) from error
    data = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)
    return data.reshape(_SIDE, _SIDE, 3).permute(2, 0, 1)


def _fingerprint(paths: Sequence[Path]) -> str:
    """Hash names, sizes and times of the files, and how they are cropped."""
    digest = hashlib.sha256(_RECIPE.encode())
    for path in paths:
        status = path.stat()
        digest.update(f"{path.name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:24]


def _load_cached(path: Path, count: int) -> Tensor | None:
    try:
        images = torch.load(path, weights_only=True)
    except Exception:  # missing or damaged, and other bytes can make an unpickler raise anything: decoded again
        return None
    valid = isinstance(images, Tensor) and images.dtype == torch.uint8 and images.shape == (count, 3, _SIDE, _SIDE)
    return images if valid else None


def _store(images: Tensor, path: Path) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            torch.save(images, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, RuntimeError):  # not writable, or a full disk: the next run decodes again
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
