import contextlib
import os
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ncode_lab.data import load
from ncode_lab.data.celeba import read_celeba
from ncode_lab.data.pickles import read_pickle
from ncode_lab.data.readers import read_cifar10, read_idx

import ncode

from . import published


@given(shape=st.lists(st.integers(0, 5), min_size=1, max_size=4), compress=st.booleans())
def test_idx_files_hold_arrays_of_any_shape(shape, compress, tmp_path_factory):
    array = published.random_bytes(*shape)
    data = published.idx(array)
    path = tmp_path_factory.mktemp("idx") / "array"
    path.write_bytes(published.gzip.compress(data) if compress else data)
    assert torch.equal(read_idx(path), array)


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize(("name", "first"), [("mnist", "0"), ("fashion-mnist", "T-shirt/top")])
def test_mnist_and_fashion_mnist_are_read(tmp_path, name, first, compress):
    content = published.write_mnist(tmp_path / name, compress=compress)
    train, test = load(name, tmp_path, download=False)
    assert torch.equal(train.images[:, 0], content["train-images-idx3-ubyte"])
    assert torch.equal(train.labels, content["train-labels-idx1-ubyte"].long())
    assert torch.equal(test.images[:, 0], content["t10k-images-idx3-ubyte"])
    assert torch.equal(test.labels, content["t10k-labels-idx1-ubyte"].long())
    assert (train.split, test.split, train.classes[0], train.generated) == ("train", "test", first, False)


def cut(data):
    return data[:-3]


def flip_a_bit(data):
    return data[:30] + bytes([data[30] ^ 1]) + data[31:]


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("damage", [cut, lambda data: b"", lambda data: b"<html>not found</html>"])
def test_a_damaged_idx_file_is_named(tmp_path, damage, compress):
    published.write_mnist(tmp_path / "mnist", compress=compress)
    path = tmp_path / "mnist" / ("train-images-idx3-ubyte" + ".gz" * compress)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ncode.InputError, match=f"{path.name} is damaged: .* Put a good copy there"):
        load("mnist", tmp_path, download=False)


def test_a_compressed_file_with_one_wrong_bit_is_damaged(tmp_path):
    published.write_mnist(tmp_path / "mnist")
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(flip_a_bit(path.read_bytes()))
    with pytest.raises(ncode.InputError, match=f"{path.name} is damaged"):
        load("mnist", tmp_path, download=False)


