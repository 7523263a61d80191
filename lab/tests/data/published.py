"""Small files in the formats of the publishers, written with the standard library."""

import gzip
import io
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
