"""Constructors of controllers refuse what they cannot use with `InputError`."""

import pytest
import torch
from torch import nn

import ncode
from ncode.control import ClosedLoop, DataControl, Drift, Feedback, Hebbian, OpenLoop, Parts, Static, TimeVarying
from ncode.dynamics import MLP
from ncode.errors import format_value

FLAGS = torch.tensor([True, False])


def trunk():
    return nn.Linear(2, 3)


NUMBERS = {
    "OpenLoop width": lambda value: ncode.NCODE(MLP(2), OpenLoop(trunk(), width=value)),
    "OpenLoop scale": lambda value: OpenLoop(trunk(), scale=value),
    "Feedback scale": lambda value: Feedback(trunk(), scale=value),
    "TimeVarying terms": lambda value: ncode.NCODE(MLP(2), TimeVarying(terms=value)),
    "TimeVarying span": lambda value: TimeVarying(span=value),
    "Hebbian scale": lambda value: Hebbian(scale=value),
    "Hebbian decay": lambda value: Hebbian(decay=value),
}


@pytest.mark.parametrize("value", ["16", -3, 10**400, FLAGS, [3], float("inf"), float("nan")], ids=format_value)
@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_cannot_be_are_refused(name, value):
    with pytest.raises(ncode.InputError):
        NUMBERS[name](value)


@pytest.mark.parametrize("size", [2**62, 10**13])
@pytest.mark.parametrize("name", ["OpenLoop width", "TimeVarying terms"])
def test_weights_that_no_memory_can_hold_are_refused(name, size):
    with pytest.raises(ncode.InputError, match="are too large"):
        NUMBERS[name](size)


ARGUMENTS = {
    "a function for a trunk": (lambda: OpenLoop(lambda x: x), "a trunk must be a module"),
    "flags for inputs": (lambda: Feedback(trunk(), sees=FLAGS), "sees must be a tuple of names"),
    "a number for inputs": (lambda: Feedback(trunk(), sees=3), "sees must be a tuple of names"),
    "a name for inputs": (lambda: Feedback(trunk(), sees="x"), r"use \('x',\)"),
    "no inputs": (lambda: Feedback(trunk(), sees=()), "sees must name at least one of x, theta, t"),
    "a tensor for a feedback": (lambda: ClosedLoop(FLAGS), r"feedback must be a function of \(t, x, theta\)"),
    "a network for a feedback": (lambda: ClosedLoop(trunk()), r"ncode\.control\.Feedback\(trunk\)"),
    "a tensor for an initial control": (lambda: ClosedLoop(lambda t, x, theta: theta, FLAGS), "unknown initial"),
    "a tensor for a drift": (lambda: Drift(FLAGS), r"q must be a function of \(t, theta\)"),
    "a tensor for a basis": (lambda: TimeVarying(FLAGS), "unknown basis a tensor of shape"),
    "a tensor for coefficients": (lambda: TimeVarying(coefficients=FLAGS), "coefficients must be a controller"),
    "a tensor for parts": (lambda: Parts(FLAGS), "parts must be a dict of controllers"),
    "nothing for parts": (lambda: Parts(None), "parts must be a dict of controllers"),
    "text for parts": (lambda: Parts("ab"), "parts must be a dict of controllers"),
    "numbers for parts": (lambda: Parts([1]), "parts must be a dict of controllers"),
    "a number for a name": (lambda: Parts({3: Static()}), "a key of parts must be a tuple of names; given 3"),
    "numbers for names": (lambda: Parts({(1, 2): Static()}), "1 is not a name"),
    "a number for the rest": (lambda: Parts({"a": DataControl()}, rest=3), "given int"),
    "an unknown name": (
        lambda: ncode.NCODE(MLP(2), Parts({"wieght_1": Static()}, rest=Static())),
        'did you mean "weight_1"',
    ),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_arguments_that_cannot_be_used_are_refused(case):
    call, message = ARGUMENTS[case]
    with pytest.raises(ncode.InputError, match=message):
        call()


def test_parts_may_come_from_an_iterator():
    parts = Parts(zip(["context", ("weight_1",)], [DataControl(), Static()], strict=True), rest=Static())
    assert ncode.NCODE(MLP(2, context=2), parts)(torch.ones(3, 2)).shape == (3, 2)