def test_an_idx_file_of_impossible_shape_is_damaged(tmp_path):
    path, shape = tmp_path / "array", [0] + [2**32 - 1] * 5
    path.write_bytes(bytes([0, 0, 8, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape))
    with pytest.raises(ncode.InputError, match="array is damaged"):
        read_idx(path)


@pytest.fixture
def small_limit(monkeypatch):
    monkeypatch.setenv("NCODE_READ_LIMIT", "2")


TOO_MUCH = r"holds more than 2 MiB, the limit for such a file. .* set the environment variable NCODE_READ_LIMIT to a"


@pytest.mark.parametrize("compress", [True, False])
def test_a_file_that_unfolds_beyond_the_limit_is_refused_and_the_limit_can_be_raised(
    tmp_path, compress, small_limit, monkeypatch
):
    data = bytes([0, 0, 8, 1]) + (3 << 20).to_bytes(4, "big") + bytes(3 << 20)
    path = tmp_path / "array.gz"
    path.write_bytes(published.gzip.compress(data) if compress else data)
    with pytest.raises(ncode.InputError, match=TOO_MUCH):
        read_idx(path)
    monkeypatch.setenv("NCODE_READ_LIMIT", "4")
    assert read_idx(path).shape == (3 << 20,)


@pytest.mark.parametrize("name", ["data_batch_1.bin", "something else"])
def test_an_archive_that_unfolds_beyond_the_limit_is_refused(tmp_path, name, small_limit):
    path = published.write_archive(tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", {name: bytes(3 << 20)})
    assert path.stat().st_size < 100_000
    with pytest.raises(ncode.InputError, match=TOO_MUCH):
        read_cifar10(path)


@pytest.mark.parametrize("limit", ["many", "-1", "0.5", "1e3"])
def test_a_limit_that_is_no_number_gets_a_sentence(tmp_path, limit, monkeypatch):
    (tmp_path / "array").write_bytes(published.idx(torch.zeros(1, dtype=torch.uint8)))
    monkeypatch.setenv("NCODE_READ_LIMIT", limit)
    with pytest.raises(ncode.InputError, match="NCODE_READ_LIMIT must be a whole number of MiB, such as 1024; given"):
        read_idx(tmp_path / "array")


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [(torch.zeros(11), "for 12 images"), (torch.full((12,), 10), "a label 10, and there are 10 classes")],
)
def test_labels_that_do_not_fit_are_named(tmp_path, labels, sentence):
    published.write_mnist(tmp_path / "mnist")
    path = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    path.write_bytes(published.idx(labels.to(torch.uint8)))
    with pytest.raises(ncode.InputError, match=sentence):
        load("mnist", tmp_path, download=False)


def files_of(form, content):
    if form == "binary":
        return published.cifar_binary(content)
    if form == "python 2":
        return published.cifar_python_2(content)
    pytest.importorskip("numpy")
    return published.cifar_python_3(content, int(form))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", ["binary", "python 2", "3", "4"])
def test_every_version_of_cifar10_is_read_alike(tmp_path, form, packed):
    content = published.cifar()
    short = "bin" if form == "binary" else "py"
    folder = f"cifar-10-batches-{short}"
    if packed:
        name = "cifar-10-binary.tar.gz" if form == "binary" else "cifar-10-python.tar.gz"
        published.write_archive(tmp_path / "cifar10" / name, folder, files_of(form, content))
    else:
        published.write_folder(tmp_path / folder, files_of(form, content))
    train, test = load("cifar10", tmp_path, download=False)
    images = torch.cat([x for x, _ in content.values()]).view(-1, 3, 32, 32)
    labels = torch.cat([y for _, y in content.values()]).long()
    assert torch.equal(torch.cat([train.images, test.images]), images)
    assert torch.equal(torch.cat([train.labels, test.labels]), labels)
    assert len(test) == 3


class Runs:
    """A pickle that makes a folder when it is read carelessly."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def malicious(path):
    """Pickles that would run something, each by another way."""
    return {
        "reduce": pickle.dumps({"data": Runs(path), "labels": []}, 2),
        "new protocol": pickle.dumps([Runs(path)], 5),
        "eval": b"cbuiltins\neval\n(V__import__('os').mkdir('" + str(path).encode() + b"')\ntR.",
        "inst": b"(S'" + str(path).encode() + b"'\nios\nmkdir\n.",
        "dotted": b"\x80\x04\x8c\x05numpy\x8c\x10testing.runstrin\x93.",
        "getattr": b"c__builtin__\ngetattr\n(cnumpy\nndarray\nS'tofile'\ntR.",
        "torch": b"ctorch\nload\n(S'" + str(path).encode() + b"'\ntR.",
    }


@pytest.mark.parametrize("way", malicious("x"))
def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(tmp_path, way):
    trap = tmp_path / "made by the pickle"
    files = published.cifar_python_2(published.cifar()) | {"data_batch_2": malicious(trap)[way]}
    folder = published.write_folder(tmp_path / "cifar-10-batches-py", files)
    with pytest.raises(ncode.InputError, match=r"data_batch_2 is refused: .* asks for .* which could run code"):
        read_cifar10(folder)
    assert not trap.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not a pickle",
        pickle.dumps([1, 2, 3]),
        pickle.dumps({"data": 1, "labels": [1]}),
        pickle.dumps({"labels": [1]}),
        b"]q\x00h\x00a.",  # a list within itself
        b"cnumpy\ndtype\n(S'f8'\nI00\nI01\ntR.",
        b"cnumpy.core.multiarray\n_reconstruct\n(NNNtR(I1\n(I5\nI3072\ntNI00\nS'abc'\ntb.",
    ],
)
def test_a_damaged_pickle_is_named(tmp_path, data):
    files = published.cifar_python_2(published.cifar()) | {"data_batch_2": data}
    folder = published.write_folder(tmp_path / "cifar-10-batches-py", files)
    with pytest.raises(ncode.InputError, match="data_batch_2 is damaged"):
        read_cifar10(folder)


def test_a_pickle_of_lists_that_share_lists_ends_at_once(tmp_path):
    shared = []
    for _ in range(60):
        shared = [shared, shared]
    files = published.cifar_python_2(published.cifar()) | {"data_batch_2": pickle.dumps({"data": shared}, 2)}
    with pytest.raises(ncode.InputError, match="data_batch_2 is damaged: it has no array of images"):
        read_cifar10(published.write_folder(tmp_path / "cifar-10-batches-py", files))


@given(at=st.integers(0, 400), value=st.integers(0, 255))
def test_any_wrong_byte_in_a_pickle_is_read_or_named_and_nothing_else(at, value):
    data = bytearray(published.python_2_pickle(published.random_bytes(1, 200), [3]))
    data[at % len(data)] = value
    with contextlib.suppress(ncode.InputError):
        read_pickle(bytes(data), "a batch")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"data_batch_3.bin": b"123"}, "data_batch_3.bin is damaged: it has 3 bytes, which are not whole rows of 3073"),
        ({"test_batch.bin": b""}, "test_batch.bin is damaged: it has 0 bytes"),
        ({"data_batch_1.bin": bytes([10]) + bytes(3072)}, "data_batch_1.bin is damaged: it has a label 10"),
    ],
)
def test_a_damaged_binary_batch_is_named(tmp_path, change, sentence):
    files = published.cifar_binary(published.cifar()) | change
    published.write_folder(tmp_path / "cifar-10-batches-bin", files)
    with pytest.raises(ncode.InputError, match=sentence):
        load("cifar10", tmp_path, download=False)


def test_a_missing_batch_is_named(tmp_path):
    files = published.cifar_binary(published.cifar())
    del files["data_batch_4.bin"]
    folder = published.write_folder(tmp_path / "cifar-10-batches-bin", files)
    archive = published.write_archive(tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", files)
    for path in (folder, archive):
        with pytest.raises(ncode.InputError, match=r"it has no data_batch_4.bin"):
            read_cifar10(path)


@pytest.mark.parametrize("damage", [cut, lambda data: data[: len(data) // 2], lambda data: b"x", flip_a_bit])
def test_a_damaged_archive_is_named(tmp_path, damage):
    files = published.cifar_binary(published.cifar())
    path = published.write_archive(tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", files)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ncode.InputError, match=r"cifar-10-binary.tar.gz.* is damaged"):
        read_cifar10(path)


def faces(folder, count=20, size=(89, 109), paint=None):
    image = pytest.importorskip("PIL.Image")
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(count):
        picture = image.new("RGB", size, (5 * k, 255 - 5 * k, 0))
        if paint:
            paint(picture)
        picture.save(folder / f"{k + 1:06}.jpg", quality=95)
    return folder


def test_celeba_is_read_in_order_and_its_last_tenth_is_for_tests(tmp_path):
    faces(tmp_path / "celeba" / "img_align_celeba")
    train, test = load("celeba", tmp_path, download=False)
    assert (len(train), len(test), train.name, train.shape) == (18, 2, "CelebA (first 20)", (3, 64, 64))
    red = torch.cat([train.images, test.images])[:, 0].float().mean((1, 2))
    assert (red - 5.0 * torch.arange(20)).abs().max() < 4
    assert train.classes == ()


@pytest.mark.parametrize(("size", "side"), [((178, 218), 148), ((89, 109), 74)])
def test_the_middle_of_a_face_is_kept(tmp_path, size, side):
    left, top = (size[0] - side) / 2, (size[1] - side) / 2

    def paint(picture):
        # White outside of the crop, with two pixels to spare for the blur of JPEG and of the resizing.
        from PIL import ImageDraw

        box = (left - 2, top - 2, left + side + 2, top + side + 2)
        inner = ImageDraw.Draw(picture)
        inner.rectangle((0, 0, *size), fill="white")
        inner.rectangle(box, fill="black")
        inner.rectangle((left, top, left + side / 2, top + side / 2), fill="red")

    train, _ = read_celeba(faces(tmp_path / "faces", 2, size, paint), cache=tmp_path / "cache")
    image = train.images[0].float()
    assert image[:, -1, -1].max() < 100
    assert image[0, 2:30, 2:30].min() > 180
    assert image[0, 34:, 34:].max() < 60
    assert image[:, :, -1].mean() < 60


def test_publishers_split_is_kept_where_the_folder_reaches_it(tmp_path):
    folder = faces(tmp_path / "faces", 6)
    for k in (4, 5, 6):
        (folder / f"{k:06}.jpg").rename(folder / f"{182_634 + k:06}.jpg")
    train, test = read_celeba(folder, cache=tmp_path)
    assert (len(train), len(test)) == (3, 3)


def test_faces_are_decoded_once_and_again_when_the_files_change(tmp_path, monkeypatch):
    folder, seen = faces(tmp_path / "faces", 5), []
    first = read_celeba(folder, progress=lambda *told: seen.append(told))
    assert seen == [("CelebA", 5, 5)]
    kept = list((tmp_path / "cache").rglob("*.pt"))
    again = read_celeba(folder, progress=lambda *told: seen.append(told))
    assert len(seen) == len(kept) == 1
    assert torch.equal(again.train.images, first.train.images)
    kept[0].write_bytes(b"damaged")
    assert torch.equal(read_celeba(folder).train.images, first.train.images)
    faces(folder, 6)
    assert len(read_celeba(folder).train) == 5


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    (tmp_path / "file").write_text("in the way")
    folder = faces(tmp_path / "faces", 3)
    assert len(read_celeba(folder, cache=tmp_path / "file").train) == 2


def test_a_face_that_cannot_be_read_is_named(tmp_path):
    folder = faces(tmp_path / "faces", 4)
    path = folder / "000003.jpg"
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ncode.InputError, match=r"000003.jpg is damaged"):
        read_celeba(folder)
    faces(folder, 1, size=(50, 60))
    with pytest.raises(ncode.InputError, match=r"000001.jpg is 50 x 60: expected .* 178 x 218"):
        read_celeba(folder)


def test_a_face_of_billions_of_pixels_is_refused_by_its_header(tmp_path):
    folder = faces(tmp_path / "faces", 4)
    path = folder / "000003.jpg"
    data = path.read_bytes()
    at = data.index(b"\xff\xc0") + 5  # height and width in the header of a frame
    path.write_bytes(data[:at] + (65_500).to_bytes(2, "big") * 2 + data[at + 4 :])
    with pytest.raises(ncode.InputError, match=r"000003.jpg is damaged: .*pixels"):
        read_celeba(folder)


def test_a_face_in_another_format_than_its_name_says_is_refused(tmp_path):
    folder = faces(tmp_path / "faces", 4)
    from PIL import Image

    Image.new("RGB", (178, 218)).save(folder / "000003.jpg", format="PPM")
    with pytest.raises(ncode.InputError, match=r"000003.jpg is damaged"):
        read_celeba(folder)


def test_a_folder_without_faces_is_named(tmp_path):
    with pytest.raises(ncode.InputError, match="has 0 JPEG files"):
        read_celeba(tmp_path)
