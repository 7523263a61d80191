import hashlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ncode_lab.data.download import fetch

import ncode

from .published import as_bytes, random_bytes
from .server import serving

DATA = as_bytes(random_bytes(1_000_000))
RIGHT = "sha256:" + hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def server():
    with serving({"data.bin": DATA, "other.bin": DATA[::-1]}) as started:
        yield started


def only(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_file_is_fetched_and_nothing_else_is_left(server, tmp_path, kind):
    path = fetch([server.address + "data.bin"], tmp_path / "data.bin", f"{kind}:{hashlib.new(kind, DATA).hexdigest()}")
    assert path.read_bytes() == DATA
    assert only(tmp_path) == ["data.bin"]


@pytest.mark.parametrize("tells_length", [True, False])
def test_progress_is_told_up_to_the_end(server, tmp_path, tells_length):
    server.tells_length, told = tells_length, []
    fetch([server.address + "data.bin"], tmp_path / "x", RIGHT, lambda *what: told.append(what))
    done = [count for _, count, _ in told]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, len(DATA))
    assert {(name, total) for name, _, total in told} == {("x", len(DATA) if tells_length else None)}


def test_a_broken_connection_is_resumed_where_it_broke(server, tmp_path):
    server.breaks_after = [300_000, 300_000]
    path = fetch([server.address + "data.bin"], tmp_path / "data.bin", RIGHT)
    assert path.read_bytes() == DATA
    assert server.ranges == [None, "bytes=300000-", "bytes=600000-"]


def test_a_line_that_breaks_often_but_gets_on_is_enough(server, tmp_path):
    server.breaks_after = [50_000] * 15
    assert fetch([server.address + "data.bin"], tmp_path / "data.bin", RIGHT).read_bytes() == DATA


def test_a_server_that_cannot_resume_starts_over(server, tmp_path):
    server.knows_ranges, server.breaks_after = False, [400_000]
    path = fetch([server.address + "data.bin"], tmp_path / "data.bin", RIGHT)
    assert path.read_bytes() == DATA
    assert len(server.ranges) == 2


def test_an_interrupted_download_is_resumed_by_the_next_call(server, tmp_path):
    def interrupt(name, done, total):
        if done > 200_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch([server.address + "data.bin"], tmp_path / "data.bin", RIGHT, interrupt)
    assert not (tmp_path / "data.bin").exists()
    kept = (tmp_path / "data.bin.part").stat().st_size
    assert kept > 200_000
    assert fetch([server.address + "data.bin"], tmp_path / "data.bin", RIGHT).read_bytes() == DATA
    assert server.ranges == [None, f"bytes={kept}-"]
    assert only(tmp_path) == ["data.bin"]


@pytest.mark.slow
def test_a_killed_download_is_resumed_by_the_next_process(server, tmp_path):
    script = (
        "import os, sys; from ncode_lab.data.download import fetch\n"
        "def die(name, done, total):\n    if done > 200_000: os._exit(9)\n"
        "fetch([sys.argv[1]], sys.argv[2], sys.argv[3], die)"
    )
    arguments = [server.address + "data.bin", str(tmp_path / "data.bin"), RIGHT]
    assert subprocess.run([sys.executable, "-c", script, *arguments]).returncode == 9
    assert only(tmp_path) == ["data.bin.lock", "data.bin.part"]
    assert fetch(arguments[:1], tmp_path / "data.bin", RIGHT).read_bytes() == DATA
    assert server.ranges[-1] is not None
    assert only(tmp_path) == ["data.bin"]


def test_a_part_that_was_whole_already_is_taken(server, tmp_path):
    (tmp_path / "data.bin.part").write_bytes(DATA)
    assert fetch([server.address + "data.bin"], tmp_path / "data.bin", RIGHT).read_bytes() == DATA


@pytest.mark.parametrize("size", [10, len(DATA), len(DATA) + 5])
def test_a_part_of_another_file_is_thrown_away(server, tmp_path, size):
    (tmp_path / "data.bin.part").write_bytes(b"x" * size)
    assert fetch([server.address + "data.bin"], tmp_path / "data.bin", RIGHT).read_bytes() == DATA


def test_a_wrong_checksum_is_told_and_leaves_no_file(server, tmp_path):
    with pytest.raises(ncode.InputError, match=r"other.bin sent a file whose checksum is not sha256:"):
        fetch([server.address + "other.bin"], tmp_path / "data.bin", RIGHT)
    assert not {"data.bin", "data.bin.part"} & set(only(tmp_path))


def test_the_next_address_is_tried_when_one_fails(server, tmp_path):
    addresses = [server.address + name for name in ("missing.bin", "other.bin", "data.bin")]
    with serving({}) as closed:
        gone = closed.address
    assert fetch([gone + "data.bin", *addresses], tmp_path / "data.bin", RIGHT).read_bytes() == DATA


def test_every_reason_is_told_when_all_addresses_fail(server, tmp_path):
    with serving({}) as closed:
        gone = closed.address
    with pytest.raises(ncode.InputError, match=r"data.bin could not be downloaded: .*refused.*answered 404") as caught:
        fetch([gone + "data.bin", server.address + "missing.bin"], tmp_path / "data.bin", RIGHT)
    assert gone in str(caught.value)
    assert only(tmp_path) == ["data.bin.lock"]


def test_a_line_that_never_gets_on_is_given_up(server, tmp_path):
    server.breaks_after = [0] * 100
    with pytest.raises(ncode.InputError, match="the connection ended after 0 of 1000000 bytes"):
        fetch([server.address + "data.bin"], tmp_path / "data.bin", RIGHT)
    assert len(server.ranges) < 10


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_told_at_once(server, tmp_path):
    (tmp_path / "data.bin.part").symlink_to("/dev/full")
    with pytest.raises(ncode.InputError, match=r"data.bin.part cannot be written: No space left on device"):
        fetch([server.address + "data.bin"] * 3, tmp_path / "data.bin", RIGHT)
    assert len(server.ranges) == 1


def test_a_file_that_is_there_is_not_fetched(server, tmp_path):
    (tmp_path / "data.bin").write_bytes(b"mine")
    assert fetch([server.address + "data.bin"], tmp_path / "data.bin", RIGHT).read_bytes() == b"mine"
    assert server.ranges == []


def test_many_that_want_the_same_file_fetch_it_once(server, tmp_path):
    def want(_):
        return fetch([server.address + "data.bin"], tmp_path / "data.bin", RIGHT).read_bytes() == DATA

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(want, range(4)))
    assert server.ranges == [None]


def test_only_web_addresses_are_fetched(tmp_path):
    with pytest.raises(ncode.InputError, match="must begin with http:// or https://; given 'file:///etc/hosts'"):
        fetch(["file:///etc/hosts"], tmp_path / "hosts")
