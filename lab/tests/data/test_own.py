"""Data of the user: folders, .npz files and functions."""

import io
import os
import zipfile

import numpy as np
import pytest
import torch
from ncode_lab.data import describe, load, load_own
from PIL import Image

from ncode import InputError


def picture(path, colour=(200, 30, 30), size=(8, 8), mode="RGB", **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.new("RGB", size, colour)
    image.putpixel((0, 0), (0, 0, 0))
    image.convert(mode).save(path, **options)


@pytest.fixture
def folder(tmp_path):
    for number in range(10):
        picture(tmp_path / "pets" / "cat" / f"{number}.png", (20 * number, 0, 0))
        picture(tmp_path / "pets" / "dog" / f"{number}.JPG", (0, 0, 20 * number))
    (tmp_path / "pets" / ".hidden").touch()
    return tmp_path / "pets"


def test_a_folder_of_class_folders_is_split_the_same_way_each_time(folder):
    data = load_own(str(folder))
    train, test = data.sets
    assert (train.shape, train.classes, len(train), len(test)) == ((3, 8, 8), ("cat", "dog"), 16, 4)
    assert train.labels.bincount().tolist() == [8, 8]
    assert test.labels.tolist() == [0, 0, 1, 1]
    assert train.name == "pets (own data)"
    assert data.about["test split"] == "one in 5 of each class, drawn with a fixed seed"
    reds = sorted(int(image[0, 4, 4]) for image, label in zip(train.images, train.labels, strict=True) if not label)
    reds += sorted(int(image[0, 4, 4]) for image, label in zip(test.images, test.labels, strict=True) if not label)
    assert sorted(reds) == [20 * number for number in range(10)]
    before = data.about["sha256"]
    os.utime(folder / "cat" / "0.png", (0, 0))
    assert load_own(str(folder)).about["sha256"] == before
    picture(folder / "cat" / "0.png", (255, 255, 255))
    assert load_own(str(folder)).about["sha256"] != before


def test_folders_train_and_test_are_the_split(tmp_path):
    for part, count in (("train", 4), ("test", 2)):
        for name in ("a", "b"):
            for number in range(count):
                picture(tmp_path / part / name / f"{number}.png", (number, 9, 9))
    data = load_own(str(tmp_path))
    assert (len(data.sets.train), len(data.sets.test), data.about["test split"]) == (8, 4, "given")
    picture(tmp_path / "test" / "c" / "0.png")
    with pytest.raises(InputError, match="train and test must have the same classes; they differ by c"):
        load_own(str(tmp_path))


def test_images_without_folders_have_no_labels(tmp_path):
    for number in range(10):
        picture(tmp_path / f"{number}.png", (number, number, number), mode="L")
    sets = load_own(str(tmp_path)).sets
    assert (sets.train.classes, sets.train.shape) == ((), (1, 8, 8))


def test_sizes_and_channels_can_be_chosen(folder):
    picture(folder / "cat" / "wide.png", size=(20, 10))
    with pytest.raises(InputError, match=r"wide\.png has 20 x 10 pixels .* 8 x 8: .*--image-size 32"):
        load_own(str(folder))
    assert load_own(str(folder), image_size=6).sets.train.shape == (3, 6, 6)
    assert load_own(str(folder), image_size=6, channels=1).sets.train.shape == (1, 6, 6)


def test_transparent_pixels_are_white_and_16_bits_become_8(tmp_path):
    for number in range(8):
        picture(tmp_path / f"{number}.png", (number, 0, 0))
    Image.new("RGBA", (8, 8), (255, 0, 0, 0)).save(tmp_path / "8.png")
    Image.fromarray(np.full((8, 8), 65535, dtype=np.uint16)).save(tmp_path / "9.png")
    images = torch.cat([part.images for part in load_own(str(tmp_path)).sets])
    assert int((images.flatten(1) == 255).all(1).sum()) == 2


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (
            lambda at: (at / "cat" / "bad.png").write_bytes(b"no image"),
            r"bad\.png cannot be read: it is neither PNG",
        ),
        (lambda at: (at / "cat" / "0.png").write_bytes((at / "cat" / "1.png").read_bytes()[:50]), "cannot be read"),
        (lambda at: os.mkfifo(at / "cat" / "pipe.png"), r"pipe\.png cannot be read: it is not a file"),
        (lambda at: (at / "cat" / "x.webp").touch(), r"x\.webp is neither PNG nor JPEG: convert it"),
        (lambda at: (at / "bird").mkdir(), "bird holds no PNG or JPEG files"),
        (lambda at: picture(at / "cat" / "deep" / "0.png"), "deep is a folder within a class"),
        (lambda at: picture(at / "0.png"), r"both folders and images, such as 0\.png"),
        (lambda at: picture(at / "bird" / "0.png"), "one image of class number 0: each class needs at least 2"),
    ],
)
def test_what_is_wrong_in_a_folder_is_named(spoil, sentence, folder):
    spoil(folder)
    with pytest.raises(InputError, match=sentence):
        load_own(str(folder))


