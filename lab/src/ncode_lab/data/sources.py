"""What is published where: names, checksums and addresses of files."""

from __future__ import annotations

from typing import NamedTuple


class File(NamedTuple):
    """One published file."""

    name: str
    checksum: str | None
    addresses: tuple[str, ...]


class Source(NamedTuple):
    """A data set, and the forms in which it may lie in a folder of data."""

    title: str
    folder: str  # where it lies by custom, in a folder of data
    forms: tuple[tuple[str, ...], ...]  # any of these will do, each a list of names, the first that is whole is used
    files: tuple[File, ...]  # what is downloaded, which makes one of the forms
    advice: str  # for a person who fetches it
    others: tuple[str, ...] = ()  # folders in which other programs keep it


def _idx(addresses: tuple[str, ...], sums: tuple[str, str, str, str]) -> tuple[File, ...]:
    names = (f"{part}-ubyte.gz" for part in _IDX)
    return tuple(
        File(name, f"md5:{md5}", tuple(address + name for address in addresses))
        for name, md5 in zip(names, sums, strict=True)
    )


_IDX = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
_IDX_FORMS = (tuple(f"{part}-ubyte.gz" for part in _IDX), tuple(f"{part}-ubyte" for part in _IDX))
_TORONTO = "https://www.cs.toronto.edu/~kriz/"

SOURCES: dict[str, Source] = {
    "mnist": Source(
        "MNIST",
        "mnist",
        _IDX_FORMS,
        _idx(
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
        _idx(
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
        (
            ("cifar-10-batches-bin",),
            ("cifar-10-batches-py",),
            ("cifar-10-binary.tar.gz",),
            ("cifar-10-python.tar.gz",),
        ),
        (
            File(
                "cifar-10-binary.tar.gz",
                "md5:c32a1d4ab5d03f1284b67883e8d87530",
                (_TORONTO + "cifar-10-binary.tar.gz",),
            ),
        ),
        f"fetch {_TORONTO}cifar-10-binary.tar.gz (no need to unpack it)",
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
        (("inception-2015-12-05-fp16.safetensors",),),
        (),
        "copy the file from a machine that has it (this very file has no public address)",
    ),
}
