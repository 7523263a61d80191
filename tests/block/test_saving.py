"""Folders survive full disks and killed processes, and files from elsewhere raise `InputError` at worst."""

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
import warnings
from contextlib import suppress
from functools import reduce
from pathlib import Path

import pytest
import torch
from torch import nn

import ncode
from ncode.block import from_pretrained, save_pretrained, saving
from ncode.block.config import MemoryLimit

safetensors = pytest.importorskip("safetensors.torch")

OLD_MODEL = Path(__file__).parent / "old_model"
KILLER = Path(__file__).parent / "save_and_be_killed.py"


def model(hidden, t1):
    return ncode.NCODE(ncode.dynamics.MLP(2, hidden=hidden), ncode.OpenLoop(nn.Linear(2, 3)), t1=t1)


def same(a, b):
    """Whether two modules have the same arguments and the same weights."""
    old, new = a.state_dict(), b.state_dict()
    return str(a) == str(b) and old.keys() == new.keys() and all(torch.equal(old[name], new[name]) for name in old)


def load(folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that config.json is of another save
        return from_pretrained(folder)


def as_version_0_1_0(folder):
    """Remove the configuration from model.safetensors, which the first version did not write there."""
    file = folder / "model.safetensors"
    safetensors.save_file(safetensors.load_file(file), file, metadata={"format": "pt"})


def files(folder):
    return {file.name for file in folder.iterdir()}


# What a save leaves that does not come to its end.


@pytest.fixture(params=["new format", "version 0.1.0"])
def saved(request, tmp_path):
    """A folder with a model, and that model."""
    old = model(3, t1=1.0)
    save_pretrained(old, tmp_path / "model")
    if request.param == "version 0.1.0":
        as_version_0_1_0(tmp_path / "model")
    return tmp_path / "model", old


def break_operation(monkeypatch, number):
    """Let the file operation of this number fail as on a full disk; returns the list of those that were begun."""
    begun = []

    def counted(name, function):
        def call(*args, **kwargs):
            begun.append(name)
            if len(begun) == number:
                raise OSError(errno.ENOSPC, "No space left on device")
            return function(*args, **kwargs)

        return call

    monkeypatch.setattr(saving, "open", counted("open", open), raising=False)
    for name in ("open", "fsync", "replace"):
        monkeypatch.setattr(os, name, counted(name, getattr(os, name)))
    return begun


def test_an_error_in_any_file_operation_leaves_the_old_model_or_the_new_one(saved, monkeypatch):
    folder, old = saved
    new, seen, finished = model(5, t1=2.0), set(), False
    for number in range(1, 50):
        shutil.copytree(folder, copy := folder.parent / f"copy_{number}")
        with monkeypatch.context() as patch:
            begun = break_operation(patch, number)
            with suppress(OSError):
                save_pretrained(new, copy)
                finished = True
        again = load(copy)
        assert same(again, old) or same(again, new)
        assert files(copy) == {"README.md", "config.json", "model.safetensors"}
        seen.add(str(again))
        if finished:
            assert same(again, new)
            break
    assert finished
    assert begun.count("replace") == 3
    assert seen == {str(old), str(new)}


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on the size of files")
def test_a_full_disk_leaves_the_old_model(saved):
    import resource

    folder, old = saved
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (0, 1, 100, 1000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
        try:
            with pytest.raises(OSError, match="too large"):
                save_pretrained(model(50, t1=2.0), folder)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert same(from_pretrained(folder), old)
        assert files(folder) == {"README.md", "config.json", "model.safetensors"}


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_killed_between_any_two_file_operations_leaves_the_old_model_or_the_new_one(saved, tmp_path):
    folder, old = saved
    new = model(5, t1=2.0)
    save_pretrained(new, tmp_path / "new")
    command = [sys.executable, KILLER, tmp_path / "new", folder, tmp_path / "killed"]
    killed = int(subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout)
    assert killed > 9  # three files, each opened, written and renamed
    loaded = [load(tmp_path / "killed" / str(number)) for number in range(1, killed + 2)]
    assert all(same(each, old) or same(each, new) for each in loaded)
    assert same(loaded[0], old)
    assert same(loaded[-1], new)


def test_a_reader_meets_one_of_two_models_that_are_saved_in_turn(tmp_path):
    models, stop = [model(3, t1=1.0), model(5, t1=2.0)], threading.Event()
    save_pretrained(models[0], tmp_path)

    def write():
        while not stop.is_set():
            for each in models:
                save_pretrained(each, tmp_path)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        loaded = [load(tmp_path) for _ in range(30)]
    finally:
        stop.set()
        writer.join()
    assert all(any(same(each, it) for it in models) for each in loaded)


def test_a_model_can_be_saved_over_the_file_that_it_was_loaded_from(tmp_path):
    save_pretrained(model(3, t1=1.0), tmp_path)
    again = from_pretrained(tmp_path)
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.add_(1.0)
    save_pretrained(again, tmp_path)
    assert same(from_pretrained(tmp_path), again)


def test_the_same_model_is_saved_as_the_same_bytes(tmp_path):
    old = from_pretrained(OLD_MODEL)
    for name in "ab":
        save_pretrained(old, tmp_path / name)
        assert same(from_pretrained(tmp_path / name), old)
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


@pytest.mark.parametrize("text", [None, b"", b"{", b"\xff\xfe", b"[1]", b'{"class": "ncode.MLP", "dim": 7}'])
def test_a_lost_or_edited_copy_of_the_configuration_is_ignored_with_a_warning(text, tmp_path):
    old = model(3, t1=1.0)
    save_pretrained(old, tmp_path)
    (tmp_path / "config.json").unlink()
    if text is not None:
        (tmp_path / "config.json").write_bytes(text)
    with pytest.warns(UserWarning, match=r"config\.json is ignored.*save it again"):
        assert same(from_pretrained(tmp_path), old)


def test_a_copy_of_the_configuration_may_be_formatted_in_another_way(tmp_path):
    save_pretrained(model(3, t1=1.0), tmp_path)
    config = tmp_path / "config.json"
    config.write_bytes(json.dumps(json.loads(config.read_text())).replace(", ", ",\r\n").encode())
    from_pretrained(tmp_path)


def test_the_configuration_of_one_model_with_the_weights_of_another_gives_the_other(tmp_path):
    """As after a save that was interrupted between the two files."""
    old, new = model(3, t1=1.0), model(3, t1=2.0)
    save_pretrained(old, tmp_path / "old")
    save_pretrained(new, tmp_path / "new")
    shutil.copy(tmp_path / "new" / "model.safetensors", tmp_path / "old")
    assert same(load(tmp_path / "old"), new)


def test_weights_that_were_changed_are_refused(tmp_path):
    save_pretrained(model(3, t1=1.0), tmp_path)
    file = tmp_path / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ncode.InputError, match=r"model\.safetensors is damaged: .* checksum"):
        from_pretrained(tmp_path)


def test_a_checksum_without_a_configuration_is_refused(tmp_path):
    save_pretrained(model(3, t1=1.0), tmp_path)
    file = tmp_path / "model.safetensors"
    header, values = saving._split(file.read_bytes())
    header["__metadata__"].pop(saving.CONFIG_KEY)
    header["__metadata__"][saving.DIGEST_KEY] = saving._digest(header, values)
    file.write_bytes(saving._join(header, values))
    with pytest.raises(ncode.InputError, match=r"model\.safetensors is damaged"):
        from_pretrained(tmp_path)


def test_metadata_may_be_null_as_in_files_of_other_programs(tmp_path):
    saved = model(3, t1=1.0)
    save_pretrained(saved, tmp_path)
    file = tmp_path / "model.safetensors"
    header, values = saving._split(file.read_bytes())
    file.write_bytes(saving._join({**header, "__metadata__": None}, values))
    assert same(load(tmp_path), saved)


def test_a_file_in_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "model").write_text("")
    with pytest.raises(ncode.InputError, match="is a file"):
        save_pretrained(model(3, t1=1.0), tmp_path / "model")


