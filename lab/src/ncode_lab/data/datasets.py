"""Data sets by name: where they are published, where their files are found, and how they are loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ncode import InputError
from ncode.errors import check_choice, check_count

from .celeba import read_celeba
from .download import Progress, cache_dir, fetch
from .drawing import draw_digits, draw_shapes
from .images import Images, ImageSets
from .own import FORMS, is_own, load_own
from .readers import CLOTHES, DIGITS, read_cifar10, read_idx_sets
from .sampling import stream

DATASETS = ("mnist", "fashion-mnist", "cifar10", "celeba")
_GENERATED = {"train": 2000, "test": 500}  # images of a drawn set


class MissingData(InputError):
    """Data that were found in no folder."""


class File(NamedTuple):
    """One published file."""

    name: str
    checksum: str | None
    addresses: tuple[str, ...]


class Source(NamedTuple):
    """A data set, and the forms in which it may exist in a data folder."""

    title: str
    folder: str  # the usual name of its folder
    forms: tuple[tuple[str, ...], ...]  # alternative lists of names; the first complete one is used
    files: tuple[File, ...]  # what is downloaded, which makes one of the forms
    advice: str  # how a person gets it
    others: tuple[str, ...] = ()  # folders in which other programs keep it


def _idx_files(addresses: tuple[str, ...], checksums: tuple[str, ...]) -> tuple[File, ...]:
    return tuple(
        File(name, f"md5:{md5}", tuple(address + name for address in addresses))
        for name, md5 in zip(_IDX_FORMS[0], checksums, strict=True)
    )


_IDX = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
_IDX_FORMS = (tuple(f"{part}-ubyte.gz" for part in _IDX), tuple(f"{part}-ubyte" for part in _IDX))
_FID_WEIGHTS = (
    "https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/pt_inception-2015-12-05-6726825d.pth"
)
_CIFAR10 = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"

SOURCES: dict[str, Source] = {
    "mnist": Source(
        "MNIST",
        "mnist",
        _IDX_FORMS,
        _idx_files(
            (
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
                "http://yann.lecun.com/exdb/mnist/",
            ),
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
        ),
        "fetch the four files from https://storage.googleapis.com/cvdf-datasets/mnist/",
        ("MNIST/raw",),
    ),
    "fashion-mnist": Source(
        "Fashion-MNIST",
        "fashion-mnist",
        _IDX_FORMS,
        _idx_files(
            (
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            ),
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
        ),
        "fetch the four files from https://github.com/zalandoresearch/fashion-mnist",
        ("FashionMNIST/raw",),
    ),
    "cifar10": Source(
        "CIFAR-10",
        "cifar10",
        tuple((f"cifar-10-{name}",) for name in ("batches-bin", "batches-py", "binary.tar.gz", "python.tar.gz")),
        (File("cifar-10-binary.tar.gz", "md5:c32a1d4ab5d03f1284b67883e8d87530", (_CIFAR10,)),),
        f"fetch {_CIFAR10} (no need to unpack it)",
    ),
    "celeba": Source(
        "CelebA",
        "celeba",
        (("img_align_celeba",),),
        (),
        "fetch img_align_celeba.zip from https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html and unpack it",
    ),
    "inception": Source(
        "the FID network (Inception, 2015-12-05)",
        "inception",
        (("inception-2015-12-05-fp16.safetensors",), (_FID_WEIGHTS.rpartition("/")[2],)),
        (),
        f"fetch {_FID_WEIGHTS} (95 MB)",
    ),
}


def load(
    name: str,
    data_dir: str | Path | None = None,
    *,
    download: bool = True,
    fallback: bool = False,
    progress: Progress | None = None,
    image_size: int = 0,
    channels: int = 0,
) -> ImageSets:
    """Load the training and the test images of a data set.

    Args:
        name: mnist, fashion-mnist, cifar10 or celeba; or data of your own, see `load_own`.
        data_dir: A data folder, searched before NCODE_DATA and the cache: see `find`.
        download: Fetch files that are not found.
        fallback: If files are not found, draw a small set of the same shape instead of downloading. Its name and its
            `generated` say so.
        progress: Called as progress(name, done, total or None), for downloads and for the decoding of CelebA.
        image_size, channels: For data of your own: see `load_own`.

    >>> from ncode_lab.data import load
    >>> train, test = load("mnist", fallback=True)
    >>> train.shape, len(train.classes), train.generated == ("generated" in train.name)
    ((1, 28, 28), 10, True)
    """
    check_dataset(name, DATASETS, image_size, channels)
    if name not in DATASETS:
        return load_own(name, image_size, channels).sets
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
    return read_idx_sets(paths, SOURCES[name].title, DIGITS if name == "mnist" else CLOTHES)


def check_dataset(name: str, known: Sequence[str], image_size: int = 0, channels: int = 0) -> None:
    """Check that a data set is one of the known ones, or exists, and whether size and channels may be chosen."""
    check_count("image_size", image_size, low=0)
    if channels not in (0, 1, 3):
        raise InputError(f"channels must be 1, 3, or 0 for those of the images; given {channels}")
    if name in known:
        if image_size or channels:
            raise InputError(f"the images of {name} have one size: image_size and channels are for data of your own")
        return
    if is_own(name):
        return
    if Path(name).suffix == ".npz" or os.sep in name:
        raise InputError(f"there is no data set {name}: it must be {FORMS}, or one of {', '.join(known)}")
    try:
        check_choice("data set", name, known)
    except InputError as error:
        raise InputError(f"{error}. Or give {FORMS}") from error


def _draw(name: str, split: str) -> Images:
    generator, count = stream(0, "drawn", split), _GENERATED[split]
    if name in ("mnist", "fashion-mnist"):
        return draw_digits(count, generator=generator, split=split)
    return draw_shapes(count, generator=generator, split=split, side=64 if name == "celeba" else 32)


def find(
    name: str, data_dir: str | Path | None = None, *, download: bool = True, progress: Progress | None = None
) -> tuple[Path, ...]:
    """Find the files or the folder of a data set in data_dir, in NCODE_DATA or in the cache, or download them.

    A data folder holds each set in its own folder (mnist, fashion-mnist, cifar10, celeba, inception), or its files
    directly. A download goes to the first of data_dir, NCODE_DATA and the cache that is writable.

    Args:
        name: mnist, fashion-mnist, cifar10, celeba or inception.
        data_dir: A data folder.
        download: Fetch what is not found. CelebA and inception cannot be downloaded automatically.
        progress: Called as progress(file, bytes done, bytes in all or None).

    >>> import tempfile
    >>> from pathlib import Path
    >>> from ncode_lab.data import find
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (Path(folder) / "celeba" / "img_align_celeba").mkdir(parents=True)
    ...     [path.name for path in find("celeba", folder)]
    ['img_align_celeba']
    """
    source = SOURCES[check_choice("data set", name, SOURCES)]
    named = data_dir, os.environ.get("NCODE_DATA") or None, cache_dir()
    places = list(dict.fromkeys(Path(place).expanduser() for place in named if place is not None))
    for place in places:
        for form in source.forms:
            if found := _find_form(place, source, form):
                return found
    if download and source.files:
        return _download(source, places, progress)
    raise MissingData(_explain(source, places))


def _folders(place: Path, source: Source) -> list[Path]:
    return [place / source.folder, *(place / other for other in source.others), place]


def _find_form(place: Path, source: Source, form: tuple[str, ...]) -> tuple[Path, ...] | None:
    """Return the files of one form if all of them are in one folder."""
    for folder in _folders(place, source):
        found = tuple(folder / name for name in form)
        if all(path.exists() for path in found):
            return found
        if len(form) == 1 and folder.name == form[0] and folder.is_dir():
            return (folder,)  # data_dir is the folder itself, not its parent
    return None


def _download(source: Source, places: list[Path], progress: Progress | None) -> tuple[Path, ...]:
    explanation = _explain(source, places)  # before a folder is created that did not exist
    reasons: list[str] = []
    for place in places:
        folder = place / source.folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reasons.append(f"{folder} cannot be written to: {error.strerror}")
            continue
        if not os.access(folder, os.W_OK):
            reasons.append(f"{folder} cannot be written to")
            continue
        try:
            return tuple(fetch(file.addresses, folder / file.name, file.checksum, progress) for file in source.files)
        except InputError as error:
            raise MissingData(f"{explanation} The download was tried: {error}") from error
    raise MissingData(f"{explanation} The download was not tried: {'; '.join(reasons)}")


def _explain(source: Source, places: list[Path]) -> str:
    """Say what is missing, where it was searched, how to get it and where to put it."""
    nearest = min((_missing_names(place, source) for place in places), key=len)
    alternatives = all(len(form) == 1 for form in source.forms)
    missing = " or ".join(form[0] for form in source.forms) if alternatives else ", ".join(nearest)
    searched = ", ".join(f"{place}{'' if place.is_dir() else ' (no such folder)'}" for place in places)
    return (
        f"{source.title} was not found. Missing: {missing}. Searched {searched}, and {source.folder} there. To get it,"
        f" {source.advice}, and put it into {places[0] / source.folder}; or give the data folder that has it, with"
        " data_dir or the environment variable NCODE_DATA."
    )


def _missing_names(place: Path, source: Source) -> list[str]:
    """Return the names missing from the most complete form."""
    choices = (
        [name for name in form if not (folder / name).exists()]
        for form in source.forms
        for folder in _folders(place, source)
    )
    return min(choices, key=len)
