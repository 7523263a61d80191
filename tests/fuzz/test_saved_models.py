"""Damaged and hostile folders of saved models: loading gives the model that was saved, or an `InputError`.

A file that was damaged by chance does not have its checksum any more, so it must never load as another model. Files of
version 0.1.0 have none, and a hostile author can write the right one: they may load as anything, but nothing else than
an `InputError` is raised, within a limit on memory.
"""

from __future__ import annotations

import functools
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import event, given
from hypothesis import strategies as st
from torch import nn

import ncode
from ncode.block import config, from_pretrained, save_pretrained, saving
from ncode.models import Classifier, gamma

from .promises import keeps_its_promises

pytest.importorskip("safetensors")

MAX_MEMORY = 2**24


class Folder(NamedTuple):
    """The content of a folder."""

    config: bytes
    weights: bytes


def parts():
    data = {"context": ncode.DataControl(), ("weight_1", "bias_1"): ncode.OpenLoop(nn.Linear(2, 4))}
    return ncode.control.Parts(data, rest=ncode.Static())


MODELS = {
    "NODE": lambda: ncode.NCODE(ncode.dynamics.MLP(2, hidden=(3, 2), time=True), rtol=1e-5, step_rule=ncode.PID(p=0.2)),
    "open loop": lambda: ncode.NCODE(
        ncode.dynamics.SparseLinear(4, 2, seed=3), ncode.OpenLoop(nn.Linear(4, 3)), t1=2.0
    ),
    "parts": lambda: ncode.NCODE(ncode.dynamics.MLP(2, context=2), parts(), method="rk4", dt=0.5),
    "plastic": lambda: ncode.NCODE(ncode.dynamics.Recurrent(3), ncode.Hebbian(decay="learned")),
    "classifier": lambda: Classifier(
        ncode.NCODE(ncode.dynamics.ConvBlock(1, filters=2), ncode.OpenLoop(gamma("conv-norm", (1, 8, 8), hidden=2))),
        (1, 8, 8),
        classes=2,
    ),
    "modules of torch": lambda: nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), ncode.NCODE(ncode.dynamics.MLP(3))),
}


@functools.cache
def saved(name: str) -> tuple[nn.Module, Folder]:
    """A model, and the folder in which it was saved."""
    with torch.random.fork_rng(), tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        model = MODELS[name]().eval()
        save_pretrained(model, folder)
        return model, Folder(*(Path(folder, file).read_bytes() for file in (saving.CONFIG, saving.WEIGHTS)))


@functools.cache
def saved_by_0_1_0(name: str) -> Folder:
    """The same folder without configuration and checksum in model.safetensors."""
    folder = saved(name)[1]
    header, values = saving._split(folder.weights)
    return folder._replace(weights=saving._join({**header, "__metadata__": {"format": "pt"}}, values))


def signed(data: Any, header: Any, values: bytes) -> Folder:
    """A folder whose author wrote the right checksum."""
    header = {**header, "__metadata__": {saving.CONFIG_KEY: json.dumps(data)}}
    header["__metadata__"][saving.DIGEST_KEY] = saving._digest(header, values)
    return Folder(json.dumps(data).encode(), saving._join(header, values))


def load(folder: Folder, max_memory: float | None = None) -> nn.Module | None:
    """The module in a folder with this content, or None if it is refused. All else is an error."""
    with tempfile.TemporaryDirectory() as path, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for file, content in zip((saving.CONFIG, saving.WEIGHTS), folder, strict=True):
            Path(path, file).write_bytes(content)
        try:
            with keeps_its_promises():
                module = from_pretrained(path, max_memory=max_memory)
        except ncode.InputError:
            event("refused")
            return None
        event("loaded")
        return module


def same(a: nn.Module, b: nn.Module) -> bool:
    old, new = a.state_dict(), b.state_dict()
    equal = old.keys() == new.keys() and all(
        old[key].dtype == new[key].dtype and torch.equal(old[key], new[key]) for key in old
    )
    return equal and json.dumps(config.to_data(a)) == json.dumps(config.to_data(b))


names = st.sampled_from(list(MODELS))


@st.composite
def damages(draw: st.DrawFn, content: bytes) -> bytes:
    """The content of a file with one place changed."""
    start = draw(st.integers(0, len(content)))
    if draw(st.booleans()):  # Hypothesis prefers small numbers, and values are at the end of a file
        start = len(content) - start
    end = draw(st.integers(start, min(len(content), start + draw(st.sampled_from([1, 8, 100, 10**6])))))
    match draw(st.sampled_from(["flip", "cut", "remove", "insert", "overwrite", "zero", "repeat"])):
        case "flip":
            bit = 1 << draw(st.integers(0, 7))
            return content[:start] + bytes(byte ^ bit for byte in content[start : start + 1]) + content[start + 1 :]
        case "cut":
            return content[:start]
        case "remove":
            return content[:start] + content[end:]
        case "insert":
            return content[:start] + draw(st.binary(min_size=1, max_size=20)) + content[start:]
        case "overwrite":
            new = draw(st.binary(min_size=1, max_size=20))
            return content[:start] + new + content[start + len(new) :]
        case "zero":
            return content[:start] + bytes(end - start) + content[end:]
        case _:
            return content[:end] + content[start:end] + content[end:]