# Files from elsewhere.


def linear(**changes):
    return {"class": "torch.nn.Linear", "in_features": 2, "out_features": 2, **changes}


def block(dynamics=None, **changes):
    dynamics = {"class": "ncode.MLP", "dim": 2, "hidden": [3], **(dynamics or {})}
    return {"class": "ncode.NCODE", "dynamics": dynamics, "controller": {"class": "ncode.Static"}, **changes}


def write(folder, config, weights=None):
    """Write a folder as version 0.1.0 did."""
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    weights = {"weight": torch.zeros(2, 2), "bias": torch.zeros(2)} if weights is None else weights
    safetensors.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


SEQUENTIALS = reduce(lambda inner, _: {"class": "torch.nn.Sequential", "args": [inner]}, range(300), linear())
HOSTILE = {
    "brackets": ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
    "nested modules": (json.dumps(SEQUENTIALS), "nested too deeply"),
    "negative size": (linear(in_features=-3), "negative dimension -3"),
    "negative dim": (block({"dim": -2}), "dim must be at least 1; given -2"),
    "size that overflows": (linear(in_features=2**62, out_features=2**62), "cannot be built"),
    "size without end": (linear(in_features=10**400), "does not fit"),
    "ncode size without end": (block({"hidden": [10**400]}), "hidden must be a finite number"),
    "number of 5,000 digits": ('{"class": "torch.nn.Linear", "in_features": 1' + "0" * 5000 + "}", "damaged"),
    "infinite size": ('{"class": "torch.nn.Linear", "in_features": 1e400, "out_features": 2}', "does not fit"),
    "no groups": ({"class": "torch.nn.GroupNorm", "num_groups": 0, "num_channels": 4}, "cannot be built"),
    "no groups of a convolution": (
        {"class": "torch.nn.Conv2d", "in_channels": 2, "out_channels": 2, "kernel_size": 3, "groups": 0},
        "groups must be",
    ),
    "no such device": (linear(device="nowhere"), "cannot be built"),
    "number for a module": ({"class": "torch.nn.Sequential", "args": 3}, "does not fit"),
    "list for a name": ({"class": ["torch.nn.Linear"]}, "name of a class must be text"),
    "dict for a name": ({"class": {"a:b": 1}}, "name of a class must be text"),
    "empty import": ({"class": ":x"}, "allow_imports"),
    "option without end": (block(max_steps=10**400), "max_steps must be a finite number"),
    "text for a time": (block(t1="soon"), "t1 must be a finite number"),
    "text for a flag": (block(exact="maybe"), "exact must be True or False"),
    "text for sizes": (block({"hidden": "34"}), "hidden must be"),
    "text for dynamics": (block(dynamics={}) | {"dynamics": "MLP"}, "dynamics must be one of"),
    "nothing": ("", "damaged"),
    "null": ("null", "describes a NoneType"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_configuration_that_cannot_be_built_is_refused(name, tmp_path):
    config, message = HOSTILE[name]
    write(tmp_path, config)
    with pytest.raises(ncode.InputError, match=message):
        from_pretrained(tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
def test_a_gpu_that_is_not_there_is_told(tmp_path):
    write(tmp_path, linear(device="cuda"))
    with pytest.raises(ncode.InputError, match=r"cannot be built .*CUDA"):
        from_pretrained(tmp_path)


HUGE = {
    "linear": linear(in_features=10**12),
    "on a named device": linear(in_features=10**12, device="cpu"),
    "mlp": block({"hidden": [10**12]}),
    "recurrent": block() | {"dynamics": {"class": "ncode.Recurrent", "n": 10**6}},
    "skew": block() | {"dynamics": {"class": "ncode.Skew", "m": 10**6}},
    "sparse": block() | {"dynamics": {"class": "ncode.SparseLinear", "m": 10**6}},
    "time-varying": block(controller={"class": "ncode.TimeVarying", "terms": 10**11}),
    "embedding": {"class": "torch.nn.Embedding", "num_embeddings": 10**12, "embedding_dim": 1},
    "weights that are copied": {
        "class": "torch.nn.TransformerEncoder",
        "encoder_layer": {"class": "torch.nn.TransformerEncoderLayer", "d_model": 1000, "nhead": 2},
        "num_layers": 10**9,
    },
}


@pytest.mark.parametrize("name", HUGE)
def test_memory_out_of_proportion_to_the_file_is_refused_before_it_is_allocated(name, tmp_path):
    write(tmp_path, HUGE[name])
    with pytest.raises(ncode.InputError, match=r"asks for more than 1,075,838,976 bytes .* max_memory"):
        from_pretrained(tmp_path)


@pytest.mark.slow
def test_a_billion_small_layers_are_refused(tmp_path):
    write(tmp_path, {"class": "torch.nn.LSTM", "input_size": 1, "hidden_size": 1, "num_layers": 10**9})
    with pytest.raises(ncode.InputError, match="asks for more than"):
        from_pretrained(tmp_path)


def test_the_limit_on_memory_can_be_set(tmp_path):
    old = ncode.NCODE(ncode.dynamics.Recurrent(20))
    old.save_pretrained(tmp_path)
    size = (tmp_path / "model.safetensors").stat().st_size
    for limit, message in ((size - 1, "more than max_memory"), (size, "1/64 of max_memory"), (1e5, "asks for more")):
        with pytest.raises(ncode.InputError, match=message):
            ncode.NCODE.from_pretrained(tmp_path, max_memory=limit)
    assert same(ncode.NCODE.from_pretrained(tmp_path, max_memory=1e6), old)
    with pytest.raises(ncode.InputError, match="max_memory must be a finite number"):
        ncode.NCODE.from_pretrained(tmp_path, max_memory="10 GB")


def test_a_limit_on_memory_counts_what_is_in_use():
    with MemoryLimit(5e6):
        for _ in range(100):
            torch.ones(500_000).cos()  # 2 MB each
        kept = torch.ones(500_000)
        twice = kept.cos()
        with pytest.raises(ncode.InputError, match="more than 5,000,000 bytes"):
            torch.zeros_like(twice)


WEIGHTS = {
    "missing": {"weight": torch.zeros(2, 2)},
    "one too many": {"weight": torch.zeros(2, 2), "bias": torch.zeros(2), "more": torch.zeros(1)},
    "of another shape": {"weight": torch.zeros(3, 2), "bias": torch.zeros(2)},
    "whole numbers": {"weight": torch.zeros(2, 2, dtype=torch.int64), "bias": torch.zeros(2)},
    "none": {},
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_do_not_fit_the_configuration_are_refused(name, tmp_path):
    write(tmp_path, linear(), WEIGHTS[name])
    with pytest.raises(ncode.InputError, match="does not fit its configuration"):
        from_pretrained(tmp_path)


def test_weights_of_a_module_that_the_configuration_leaves_out_are_refused(tmp_path):
    weights = {"0.weight": torch.zeros(2, 2), "1.weight": torch.zeros(2, 2)}
    write(tmp_path, {"class": "torch.nn.Sequential", "args": [None, linear(bias=False)]}, weights)
    with pytest.raises(ncode.InputError, match="some of its tensors have no place in it"):
        from_pretrained(tmp_path)


@pytest.mark.parametrize("name", [3, None, "a\0b", "a" * 5000, b"bytes"])
def test_what_is_no_name_of_a_folder_is_refused(name):
    with pytest.raises(ncode.InputError, match=r"is not the name of a folder|there is no folder"):
        from_pretrained(name)


@pytest.mark.parametrize("name", [3, None, "a\0b", "a" * 5000])
def test_what_is_no_name_of_a_folder_is_refused_by_saving_too(name):
    with pytest.raises(ncode.InputError, match="is not the name of a folder"):
        save_pretrained(ncode.NCODE(ncode.dynamics.MLP(2)), name)


@pytest.mark.parametrize("error", [OSError("no network"), ValueError("no such revision"), RuntimeError("401")])
def test_a_repository_that_cannot_be_downloaded_is_told(error, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(hub, "snapshot_download", fail)
    with pytest.raises(ncode.InputError, match=f"there is no folder someone/block, .*hub failed: {error}"):
        from_pretrained("someone/block")


@pytest.mark.skipif(not hasattr(os, "mkfifo") or os.geteuid() == 0, reason="needs permissions that can be missing")
def test_a_file_that_may_not_be_read_is_told(tmp_path):
    save_pretrained(model(3, t1=1.0), tmp_path)
    (tmp_path / "model.safetensors").chmod(0)
    with pytest.raises(ncode.InputError, match="cannot be read"):
        from_pretrained(tmp_path)
