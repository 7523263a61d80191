import sys
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ncode_lab.training import RunOptions
from ncode_lab.training.devices import shard_batch, start_fabric
from torch import Tensor

from ncode import InputError

from .tiny import context_at, train


@pytest.fixture(autouse=True)
def modes():
    """What `start` sets for the whole process."""
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_default_dtype(torch.float32)


def test_cuda_that_is_not_there_is_told_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="'cuda' was requested, but torch finds no CUDA device: choose --device cpu"):
        start_fabric(RunOptions(device="cuda"))


def test_more_devices_than_there_are_is_told_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(InputError, match="8 CUDA devices were requested, but there are 2"):
        start_fabric(RunOptions(devices=8))


def test_half_precision_needs_cuda():
    with pytest.raises(InputError, match="choose --precision bf16"):
        start_fabric(RunOptions(device="cpu", precision="16"))


@pytest.mark.parametrize(
    ("precision", "dtype"), [("32", torch.float32), ("bf16", torch.float32), ("64", torch.float64)]
)
def test_a_model_is_trained_in_each_precision(tmp_path, precision, dtype):
    weights = train(tmp_path, options={"precision": precision}, noisy=False)
    assert all(weight.dtype == dtype for weight in weights.values())


def test_deterministic_is_set_and_unset():
    start_fabric(RunOptions(device="cpu", deterministic=True))
    assert torch.are_deterministic_algorithms_enabled()
    start_fabric(RunOptions(device="cpu"))
    assert not torch.are_deterministic_algorithms_enabled()


def test_tensorboard_files_appear_on_request(tmp_path):
    train(tmp_path / "without")
    assert not (tmp_path / "without" / "tensorboard").exists()
    train(tmp_path / "with", options={"tensorboard": True})
    files = list((tmp_path / "with" / "tensorboard" / "model").glob("events.out.tfevents.*"))
    assert len(files) == 1
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(files[0].parent)).Reload()
    assert [each.step for each in events.Scalars("train/loss")] == [1, 2, 3, 4, 5, 6]
    assert [each.step for each in events.Scalars("evaluation/error")] == [3, 6]


def test_tensorboard_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match=r"pip install 'ncode-lab\[tensorboard\]'"):
        start_fabric(RunOptions(device="cpu", tensorboard=True))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("precision", ["32", "bf16", "16"])
def test_a_run_on_cuda_stops_and_goes_on(tmp_path, precision):
    options = {"device": "cuda", "precision": precision}
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "broken", at_step={5: lambda: 1 / 0}, options=options, noisy=False)
    again = train(tmp_path / "broken", options=options, noisy=False)
    for name, weight in train(tmp_path / "whole", options=options, noisy=False).items():
        assert weight.device.type == "cuda"
        torch.testing.assert_close(again[name], weight, rtol=1e-3, atol=1e-4)


def test_the_desk_knows_its_device(tmp_path):
    assert context_at(tmp_path).device == torch.device("cpu")


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


@given(st.integers(1, 6), st.integers(1, 4))
def test_the_shares_of_all_devices_are_the_batch(devices, part):
    x = torch.arange(devices * part * 2.0).reshape(-1, 2)
    batch = {"pair": Pair(x, x[:, 0]), "list": [x], "scale": 2.0, "scalar": torch.tensor(1.0)}
    parts = [shard_batch(batch, rank, devices) for rank in range(devices)]
    assert torch.equal(torch.cat([each["pair"].x for each in parts]), x)
    assert torch.equal(torch.cat([each["pair"].y for each in parts]), x[:, 0])
    assert all(each["list"][0].shape == (part, 2) for each in parts)
    assert all(each["scale"] == 2.0 and each["scalar"] == 1.0 for each in parts)


def test_a_batch_that_cannot_be_shared_equally_is_told_so():
    with pytest.raises(InputError, match="a batch of 7 cannot be split equally over 2 devices: choose a batch size"):
        shard_batch((torch.zeros(7), 1.0), 0, 2)


def test_tensors_of_different_lengths_cannot_be_shared():
    with pytest.raises(InputError, match=r"must have one length.*given \[2, 4\]"):
        shard_batch((torch.zeros(4), torch.zeros(2)), 0, 2)