@given(names, st.data())
def test_damaged_weights_are_refused_or_do_not_matter(name, data):
    model, folder = saved(name)
    loaded = load(folder._replace(weights=data.draw(damages(folder.weights))))
    assert loaded is None or same(loaded, model)


@given(names, st.data())
def test_a_damaged_copy_of_the_configuration_does_not_matter(name, data):
    model, folder = saved(name)
    loaded = load(folder._replace(config=data.draw(damages(folder.config))))
    assert loaded is not None
    assert same(loaded, model)


@given(names, st.data())
def test_damaged_folders_of_version_0_1_0_load_or_are_refused(name, data):
    folder = saved_by_0_1_0(name)
    if data.draw(st.booleans()):
        load(folder._replace(weights=data.draw(damages(folder.weights))))
    else:
        load(folder._replace(config=data.draw(damages(folder.config))), MAX_MEMORY)


@given(names, names, st.booleans())
def test_files_of_two_models_give_the_one_that_the_weights_belong_to(first, second, old):
    folder = Folder(saved(first)[1].config, (saved_by_0_1_0(second) if old else saved(second)[1]).weights)
    loaded = load(folder)
    if old:
        assert (loaded is not None) == (first == second)
    else:
        assert loaded is not None
        assert same(loaded, saved(second)[0])


# Configurations and headers that were written by somebody.

CLASSES = [f"torch.nn.{name}" for name in sorted(vars(nn)) if isinstance(vars(nn)[name], type)]
CLASSES += sorted(config._public_classes())
CLASSES += ["os:system", "subprocess:Popen", ":", "torch.nn.", "ncode.", "torch.nn.functional"]
SIZES = [-(2**63), -1, 0, 1, 2, 3, 10**6, 10**12, 2**31, 2**62, 2**64, 10**400]
odd_values = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from(SIZES)
    | st.floats()
    | st.text(max_size=5)
    | st.just({"class": "ncode.MLP"}),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["class", "args", "dim"]), inner),
    max_leaves=3,
)


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to all values in plain data."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(place for key, inner in items for place in places(inner, (*path, key)))]


def at(data: Any, path: tuple[Any, ...]) -> Any:
    """The value at a path."""
    return functools.reduce(lambda inner, key: inner[key], path, data)


def changed(data: Any, path: tuple[Any, ...], new: Any) -> Any:
    """The data with another value at a path; `...` removes it."""
    if not path:
        return {} if new is ... else new
    key, *rest = path
    inner = changed(data[key], tuple(rest), new) if rest else new
    if isinstance(data, list):
        return [*data[:key], *([] if inner is ... else [inner]), *data[key + 1 :]]
    return {name: value for name, value in {**data, key: inner}.items() if value is not ...}


def nested(data: Any) -> Any:
    for _ in range(400):
        data = {"class": "torch.nn.Sequential", "args": [data]}
    return data


@st.composite
def hostile(draw: st.DrawFn, data: Any) -> Any:
    """Plain data with a few values replaced, removed, repeated or nested."""
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(data)))
        old = at(data, path)
        match draw(st.sampled_from(["value", "class", "remove", "other", "add", "nest"])):
            case "value":
                new = draw(odd_values)
            case "class":
                name = draw(st.sampled_from(CLASSES))
                new = {**old, "class": name} if isinstance(old, dict) else name
            case "remove":
                new = ...
            case "other":
                new = at(data, draw(st.sampled_from(places(data))))
            case "add":
                value = draw(odd_values)
                key = draw(st.sampled_from(["device", "dtype", "args"]))
                new = {**old, key: value} if isinstance(old, dict) else [old, value]
            case _:
                return changed(data, path, nested(old))  # too deep for further changes
        data = changed(data, path, new)
    return data


@given(names, st.booleans(), st.data())
def test_a_hostile_configuration_is_refused_or_fits_the_weights(name, old, data):
    folder = saved(name)[1]
    header, values = saving._split(folder.weights)
    plain = data.draw(hostile(json.loads(folder.config)))
    written = Folder(json.dumps(plain).encode(), saved_by_0_1_0(name).weights) if old else signed(plain, header, values)
    loaded = load(written, MAX_MEMORY)
    if loaded is not None:
        assert loaded.state_dict().keys() == saved(name)[0].state_dict().keys()


@given(names, st.sampled_from(["signed", "without metadata", "with hostile metadata"]), st.data())
def test_a_hostile_header_is_refused_or_loads(name, kind, data):
    folder = saved(name)[1]
    header, values = saving._split(folder.weights)
    if kind != "with hostile metadata":
        header.pop("__metadata__")
    header = data.draw(hostile(header))
    if kind == "signed" and isinstance(header, dict):
        load(signed(json.loads(folder.config), header, values), MAX_MEMORY)
    else:
        load(folder._replace(weights=saving._join(header, values)), MAX_MEMORY)
