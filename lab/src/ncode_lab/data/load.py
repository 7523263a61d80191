"""A data set by its name."""

from __future__ import annotations

from pathlib import Path

from ncode.checks import check_choice

from .celeba import read_celeba
from .cifar import read_cifar10
from .drawing import draw_digits, draw_shapes
from .fetch import Progress
from .find import MissingData, find
from .idx import CLOTHES, DIGITS, read_idx_sets
from .images import Images, ImageSets
from .streams import stream

DATASETS = ("mnist", "fashion-mnist", "cifar10", "celeba")
_GENERATED = {"train": 2000, "test": 500}


def load(
    name: str,
    data_dir: str | Path | None = None,
    *,
    download: bool = True,
    fallback: bool = False,
    progress: Progress | None = None,
) -> ImageSets:
    """The training and the test images of a data set.

    Args:
        name: mnist, fashion-mnist, cifar10 or celeba.
        data_dir: A folder of data, looked into before NCODE_DATA and the cache: see `find`.
        download: Fetch the files where they are not found.
        fallback: Where they are not found, draw a small set of the same shape instead, and do not download. Its name
            and its `generated` say so.
        progress: Called as progress(what, done, in all or None), for downloads and for the decoding of CelebA.

    >>> from ncode_lab.data import load
    >>> train, test = load("mnist", fallback=True)
    >>> train.shape, len(train.classes), train.generated == ("generated" in train.name)
    ((1, 28, 28), 10, True)
    """
    check_choice("data set", name, DATASETS)
    try:
        paths = find(name, data_dir, download=download and not fallback, progress=progress)
    except MissingData:
        if not fallback:
            raise
        return ImageSets(_draw(name, "train"), _draw(name, "test"))
    if name == "cifar10":
        return read_cifar10(paths[0])
    if name == "celeba":
        return read_celeba(paths[0], progress=progress)
    title, classes = {"mnist": ("MNIST", DIGITS), "fashion-mnist": ("Fashion-MNIST", CLOTHES)}[name]
    return read_idx_sets(paths, title, classes)


def _draw(name: str, split: str) -> Images:
    generator, count = stream(0, "drawn", split), _GENERATED[split]
    if name in ("mnist", "fashion-mnist"):
        return draw_digits(count, generator=generator, split=split)
    return draw_shapes(count, generator=generator, split=split, side=64 if name == "celeba" else 32)
