import errno
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ncode_lab.training import RunError
from ncode_lab.training.files import json_text, replace_folder, to_json_value, write_file, write_json


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


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
    def write(version, fail=False):
        with replace_folder(tmp_path / "model") as folder:
            for name in ("config", "weights"):
                (folder / name).write_text(version)
                if fail:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def content():
        return {file.name: file.read_text() for file in (tmp_path / "model").iterdir()}

    write("old")
    with pytest.raises(OSError, match="No space left"):
        write("new", fail=True)
    assert content() == {"config": "old", "weights": "old"}
    write("new")
    assert content() == {"config": "new", "weights": "new"}
    assert os.listdir(tmp_path) == ["model"]


def test_what_is_written_is_strict_json(tmp_path):
    write_json(tmp_path / "x.json", {"loss": float("inf"), "sizes": (1, 2.5), "name": "β"})

    def refuse(word):
        raise AssertionError(word)

    read = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"), parse_constant=refuse)
    assert read == {"loss": None, "sizes": [1, 2.5], "name": "β"}


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(TREES, st.booleans())
def test_any_json_is_read_back_as_it_was(value, sort):
    assert json.loads(json_text(value, sort)) == value


def test_numbers_of_a_list_share_a_line_and_entries_of_a_dict_do_not():
    text = json_text({"curves": {"loss": [0.5] * 300}, "figures": [{"name": "a"}, {}], "none": []})
    assert [line.strip() for line in text.splitlines()] == [
        "{",
        '"curves": {',
        f'"loss": [{", ".join(["0.5"] * 300)}]',
        "},",
        '"figures": [',
        "{",
        '"name": "a"',
        "},",
        "{}",
        "],",
        '"none": []',
        "}",
    ]


def test_plain_keeps_truth_values_apart_from_numbers():
    assert to_json_value({"a": True, "b": 1}) == {"a": True, "b": 1}
    assert to_json_value(True) is True
