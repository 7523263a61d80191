from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ncode_lab.training.share import share
from torch import Tensor

from ncode import InputError


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


@given(st.integers(1, 6), st.integers(1, 4))
def test_the_shares_of_all_devices_are_the_batch(devices, part):
    x = torch.arange(devices * part * 2.0).reshape(-1, 2)
    batch = {"pair": Pair(x, x[:, 0]), "list": [x], "scale": 2.0, "scalar": torch.tensor(1.0)}
    parts = [share(batch, rank, devices) for rank in range(devices)]
    assert torch.equal(torch.cat([each["pair"].x for each in parts]), x)
    assert torch.equal(torch.cat([each["pair"].y for each in parts]), x[:, 0])
    assert all(each["list"][0].shape == (part, 2) for each in parts)
    assert all(each["scale"] == 2.0 and each["scalar"] == 1.0 for each in parts)


def test_a_batch_that_cannot_be_shared_equally_is_told_so():
    with pytest.raises(InputError, match="a batch of 7 cannot be shared equally by 2 devices: choose a batch size"):
        share((torch.zeros(7), 1.0), 0, 2)


def test_tensors_of_different_lengths_cannot_be_shared():
    with pytest.raises(InputError, match=r"of one length.*given \[2, 4\]"):
        share((torch.zeros(4), torch.zeros(2)), 0, 2)
