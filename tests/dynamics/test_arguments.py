"""Constructors of dynamics refuse what they cannot use with `InputError`."""

import pytest
import torch
from torch import nn

import ncode
from ncode.dynamics import (
    MLP,
    Augmented,
    BlockLinear,
    ConvBlock,
    Function,
    Linear,
    Recurrent,
    SecondOrder,
    Skew,
    SparseLinear,
)
from ncode.errors import format_value

FLAGS = torch.tensor([True, False])
SIZES = {
    "MLP": MLP,
    "MLP hidden": lambda size: MLP(2, hidden=size),
    "MLP out": lambda size: MLP(2, out=size),
    "MLP context": lambda size: MLP(2, context=size),
    "ConvBlock": ConvBlock,
    "ConvBlock filters": lambda size: ConvBlock(2, filters=size),
    "Linear": lambda size: ncode.NCODE(Linear(size)),
    "Recurrent": lambda size: ncode.NCODE(Recurrent(size)),
    "SparseLinear": SparseLinear,
    "BlockLinear": lambda size: ncode.NCODE(BlockLinear(size)),
    "BlockLinear block": lambda size: ncode.NCODE(BlockLinear(6, block=size)),
    "Skew": lambda size: ncode.NCODE(Skew(size)),
    "Skew block": lambda size: ncode.NCODE(Skew(6, block=size)),
    "Function": lambda size: ncode.NCODE(Function(lambda t, x, theta: x, (size,))),
}


@pytest.mark.parametrize(
    "size", ["16", 1.5, -3, 10**400, 2**63, 2**62, FLAGS, [[3]], float("nan"), b"2"], ids=format_value
)
@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_cannot_be_are_refused(name, size):
    with pytest.raises(ncode.InputError):
        SIZES[name](size)


ARGUMENTS = {
    "text for units": (lambda: MLP(2, hidden="16"), "hidden must be a finite number; given '16'"),
    "a tensor for units": (lambda: MLP(2, hidden=torch.tensor([3, 4])), "given a tensor of shape"),
    "a module for a name": (lambda: MLP(2, activation=nn.Tanh()), r"unknown activation Tanh\(\)"),
    "flags": (lambda: MLP(2, time=FLAGS), "time must be True or False"),
    "flags of convolutions": (lambda: ConvBlock(2, time=FLAGS), "time must be True or False"),
    "a name for names": (lambda: MLP(2, controlled="weight_1"), r"use \('weight_1',\)"),
    "a number for names": (lambda: MLP(2, controlled=3), "controlled must be a tuple of names; given 3"),
    "a tensor for names": (lambda: MLP(2, controlled=FLAGS), "controlled must be a tuple of names"),
    "numbers for names": (lambda: MLP(2, controlled=(1,)), "1 is not a name"),
    "an unknown name": (lambda: MLP(2, controlled=("weigth_1",)), 'did you mean "weight_1"'),
    "a number for a shape": (lambda: Function(lambda t, x, theta: x, 3), "must be a tuple of sizes; given 3"),
    "a number for a control's name": (lambda: Function(lambda t, x, theta: x, {3: (2,)}), "dict of shapes by name"),
    "a truth for a size": (lambda: Function(lambda t, x, theta: x, (True,)), "must be a tuple of sizes"),
    "a number for the state": (lambda: Function(lambda t, x, theta: x, None, 3), "state_shape must be a tuple"),
    "text for the state": (lambda: Function(lambda t, x, theta: x, None, "ab"), "state_shape must be a tuple"),
    "a number for a velocity": (lambda: SecondOrder(MLP(4, out=2), velocity=3), "velocity must be None"),
    "a network for dynamics": (lambda: Augmented(nn.Linear(2, 2), 1), "dynamics must be a dynamics"),
    "a negative seed": (lambda: SparseLinear(4, seed=-1), "seed must be at least 0"),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments_that_cannot_be_used_are_refused(case):
    call, message = ARGUMENTS[case]
    with pytest.raises(ncode.InputError, match=message):
        call()
