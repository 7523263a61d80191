"""Damaged data files: images of the right kind, or a sentence."""

from __future__ import annotations

import contextlib
import io
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ncode_lab.data import load
from ncode_lab.data.celeba import read_celeba
from ncode_lab.data.readers import read_idx
from PIL import Image

from ncode import InputError

from ..data import published
from . import command
from .mutations import edited, edits

quiet = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def assert_images(images) -> None:
    assert images.images.dtype == torch.uint8
    assert images.images.dim() == 4
    assert len(images.images) == len(images.labels)


def damage(files: dict[str, bytes], number: int, changes) -> dict[str, bytes]:
    """Files of which one is damaged."""
    name = sorted(files)[number % len(files)]
    return {**files, name: edited(files[name], changes)}


def _cifar_archive() -> bytes:
    content, buffer = published.cifar_binary(published.cifar()), io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in content.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def read(call) -> None:
    """Images, or an InputError."""
    command.calls += 1
    try:
        sets = call()
    except InputError:
        return
    for part in sets if isinstance(sets, tuple) else (sets,):
        assert_images(part)


@quiet
@given(number=st.integers(0, 3), changes=edits, compress=st.booleans())
def test_mnist(tmp_path, number, changes, compress):
    published.write_mnist(tmp_path / "mnist", compress=compress)
    for path in (tmp_path / "mnist").iterdir():
        if path.name.endswith(".gz") != compress:
            path.unlink()
    names = sorted(path for path in (tmp_path / "mnist").iterdir())
    names[number].write_bytes(edited(names[number].read_bytes(), changes))
    read(lambda: load("mnist", tmp_path, download=False))


@quiet
@given(changes=edits, shape=st.lists(st.integers(0, 4), min_size=1, max_size=4))
def test_idx(tmp_path, changes, shape):
    path = tmp_path / "array"
    path.write_bytes(edited(published.idx(published.random_bytes(*shape)), changes))
    command.calls += 1
    with contextlib.suppress(InputError):
        assert read_idx(path).dtype == torch.uint8


@quiet
@given(number=st.integers(0, 5), changes=edits, kind=st.sampled_from(["binary", "python 2", "python 3"]))
def test_cifar(tmp_path, number, changes, kind):
    content = published.cifar()
    write = {
        "binary": ("cifar-10-batches-bin", published.cifar_binary),
        "python 2": ("cifar-10-batches-py", published.cifar_python_2),
        "python 3": ("cifar-10-batches-py", lambda files: published.cifar_python_3(files, 4)),
    }
    inside, make = write[kind]
    folder = tmp_path / "cifar10" / inside
    published.write_folder(folder, damage(make(content), number, changes))
    read(lambda: load("cifar10", tmp_path, download=False))


@quiet
@given(changes=edits)
def test_cifar_archive(tmp_path, changes):
    folder = tmp_path / "cifar10"
    folder.mkdir(exist_ok=True)
    for old in folder.iterdir():
        if old.is_file():
            old.unlink()
    (folder / "cifar-10-binary.tar.gz").write_bytes(edited(_cifar_archive(), changes))
    read(lambda: load("cifar10", tmp_path, download=False))


@quiet
@given(changes=edits, cached=st.booleans())
def test_celeba(tmp_path_factory, changes, cached):
    folder, cache = tmp_path_factory.mktemp("images"), tmp_path_factory.mktemp("cache")
    for k in range(1, 4):
        image = Image.frombytes("RGB", (89, 109), bytes(published.random_bytes(89 * 109 * 3, seed=k).tolist()))
        image.save(folder / f"{k:06}.jpg", quality=40)
    damaged = folder / "000002.jpg"
    if cached:
        expected = read_celeba(folder, cache=cache)
        (damaged,) = cache.rglob("*.pt")
    damaged.write_bytes(edited(damaged.read_bytes(), changes))
    read(lambda: read_celeba(folder, cache=cache))
    if cached:
        assert read_celeba(folder, cache=cache).train.images.shape == expected.train.images.shape


@quiet
@given(changes=edits, member=st.booleans())
def test_npz(tmp_path, changes, member):
    """The file itself is damaged, or an array in it."""
    array, packed = io.BytesIO(), io.BytesIO()
    np.save(array, published.random_bytes(10, 6, 6).numpy())
    content = edited(array.getvalue(), changes) if member else array.getvalue()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", content)
    path = tmp_path / "own.npz"
    path.write_bytes(packed.getvalue() if member else edited(packed.getvalue(), changes))
    read(lambda: load(str(path)))


@quiet
@given(changes=edits, kind=st.sampled_from(["png", "jpg"]))
def test_image_folder(tmp_path, changes, kind):
    for k in range(8):
        image = Image.frombytes("RGB", (9, 9), bytes(published.random_bytes(243, seed=k).tolist()))
        image.save(tmp_path / f"{k}.{kind}")
    (tmp_path / f"3.{kind}").write_bytes(edited((tmp_path / f"3.{kind}").read_bytes(), changes))
    read(lambda: load(str(tmp_path), image_size=8))


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_the_undamaged_files_are_read(tmp_path, name):
    if name == "mnist":
        published.write_mnist(tmp_path / "mnist")
    else:
        files = published.cifar_binary(published.cifar())
        published.write_folder(tmp_path / "cifar10" / "cifar-10-batches-bin", files)
    for part in load(name, tmp_path, download=False):
        assert_images(part)