def test_an_empty_folder_and_too_many_pixels_get_a_sentence(folder, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty holds no images: one subfolder"):
        load_own(str(tmp_path / "empty"))
    monkeypatch.setenv("NCODE_READ_LIMIT", "1")
    with pytest.raises(InputError, match=r"holds 3 MiB, and the limit is 1 MiB\. Choose a smaller --image-size"):
        load_own(str(folder), image_size=256)


X, Y = np.arange(10 * 8 * 8).reshape(10, 8, 8) % 251, np.arange(10) % 2


@pytest.mark.parametrize(
    ("arrays", "shape"),
    [
        ({"images": X.astype(np.uint8), "labels": Y}, (1, 8, 8)),
        ({"images": X / 255, "labels": Y}, (1, 8, 8)),
        ({"images": X.astype(">f4"), "labels": Y[:, None]}, (1, 8, 8)),
        ({"images": X % 2 == 0, "labels": Y.astype("u1")}, (1, 8, 8)),
        ({"images": np.stack([X] * 3, -1).astype(np.int16), "labels": np.array(["a", "b"])[Y]}, (3, 8, 8)),
        ({"x_train": np.stack([X] * 3, 1), "y_train": Y, "x_test": np.stack([X] * 3, 1), "y_test": Y}, (3, 8, 8)),
        ({"images": np.asfortranarray(X), "labels": Y, "classes": np.array(["even", "odd"])}, (1, 8, 8)),
        ({"images": X}, (1, 8, 8)),
    ],
)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_of_any_usual_form_are_read(arrays, shape, save, tmp_path):
    save(tmp_path / "data.npz", **arrays)
    train, test = load_own(str(tmp_path / "data.npz")).sets
    assert train.shape == shape
    assert len(train.classes) == (2 if len(arrays) > 1 else 0)
    if "x_test" in arrays:
        assert torch.equal(test.images, train.images)
    if "classes" in arrays:
        assert train.classes == ("even", "odd")
    pixels = torch.cat([train.images, test.images]).to(torch.int64)
    assert int(pixels.max()) == (255 if arrays.get("images", X).dtype == bool else 250)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"labels": Y}, "must hold the array images, .*; given labels"),
        ({"images": X, "lables": Y}, "given images, lables"),
        ({"images": X - 1.0}, "values from -1 to 249: scale them to 0 to 1"),
        ({"images": X / 0.5}, "values from 0 to 500"),
        ({"images": np.where(X == 3, np.nan, X)}, "not finite"),
        ({"images": X[0]}, r"must be \(N, H, W\).*given \(8, 8\)"),
        ({"images": X[:, :, :, None, None]}, r"must be \(N, H, W\)"),
        ({"images": np.zeros((10, 3, 8, 3), np.uint8)}, "either axis could be the channels"),
        ({"images": np.zeros((10, 8, 8, 4), np.uint8)}, "there must be 1 or 3 channels"),
        ({"images": X * 0}, "all pixels of all training images"),
        ({"images": X[:0]}, "must be numbers, at least one"),
        ({"images": X[:5]}, "has 5 images: at least 8 are needed"),
        ({"images": X, "labels": Y[:9]}, "9 labels for 10 images"),
        ({"images": X, "labels": Y / 2}, "whole numbers or strings; given float64"),
        (
            {"images": X, "labels": Y, "classes": np.array(["one"])},
            "labels holds 1, which is no number of one",
        ),
        ({"images": X, "labels": Y, "test_images": X}, "without test_labels"),
        ({"images": X, "labels": Y, "test_images": X, "test_labels": Y + 1}, "test_labels holds 2, which is no label"),
        (
            {"images": X, "test_images": X[:, :4]},
            "1 x 8 x 8 and test images 1 x 4 x 8: .*--image-size",
        ),
        ({"images": np.array([{}] * 10)}, "holds Python objects, which are not read"),
    ],
)
def test_what_is_wrong_in_arrays_is_named(arrays, sentence, tmp_path):
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(InputError, match=sentence):
        load_own(str(tmp_path / "data.npz"))


