"""Small files in the formats of the publishers, written with the standard library."""

import gzip
import io
import pickle
import tarfile

import torch

CIFAR_NAMES = (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")


def random_bytes(*shape, seed=0, high=256):
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def as_bytes(tensor):
    return bytes(tensor.flatten().tolist())


def idx(tensor):
    sizes = b"".join(size.to_bytes(4, "big") for size in tensor.shape)
    return bytes([0, 0, 8, tensor.dim()]) + sizes + as_bytes(tensor)


def write_mnist(folder, train=12, test=5, compress=True):
    """Four IDX files; returns what is in them."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        "train-images-idx3-ubyte": random_bytes(train, 28, 28, seed=1),
        "train-labels-idx1-ubyte": random_bytes(train, seed=2, high=10),
        "t10k-images-idx3-ubyte": random_bytes(test, 28, 28, seed=3),
        "t10k-labels-idx1-ubyte": random_bytes(test, seed=4, high=10),
    }
    for name, tensor in content.items():
        data = idx(tensor)
        (folder / (name + ".gz" * compress)).write_bytes(gzip.compress(data) if compress else data)
    return content


def cifar(size=3):
    """Images (size, 3072) and labels of each batch."""
    return {
        name: (random_bytes(size, 3072, seed=k), random_bytes(size, seed=10 + k, high=10))
        for k, name in enumerate(CIFAR_NAMES)
    }


def cifar_binary(content):
    return {f"{name}.bin": as_bytes(torch.cat([y[:, None], x], 1)) for name, (x, y) in content.items()}


def cifar_python_2(content):
    return {name: python_2_pickle(x, y.tolist()) for name, (x, y) in content.items()}


def cifar_python_3(content, protocol):
    return {
        name: pickle.dumps({"data": x.numpy(), "labels": y.tolist(), "batch_label": name}, protocol)
        for name, (x, y) in content.items()
    }


def python_2_pickle(images, labels):
    """A batch as the publisher's own Python 2 wrote it: its strings are what bytes are today."""

    def string(text):
        return b"U" + bytes([len(text)]) + text

    def number(value):
        return b"J" + value.to_bytes(4, "little", signed=True)

    raw = as_bytes(images)
    kind = (
        b"cnumpy\ndtype\n("
        + string(b"u1")
        + b"K\x00K\x01tR(K\x03"
        + string(b"|")
        + b"NNN"
        + number(-1) * 2
        + b"K\x00tb"
    )
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + string(b"b") + b"tR"
        b"(K\x01" + number(images.shape[0]) + number(images.shape[1]) + b"\x86" + kind + b"\x89"
        b"T" + len(raw).to_bytes(4, "little") + raw + b"tb"
    )
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + string(b"data") + array + string(b"labels") + listed + b"u."


def write_folder(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def write_archive(path, inside, files):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{inside}/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path
