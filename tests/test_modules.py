"""Files that were written when controls were called, for example, "weight 1" and "3x3 bias"."""

import re

import pytest
import torch
from torch import nn

import ncode
from ncode._modules import current_name
from ncode.block import NCODE
from ncode.control import Feedback, Parts
from ncode.dynamics import MLP, Augmented, ConvBlock


def old_name(name):
    name = re.sub(r"^conv_(in|3x3|out)", lambda m: {"in": "1x1 in", "3x3": "3x3", "out": "1x1 out"}[m[1]], name)
    return re.sub(r"(_bias$|^(weight|bias)_(?=\d))", lambda m: " bias" if m[2] is None else f"{m[2]} ", name)


def trunk():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 4))


def parts():
    named = {("weight 1", "bias 1"): ncode.OpenLoop(nn.Linear(2, 4)), "weight_2": ncode.TimeVarying()}
    return Parts(named, rest=ncode.ClosedLoop(Feedback(nn.Linear(2, 3))))


BLOCKS = {
    "static": lambda: NCODE(MLP(2, hidden=(3, 4))),
    "learned": lambda: NCODE(MLP(2, controlled=("weight 2",))),
    "parts": lambda: NCODE(MLP(2), parts()),
    "convolutions": lambda: NCODE(
        Augmented(ConvBlock(5, 4, controlled=("1x1 in", "3x3 bias")), zeros=2), ncode.OpenLoop(trunk())
    ),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_old_keys_of_a_state_dict_are_understood(name):
    block, again = BLOCKS[name](), BLOCKS[name]()
    saved = {".".join(map(old_name, key.split("."))): value for key, value in block.state_dict().items()}
    assert any(" " in key for key in saved)
    assert not any(" " in key for key in block.state_dict())
    again.load_state_dict(saved)
    for key, value in again.state_dict().items():
        assert torch.equal(value, block.state_dict()[key])


def test_names_of_other_things_stay_as_they_are():
    network = nn.ModuleDict({"3x3": nn.Linear(2, 2)})

    class Trunk(nn.Module):
        def __init__(self):
            super().__init__()
            self.network = network

        def forward(self, x):
            return self.network["3x3"](x)

    block = NCODE(MLP(2), ncode.OpenLoop(Trunk()))
    assert "controller.trunk.network.3x3.weight" in block.state_dict()
    block.load_state_dict(block.state_dict())


@pytest.mark.parametrize("name", ["weight", "weight_1", "weight 1 bias", "goal", "conv_3x3"])
def test_a_present_name_is_its_own(name):
    assert current_name(name) == name


def test_a_key_that_fits_nothing_is_still_an_error():
    block = NCODE(MLP(2))
    with pytest.raises(RuntimeError, match="weight_7"):
        block.load_state_dict({**block.state_dict(), "controller.theta.weight 7": torch.zeros(1)})
