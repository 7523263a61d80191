"""Data of your own: a folder of images, an .npz file, or a function that returns arrays."""

from __future__ import annotations

import functools
import hashlib
import importlib
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ncode import InputError

from .arrays import KEYS, read_arrays, read_npz
from .image_folder import read_image_folder
from .images import Images, ImageSets, Labelled
from .sampling import stream

TEST_SHARE = 5  # without test images of their own, one image in five is one
LEAST = 8  # images, of which some are for testing and some are held out
FORMS = (
    "a folder with one subfolder of PNG or JPEG images per class, an .npz file, or module:function"
    " (put ./ before the name of a folder that is also that of a data set)"
)
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class OwnData(NamedTuple):
    """Training and test images, and what a run records about them."""

    sets: ImageSets
    about: dict[str, Any]


def is_function(dataset: str) -> bool:
    """Whether a data set is given as module:function, whose code is run."""
    return _FUNCTION.fullmatch(dataset) is not None and not Path(dataset).exists()


def is_own(dataset: str) -> bool:
    """Whether a data set is given as a folder, an .npz file or module:function that exists, as far as can be told."""
    path = Path(dataset)
    return path.is_dir() or (path.suffix == ".npz" and path.is_file()) or is_function(dataset)


def summarise(about: Any) -> str:
    """Number and checksum of images, from what a run records.

    >>> summarise({"training images": 16, "test images": 4, "sha256": "0123456789abcdef"})
    '16 training and 4 test images, sha256 0123456789ab...'
    """
    if not isinstance(about, Mapping):
        return "unknown"
    counts = f"{about.get('training images')} training and {about.get('test images')} test images"
    return f"{counts}, sha256 {str(about.get('sha256'))[:12]}..."


def check_consent(dataset: str, given: Sequence[str], what: str) -> None:
    """Refuse to run a function that a file names, unless the user names it too."""
    if is_function(dataset) and not any(dataset in each for each in given):
        raise InputError(f"{what} {dataset}, which is code: to run it, give --dataset {dataset} as well")


def own_name(dataset: str) -> str:
    """The name of data of your own in tables.

    >>> own_name("photos/cats.npz"), own_name("my_data:shapes")
    ('cats (own data)', 'shapes (own data)')
    """
    name = dataset.partition(":")[2] if is_function(dataset) else Path(dataset).resolve().stem
    plain = re.sub(r"[^\w.+-]+", "-", name)[:60] or "data"
    return f"{plain} (own data)"


def load_own(dataset: str, image_size: int = 0, channels: int = 0) -> OwnData:
    """Load data of your own.

    Args:
        dataset: A folder with one subfolder of images per class, or with folders train and test of such; an .npz file
            with the arrays `images` and, for classification, `labels`, and perhaps `test_images`, `test_labels` and
            `classes`; or module:function, which returns a dict of the same arrays or tensors.
        image_size: Crop images to a square and resize them to this side length. 0: leave them as they are.
        channels: 1 for grey images, 3 for colour. 0: grey if all of them are.

    Test images, if there are none, are one in five of each class, drawn with a fixed seed.

    >>> import tempfile
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/noise.npz", images=np.random.rand(20, 8, 8), labels=np.arange(20) % 2)
    ...     load_own(f"{folder}/noise.npz").sets.train
    Images(noise (own data), train, 16 of 1 x 8 x 8, on cpu)
    """
    return _load(dataset, image_size, channels, _signature(Path(dataset)))


