import hashlib

import pytest
from ncode_lab.data import DATASETS, MissingData, find, load
from ncode_lab.data.datasets import SOURCES, File

import ncode

from . import published
from .server import serving


def test_data_dir_comes_before_the_environment_and_that_before_the_cache(tmp_path, monkeypatch):
    places = [tmp_path / "given", tmp_path / "named", tmp_path / "cache" / "ncode"]
    monkeypatch.setenv("NCODE_DATA", str(places[1]))
    for place in reversed(places):
        published.write_mnist(place / "mnist")
        assert find("mnist", places[0])[0].parent == place / "mnist"


@pytest.mark.parametrize("layout", ["mnist", "MNIST/raw", "."])
def test_files_are_found_in_every_usual_layout(tmp_path, layout):
    published.write_mnist(tmp_path / layout)
    assert [path.parent for path in find("mnist", tmp_path)] == [tmp_path / layout] * 4


def test_the_folder_of_a_set_may_be_named_itself(tmp_path):
    folder = published.write_folder(tmp_path / "cifar-10-batches-bin", published.cifar_binary(published.cifar()))
    assert find("cifar10", folder) == (folder,)
    assert find("cifar10", tmp_path) == (folder,)


def test_a_missing_set_says_what_to_fetch_and_where_to_put_it(tmp_path, monkeypatch):
    monkeypatch.setenv("NCODE_DATA", str(tmp_path / "named"))
    for name in (*DATASETS, "inception"):
        with pytest.raises(MissingData) as caught:
            find(name, tmp_path / "given", download=False)
        sentence = str(caught.value)
        assert f"{SOURCES[name].title} was not found" in sentence
        assert f"put it into {tmp_path / 'given' / SOURCES[name].folder}" in sentence
        assert f"{tmp_path / 'named'} (no such folder)" in sentence
        assert SOURCES[name].advice in sentence


def test_what_is_missing_of_a_set_is_named(tmp_path):
    published.write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(MissingData, match=r"Missing: t10k-labels-idx1-ubyte.gz\. "):
        load("mnist", tmp_path, download=False)


def test_a_misspelt_name_gets_the_nearest():
    with pytest.raises(ncode.InputError, match="unknown data set 'cifar-10'; did you mean \"cifar10\""):
        load("cifar-10")


@pytest.fixture
def publisher(tmp_path, monkeypatch):
    """A web server with a small MNIST, which takes the publisher's place."""
    published.write_mnist(tmp_path / "published")
    files = {path.name: path.read_bytes() for path in (tmp_path / "published").iterdir()}
    with serving(files) as server:
        listed = tuple(
            File(file.name, "md5:" + hashlib.md5(files[file.name]).hexdigest(), (server.address + file.name,))
            for file in SOURCES["mnist"].files
        )
        monkeypatch.setitem(SOURCES, "mnist", SOURCES["mnist"]._replace(files=listed))
        yield server


def test_what_is_not_found_is_downloaded_once(publisher, tmp_path):
    told = []
    train, _ = load("mnist", progress=lambda *what: told.append(what))
    assert len(train) == 12
    assert (tmp_path / "cache" / "ncode" / "mnist" / "train-images-idx3-ubyte.gz").exists()
    assert len({name for name, _, _ in told}) == 4
    load("mnist")
    assert len(publisher.ranges) == 4


def test_only_what_is_missing_is_downloaded(publisher, tmp_path):
    published.write_mnist(tmp_path / "given" / "mnist")
    (tmp_path / "given" / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    assert len(load("mnist", tmp_path / "given").test) == 5
    assert len(publisher.ranges) == 1


@pytest.mark.parametrize("named", [False, True])
def test_a_download_goes_to_the_folder_that_was_named(publisher, tmp_path, monkeypatch, named):
    monkeypatch.setenv("NCODE_DATA", str(tmp_path / "named"))
    paths = find("mnist", None if named else tmp_path / "given")
    assert paths[0].parent == tmp_path / ("named" if named else "given") / "mnist"


def test_a_folder_that_cannot_be_written_to_is_passed_over(publisher, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    assert find("mnist", tmp_path / "file")[0].parent == tmp_path / "cache" / "ncode" / "mnist"


def test_a_failed_download_says_why_and_what_to_do(publisher, tmp_path):
    publisher.files.clear()
    with pytest.raises(MissingData, match=r"To get it, fetch the four files .* download was tried: .* answered 404"):
        load("mnist", tmp_path)


def test_no_download_unless_asked(publisher, tmp_path):
    with pytest.raises(MissingData):
        load("mnist", tmp_path, download=False)
    assert load("mnist", tmp_path, fallback=True).generated
    assert publisher.ranges == []


def test_the_fallback_does_not_hide_a_damaged_file(tmp_path):
    published.write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"damaged")
    with pytest.raises(ncode.InputError, match="is damaged"):
        load("mnist", tmp_path, fallback=True)


def test_checksums_and_addresses_are_whole():
    for source in SOURCES.values():
        for file in source.files:
            kind, _, digits = file.checksum.partition(":")
            assert len(bytes.fromhex(digits)) == hashlib.new(kind).digest_size
            assert all(address.endswith(file.name) for address in file.addresses)
        if source.files:
            assert tuple(file.name for file in source.files) in source.forms