def zipped(content, name="images.npy"):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return file.getvalue()


def header(shape):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is damaged"),
        (b"PK\x03\x04 and no more", "is damaged"),
        (zipped(b"no array"), r"images is no array"),
        (zipped(header((10**6, 10**6)) + b"abc"), r"announces an array \(1000000, 1000000\) of uint8, and 3 bytes"),
        (zipped(header((-1, 4)) + b"abc"), "announces an array"),
        (zipped(bytes(3 << 20)), "holds 3 MiB, and the limit is 1 MiB"),
        (zipped(b"", "../../etc/passwd"), "must hold the array images"),
        (zipped(header((2, 2)) + b"abcd")[:-30], "is damaged"),
    ],
)
def test_a_hostile_npz_is_refused_without_reading_much(content, sentence, tmp_path, monkeypatch):
    monkeypatch.setenv("NCODE_READ_LIMIT", "1")
    (tmp_path / "data.npz").write_bytes(content)
    with pytest.raises(InputError, match=sentence):
        load_own(str(tmp_path / "data.npz"))


def test_a_function_of_a_module_in_the_current_folder_gives_arrays(tmp_path, monkeypatch):
    (tmp_path / "own_module.py").write_text(
        "import torch\n"
        "def good():\n    return {'images': torch.rand(12, 3, 8, 8), 'labels': torch.arange(12) % 3}\n"
        "def bad():\n    return 1 / 0\n"
        "def odd():\n    return 3\n"
    )
    monkeypatch.chdir(tmp_path)
    assert load_own("own_module:good").sets.train.shape == (3, 8, 8)
    for name, sentence in (
        ("own_module:bad", r"own_module:bad raised ZeroDivisionError \(own_module\.py, line 5\)"),
        ("own_module:odd", "must return a dict with the keys images, labels"),
        ("own_module:none", "the module own_module has no function none"),
        ("no_such_module:f", "No module named 'no_such_module'; it is searched in the current folder"),
    ):
        with pytest.raises(InputError, match=sentence):
            load_own(name)


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("mnits", {}, 'did you mean "mnist"\\?.* Or give a folder with one subfolder'),
        ("nowhere/pets", {}, "there is no data set nowhere/pets: it must be a folder"),
        ("pets.npz", {}, r"there is no data set pets\.npz"),
        ("mnist", {"image_size": 16}, "the images of mnist have one size"),
        ("mnist", {"channels": 2}, "channels must be 1, 3, or 0"),
    ],
)
def test_a_data_set_that_does_not_exist_is_told_apart_from_a_misspelt_one(name, changes, sentence):
    with pytest.raises(InputError, match=sentence):
        load(name, **changes)


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [({}, "no labels"), ({"labels": np.zeros(10, int)}, "1 class,"), ({"labels": np.arange(10) % 2}, "2 classes,")],
)
def test_the_line_about_data_counts_classes_and_speaks_of_them_only_if_there_are_any(labels, sentence, tmp_path):
    np.savez(tmp_path / "a.npz", images=np.random.default_rng(0).random((10, 4, 4)), **labels)
    line = describe(load_own(str(tmp_path / "a.npz")).about)
    assert sentence in line
    assert ("one in 5 of each class" in line) == bool(labels)
