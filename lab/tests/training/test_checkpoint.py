import errno
import hashlib
import io
import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ncode_lab.training import RunError
from ncode_lab.training.checkpoint import (
    MANIFEST,
    STATE,
    WEIGHTS,
    Checkpoint,
    Checkpoints,
    DamagedCheckpoint,
    _pack,
    checkpoint_paths,
    read_checkpoint,
)

from ncode import InputError

from .tiny import same, train

FILES = (WEIGHTS, STATE, MANIFEST)


def saved(step):
    return Checkpoint(step, {"weight": torch.full((5,), float(step))}, {"optimiser": {"lr": 0.1}})


def checkpoints(folder, steps=(100, 200)):
    warnings = []
    found = Checkpoints(folder, warnings.append)
    for step in steps:
        found.write(saved(step))
    return found, warnings


def test_the_last_two_are_kept(tmp_path):
    found, _ = checkpoints(tmp_path, (1, 20, 300, 1_000_000))
    assert sorted(os.listdir(tmp_path)) == ["step-000300", "step-1000000"]
    assert found.load().step == 1_000_000


def test_what_is_loaded_is_what_was_written(tmp_path):
    found, warnings = checkpoints(tmp_path)
    step, weights, state = found.load()
    assert step == 200
    assert same(weights, saved(200).weights)
    assert state == saved(200).state
    assert warnings == []


def test_there_may_be_none(tmp_path):
    assert checkpoints(tmp_path / "none", ())[0].load() is None


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "gone"])
def test_a_damaged_one_is_named_and_the_one_before_is_used(tmp_path, name, damage):
    found, warnings = checkpoints(tmp_path)
    file = tmp_path / "step-000200" / name
    content = bytearray(file.read_bytes())
    if damage == "gone":
        file.unlink()
    elif damage == "flip":
        content[len(content) // 2] ^= 255
        file.write_bytes(content)
    else:
        file.write_bytes(content[: len(content) // 2 if damage == "cut" else 0])
    assert found.load().step == 100
    assert len(warnings) == 1
    assert "step-000200 is damaged" in warnings[0]
    assert sorted(os.listdir(tmp_path)) == ["damaged-step-000200", "step-000100"]


@given(st.sampled_from(FILES), st.floats(0, 1, exclude_max=True), st.integers(1, 255))
def test_no_flipped_byte_is_ever_taken_for_a_weight(tmp_path_factory, name, place, bits):
    folder = tmp_path_factory.mktemp("checkpoints")
    found, _ = checkpoints(folder)
    file = folder / "step-000200" / name
    content = bytearray(file.read_bytes())
    content[int(place * len(content))] ^= bits
    file.write_bytes(content)
    step, weights, _ = found.load()
    assert same(weights, saved(step).weights)


def test_where_all_are_damaged_all_are_named_and_the_run_begins_anew(tmp_path):
    found, warnings = checkpoints(tmp_path)
    for step in ("step-000100", "step-000200"):
        (tmp_path / step / WEIGHTS).write_bytes(b"")
    assert found.load() is None
    assert len(warnings) == 2


def test_remains_of_a_write_that_was_cut_off_are_removed(tmp_path):
    found, warnings = checkpoints(tmp_path)
    (tmp_path / ".step-000300.77.tmp").mkdir()
    (tmp_path / ".step-000300.77.tmp" / WEIGHTS).write_bytes(b"half")
    assert found.load().step == 200
    assert warnings == []
    assert sorted(os.listdir(tmp_path)) == ["step-000100", "step-000200"]


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_full_disk_leaves_the_earlier_ones_and_nothing_half_written(tmp_path, monkeypatch, call):
    found, _ = checkpoints(tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(RunError, match="step-000300 could not be written: No space left on device"):
        found.write(saved(300))
    monkeypatch.undo()
    assert sorted(os.listdir(tmp_path)) == ["step-000100", "step-000200"]
    assert found.load().step == 200


def rewrite(folder, name, content):
    """Replace a file of a checkpoint, and its checksum."""
    (folder / name).write_bytes(content)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["sha256"][name] = hashlib.sha256(content).hexdigest()
    (folder / MANIFEST).write_text(json.dumps(manifest))


def packed(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


ODD = [
    (STATE, b""),
    (STATE, b"text"),
    (STATE, packed([1, 2])),
    (STATE, packed({})),
    (STATE, packed({"step": "200"})),
    (STATE, pickle.dumps(print)),
    (WEIGHTS, b""),
    (WEIGHTS, b"\xff" * 100),
]


@pytest.mark.parametrize(("name", "content"), ODD)
def test_odd_content_with_a_right_checksum_is_damage_too(tmp_path, name, content):
    found, warnings = checkpoints(tmp_path)
    rewrite(tmp_path / "step-000200", name, content)
    assert found.load().step == 100
    assert "step-000200 is damaged" in warnings[0]


@pytest.mark.parametrize("manifest", ["[]", "3", '{"step": 1e400, "sha256": {}}', '{"sha256": 1}', "[" * 100_000])
def test_an_odd_manifest_is_damage(tmp_path, manifest):
    found, warnings = checkpoints(tmp_path)
    (tmp_path / "step-000200" / MANIFEST).write_text(manifest)
    assert found.load().step == 100
    assert len(warnings) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"optimiser": None},
        {"optimiser": {}},
        {"optimiser": {"state": {0: 3}, "param_groups": [{"params": [0]}]}},
        {"optimiser": "text"},
        {"schedule": 3},
        {"evaluation": 3},
        {"evaluation": None},
        {"seconds": "long"},
        {"seconds": None},
    ],
)
def test_a_checkpoint_with_a_state_of_another_kind_is_told_to_not_fit(tmp_path, change):
    train(tmp_path)
    folder = tmp_path / "checkpoints" / "model" / "step-000006"
    state = torch.load(folder / STATE, weights_only=True)
    rewrite(folder, STATE, packed({**state, **change}))
    with pytest.raises(InputError, match="does not fit the model: resume with the settings of the original run"):
        train(tmp_path)


def test_folders_that_only_look_like_checkpoints_are_left_alone(tmp_path):
    found, _ = checkpoints(tmp_path)
    for name in ("step-last", "step-", "step-1-2"):
        (tmp_path / name).mkdir()
    assert [path.name for path in checkpoint_paths(tmp_path)] == ["step-000100", "step-000200"]
    assert found.load().step == 200


@pytest.mark.parametrize("name", ["weights.safetensors", "state.pt", "manifest.json"])
def test_a_device_in_place_of_a_file_is_damage(tmp_path, name):
    """It may never end."""
    if not Path("/dev/zero").exists():
        pytest.skip("there is no /dev/zero")
    path = tmp_path / "step-000001"
    path.mkdir()
    for file, content in _pack(Checkpoint(1, {}, {})).items():
        (path / file).write_bytes(content)
    read_checkpoint(path)
    (path / name).unlink()
    (path / name).symlink_to("/dev/zero")
    with pytest.raises(DamagedCheckpoint, match="not a regular file"):
        read_checkpoint(path)