def _signature(path: Path) -> tuple[Any, ...]:
    """Names, sizes and times of files: what is loaded once is loaded again if they change."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path] if path.exists() else []
    return tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.is_file())


@functools.lru_cache(maxsize=1)
def _load(dataset: str, image_size: int, channels: int, signature: tuple[Any, ...]) -> OwnData:
    path = Path(dataset)
    if path.is_dir():
        found = read_image_folder(path, image_size, channels)
    elif is_function(dataset):
        found = read_arrays(_call(dataset), dataset, image_size, channels)
    else:
        found = read_npz(path, image_size, channels)
    train, test, classes = found
    how = "given"
    if test is None:
        train, test = _split(train, dataset)
        share = f"one in {TEST_SHARE}" + (" of each class" if classes else "")
        how = f"{share}, drawn with a fixed seed"
    name = own_name(dataset)
    sets = ImageSets(*(_images(part, name, classes, kind) for part, kind in ((train, "train"), (test, "test"))))
    _check(sets, dataset)
    about = {"name": name, "image shape": list(sets.train.shape), "classes": len(classes)}
    about |= {"training images": len(sets.train), "test images": len(sets.test), "test split": how}
    return OwnData(sets, {**about, "sha256": _checksum(sets)})


def describe(about: Mapping[str, Any]) -> str:
    """One line about data, from what a run records.

    >>> describe({"name": "cats", "image shape": [3, 8, 8], "classes": 2, "training images": 16, "test images": 4,
    ...           "test split": "given"})
    'cats: 2 classes, images of 3 x 8 x 8; 16 for training and 4 for testing (given)'
    """
    shape = " x ".join(map(str, about["image shape"]))
    count = about["classes"]
    classes = f"{count} class{'es' if count != 1 else ''}" if count else "no labels"
    return (
        f"{about['name']}: {classes}, images of {shape}; {about['training images']} for training and"
        f" {about['test images']} for testing ({about['test split']})"
    )


def _images(part: Labelled, name: str, classes: tuple[str, ...], split: str) -> Images:
    images, labels = part
    labels = torch.zeros(len(images), dtype=torch.int64) if labels is None else labels
    return Images(images, labels, name, classes, split)


def _split(part: Labelled, dataset: str) -> tuple[Labelled, Labelled]:
    """Take one image in five of each class for testing, the same ones each time."""
    labels = torch.zeros(len(part.images), dtype=torch.int64) if part.labels is None else part.labels
    if len(labels) < LEAST:
        raise InputError(f"{dataset} has {len(labels)} images: at least {LEAST} are needed to train and to test")
    order = torch.randperm(len(labels), generator=stream(0, "own data", "test"))
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        members = order[labels[order] == label]
        if len(members) < 2:
            raise InputError(
                f"{dataset} has one image of class number {int(label)}: each class needs at least 2, one of them for"
                " testing; add images, or leave the class out"
            )
        chosen[members[: max(1, len(members) // TEST_SHARE)]] = True

    def take(mask: Tensor) -> Labelled:
        return Labelled(part.images[mask], None if part.labels is None else part.labels[mask])

    return take(~chosen), take(chosen)


def _check(sets: ImageSets, dataset: str) -> None:
    train, test = sets
    if train.shape != test.shape:
        raise InputError(
            f"training images of {dataset} are {_plain(train)} and test images {_plain(test)}: give them one size, or"
            " choose one with --image-size and --channels"
        )
    if len(train) < LEAST // 2:
        raise InputError(f"{dataset} has {len(train)} training images: at least {LEAST // 2} are needed")
    if bool((train.images == train.images.flatten()[0]).all()):
        raise InputError(f"all pixels of all training images of {dataset} have one value: there is nothing to learn")


def _plain(images: Images) -> str:
    return " x ".join(map(str, images.shape))


def _checksum(sets: ImageSets) -> str:
    digest = hashlib.sha256("\n".join(sets.train.classes).encode("utf-8", "replace"))
    for part in sets:
        for tensor in (part.images, part.labels):
            digest.update(str(tuple(tensor.shape)).encode())
            digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def _call(dataset: str) -> Mapping[str, Any]:
    """The arrays that module:function returns. Modules of the current folder are found, as `python -m` finds them."""
    module, _, name = dataset.partition(":")
    sys.path.insert(0, "")
    try:
        function = getattr(importlib.import_module(module), name, None)
        if not callable(function):
            raise InputError(f"the module {module} has no function {name}")
        found = function()
    except InputError:
        raise
    except ModuleNotFoundError as error:
        raise InputError(f"{dataset}: {error}; it is searched in the current folder and in Python's path") from error
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}, line {last.lineno}"
        raise InputError(f"{dataset} raised {type(error).__name__} ({place}): {error}") from error
    finally:
        sys.path.remove("")
    if not isinstance(found, Mapping):
        raise InputError(f"{dataset} must return a dict with the keys {', '.join(KEYS)}; it returned {type(found)}")
    return found
