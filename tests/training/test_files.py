import errno
import json
import os

import pytest

from ncode.training import RunError
from ncode.training.files import plain, write_file, write_json


def test_a_full_disk_leaves_the_old_content_and_says_what_to_do(tmp_path, monkeypatch):
    file = tmp_path / "run.json"
    write_file(file, b"old")

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"run\.json could not be written: No space left on device.*--resume"):
        write_file(file, b"new")
    monkeypatch.undo()
    assert file.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["run.json"]


def test_what_is_written_is_strict_json(tmp_path):
    write_json(tmp_path / "x.json", {"loss": float("inf"), "sizes": (1, 2.5), "name": "β"})

    def refuse(word):
        raise AssertionError(word)

    read = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert read == {"loss": None, "sizes": [1, 2.5], "name": "β"}


def test_plain_keeps_truth_values_apart_from_numbers():
    assert plain({"a": True, "b": 1}) == {"a": True, "b": 1}
    assert plain(True) is True
