"""Where data lie: in a folder that is told, in NCODE_DATA, in the cache, or at their publisher's."""

from __future__ import annotations

import os
from pathlib import Path

from ncode import InputError
from ncode.checks import check_choice

from .fetch import Progress, fetch
from .sources import SOURCES, Source


class MissingData(InputError):
    """Data that are in none of the folders where they were looked for.

    >>> from ncode_lab.data import MissingData, find
    >>> try:
    ...     find("inception", "no-such-folder", download=False, elsewhere=False)
    ... except MissingData as error:
    ...     print(str(error)[:54])
    the FID network (Inception, 2015-12-05) was not found.
    """


def cache_dir() -> Path:
    """Where downloads go unless told otherwise: ncode in XDG_CACHE_HOME, which is ~/.cache where it is not set.

    >>> from ncode_lab.data import cache_dir
    >>> cache_dir().name
    'ncode'
    """
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ncode"


def find(
    name: str,
    data_dir: str | Path | None = None,
    *,
    download: bool = True,
    progress: Progress | None = None,
    elsewhere: bool = True,
) -> tuple[Path, ...]:
    """The files or the folder of a data set: looked for in data_dir, in NCODE_DATA and in the cache, else downloaded.

    A folder of data holds each set in a folder of its own (mnist, fashion-mnist, cifar10, celeba, inception), or its
    files directly. A download goes to data_dir, else to NCODE_DATA, else to the cache; whichever can be written to.

    Args:
        name: mnist, fashion-mnist, cifar10, celeba or inception.
        data_dir: A folder of data.
        download: Fetch what is not found. CelebA and inception have to be fetched by a person.
        progress: Called as progress(file, bytes done, bytes in all or None).
        elsewhere: Look in NCODE_DATA and in the cache too.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from ncode_lab.data import find
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (Path(folder) / "celeba" / "img_align_celeba").mkdir(parents=True)
    ...     [path.name for path in find("celeba", folder)]
    ['img_align_celeba']
    """
    source = SOURCES[check_choice("data set", name, SOURCES)]
    places = _places(data_dir, elsewhere)
    for place in places:
        for form in source.forms:
            if found := _whole(place, source, form):
                return found
    if download and source.files:
        return _download(source, places, progress)
    raise MissingData(_sentence(source, places))


def _places(data_dir: str | Path | None, elsewhere: bool) -> list[Path]:
    """Folders to look in, in order."""
    named = os.environ.get("NCODE_DATA")
    given = [data_dir] if data_dir is not None else []
    others = [*([named] if named else []), cache_dir()] if elsewhere or not given else []
    return list(dict.fromkeys(Path(place).expanduser() for place in (*given, *others)))


def _whole(place: Path, source: Source, form: tuple[str, ...]) -> tuple[Path, ...] | None:
    """The files of one form, if they are all in one folder of this place."""
    for folder in _folders(place, source):
        found = tuple(folder / name for name in form)
        if all(path.exists() for path in found):
            return found
        if len(form) == 1 and folder.name == form[0] and folder.is_dir():
            return (folder,)  # the folder itself was named, and not the one it is in
    return None


def _download(source: Source, places: list[Path], progress: Progress | None) -> tuple[Path, ...]:
    sentence = _sentence(source, places)  # before a folder is made that was not there
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
            raise MissingData(f"{sentence} The download was tried: {error}") from error
    raise MissingData(f"{sentence} The download was not tried: {'; '.join(reasons)}")


def _sentence(source: Source, places: list[Path]) -> str:
    """What is missing, where it was looked for, what to fetch and where to put it."""
    nearest = min((_lacking(place, source) for place in places), key=len)
    alternatives = all(len(form) == 1 for form in source.forms)
    missing = " or ".join(form[0] for form in source.forms) if alternatives else ", ".join(nearest)
    looked = ", ".join(f"{place}{'' if place.is_dir() else ' (no such folder)'}" for place in places)
    return (
        f"{source.title} was not found. Missing: {missing}. Looked in {looked}, and in {source.folder}"
        f" there. To get it, {source.advice}, and put it into {places[0] / source.folder}; or name the folder of data"
        " that has it, with data_dir or the environment variable NCODE_DATA."
    )


def _lacking(place: Path, source: Source) -> list[str]:
    """The names that this place lacks, of the form it has most of."""
    choices = (
        [name for name in form if not (folder / name).exists()]
        for form in source.forms
        for folder in _folders(place, source)
    )
    return min(choices, key=len)


def _folders(place: Path, source: Source) -> list[Path]:
    return [place / source.folder, *(place / other for other in source.others), place]
