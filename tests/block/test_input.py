"""What a block is given and cannot use raises `InputError`, with a sentence, before any work."""

import warnings

import pytest
import torch
from torch import nn

import ncode
from ncode import dynamics

X = torch.ones(3, 2)


def linear():
    return ncode.NCODE(dynamics.Linear(2), ncode.OpenLoop(nn.Linear(2, 3)))


def mlp(**options):
    return ncode.NCODE(dynamics.MLP(2), **options)


def plastic():
    return ncode.NCODE(dynamics.Recurrent(2), ncode.Hebbian(), method="rk4", dt=0.5)


def function(f, control_shapes=None):
    return ncode.NCODE(dynamics.Function(f, control_shapes))


def nested(levels, value):
    for _ in range(levels):
        value = {"weight": value}
    return value


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of torch, that some of these are prototypes
    ODD_TENSORS = {
        "nested": (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested tensor: pad"),
        "jagged": (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "nested tensor"),
        "sparse": (X.to_sparse(), r"use .*\.to_dense\(\)"),
        "compressed": (X.to_sparse_csr(), r"use .*\.to_dense\(\)"),
        "quantised": (torch.quantize_per_tensor(X, 0.1, 0, torch.qint8), r"use .*\.dequantize\(\)"),
        "meta": (torch.ones(3, 2, device="meta"), "meta device"),
        "float8": (X.to(torch.float8_e4m3fn), r"use .*\.to\(torch\.float32\)"),
        "complex32": (torch.zeros(3, 2, dtype=torch.complex32), r"use .*\.to\(torch\.complex64\)"),
    }
DOORS = {
    "x": lambda value: mlp()(value),
    "x of a closed form": lambda value: linear()(value),
    "context": lambda value: linear()(X, value),
    "theta": lambda value: linear().solve(X, theta=value),
    "theta by name": lambda value: linear().solve(X, theta={"weight": value}),
    "save_at": lambda value: mlp().solve(X, save_at=value),
    "save_at of a closed form": lambda value: linear().solve(X, save_at=value),
    "ts": lambda value: mlp().trajectory(X, value),
    "t0": lambda value: mlp(t0=value),
    "t1": lambda value: mlp().solve(X, t1=value),
    "stimuli": lambda value: plastic().episode(value),
    "theta of an episode": lambda value: plastic().episode(torch.ones(3, 2, 2), theta=value),
}


@pytest.mark.parametrize("kind", ODD_TENSORS)
@pytest.mark.parametrize("door", DOORS)
def test_tensors_of_other_kinds_are_refused(door, kind):
    value, message = ODD_TENSORS[kind]
    with pytest.raises(ncode.InputError, match=message):
        DOORS[door](value)


@pytest.mark.parametrize(
    "value", ["text", 10**400, nested(3000, X), object()], ids=["text", "number", "dict", "object"]
)
@pytest.mark.parametrize("door", DOORS)
def test_what_is_no_tensor_is_refused(door, value):
    with pytest.raises(ncode.InputError):
        DOORS[door](value)


def test_a_deeply_nested_control_is_refused():
    with pytest.raises(ncode.InputError, match=r"theta\['weight'\] must be a tensor; given a dict"):
        linear().solve(X, theta=nested(3000, torch.ones(3, 2, 2)))


@pytest.mark.parametrize("flag", [torch.tensor([True, False]), torch.tensor(True), "no", None])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("throw", lambda flag: mlp().solve(X, throw=flag)),
        ("dense", lambda flag: mlp().solve(X, dense=flag)),
        ("exact", lambda flag: mlp(exact=flag)),
        ("exact", lambda flag: mlp().solve(X, exact=flag)),
    ],
)
def test_flags_are_true_or_false(name, call, flag):
    with pytest.raises(ncode.InputError, match=f"{name} must be True or False; given"):
        call(flag)


def test_a_block_of_16_bits_is_told_what_works():
    for dtype in (torch.float16, torch.bfloat16):
        block = mlp().to(dtype)
        with pytest.raises(ncode.InputError, match=r"use block\.to\(torch\.float32\), and torch\.autocast") as caught:
            block(X)
        assert "x.to" not in str(caught.value)
        block.to(torch.float32)(X)  # the advice
        with torch.autocast("cpu", torch.bfloat16):
            block(X)


def test_a_block_of_another_precision_is_told_what_works():
    block = mlp().double()
    with pytest.raises(ncode.InputError, match=r"use x\.to\(torch\.float64\), or block\.to\(torch\.float32\)"):
        block(X)
    assert block(X.to(torch.float64)).dtype == torch.float64
    assert block.to(torch.float32)(X).dtype == torch.float32


# What newcomers write.


class Attraction(dynamics.Dynamics):
    def __init__(self, control_shapes):
        super().__init__()
        self.control_shapes = control_shapes

    def forward(self, t, x, theta):
        return theta["goal"] - x


class WithoutTheta(dynamics.Dynamics):
    def forward(self, t, x):
        return -x


class Constant(ncode.control.Controller):
    def __init__(self, theta):
        super().__init__()
        self.theta = theta

    def initial_theta(self, context):
        return self.theta


NEWCOMERS = {
    "a network as feedback": (lambda: ncode.ClosedLoop(nn.Linear(2, 3)), r"ncode\.control\.Feedback\(trunk\)"),
    "a network as dynamics": (lambda: ncode.NCODE(nn.Linear(2, 2)), r"ncode\.dynamics\.Function"),
    "a class as dynamics": (lambda: ncode.NCODE(dynamics.MLP), r"given the class MLP: write MLP\(\.\.\.\)$"),
    "a class as controller": (lambda: ncode.NCODE(dynamics.MLP(2), ncode.Static), r"given the class Static"),
    "a class as step rule": (lambda: ncode.NCODE(dynamics.MLP(2), step_rule=ncode.PID), r"given the class PID"),
    "a forward without theta": (lambda: ncode.NCODE(WithoutTheta()), r"WithoutTheta takes \(t, x\): add theta"),
    "one sample": (lambda: ncode.NCODE(dynamics.MLP(2))(X[0]), r"for one sample use x\[None\]"),
    "a condition": (
        lambda: function(lambda t, x, theta: x if t > 0.5 else -x)(X),
        r"one answer per sample.*torch\.where\(t\[:, None\]",
    ),
    "a network as controller": (lambda: ncode.NCODE(dynamics.MLP(2), nn.Linear(2, 3)), r"ncode\.OpenLoop\(trunk\)"),
    "a wrong name": (lambda: function(lambda t, x, theta: theta["v"] * x, {"w": (2,)})(X), "'v'.*there are: w"),
    "forgotten shapes": (
        lambda: function(lambda t, x, theta: theta["w"] * x)(X),
        "'w'.*give the dynamics control_shapes",
    ),
    "forgotten shape": (lambda: function(lambda t, x, theta: theta * x)(X), "is a dict by name, with none"),
    "a dict as a tensor": (
        lambda: function(lambda t, x, theta: theta * x, {"w": (2,)})(X),
        "is a dict by name, with 'w'",
    ),
    "a tensor as a dict": (
        lambda: function(lambda t, x, theta: theta["w"] * x, (2,))(X),
        "it is a tensor; give",
    ),
    "too many zeros": (lambda: ncode.NCODE(dynamics.Augmented(Attraction({}), zeros=2**62))(X), "are too large"),
    "forgotten shapes of a class": (lambda: ncode.NCODE(Attraction({}))(X), "Attraction looked up 'goal'"),
    "names without shapes": (lambda: ncode.NCODE(Attraction(["goal"])), "must be a dict of shapes by name"),
    "a number for a shape": (lambda: ncode.NCODE(Attraction({"goal": 2})), "must be a tuple of sizes; given 2"),
    "a negative size": (lambda: ncode.NCODE(Attraction({"goal": (-2,)})), r"must be a tuple of sizes; given \(-2,\)"),
    "a wrong name in feedback": (
        lambda: ncode.NCODE(dynamics.Linear(2), ncode.ClosedLoop(lambda t, x, theta: {"weight": theta["w"]}))(X),
        "looked up 'w', and no control has this name",
    ),
    "a trunk for another input": (
        lambda: ncode.NCODE(dynamics.MLP(2), ncode.OpenLoop(nn.Sequential(nn.Linear(5, 3), nn.Tanh())))(X),
        r"linear layer of 5 inputs; given an input of shape \(3, 2\)",
    ),
    "whole numbers for a trunk": (lambda: linear()(X, X.long()), "the trunk of OpenLoop is torch.float32"),
    "a number for a control": (
        lambda: ncode.NCODE(dynamics.Linear(2), Constant({"weight": 3}))(X),
        "returned 3 for 'weight'; expected a tensor",
    ),
    "nothing for a control": (lambda: ncode.NCODE(dynamics.Linear(2), Constant(None))(X), "returned NoneType"),
    "a list for theta": (lambda: linear().solve(X, theta=[torch.ones(3, 2, 2)]), "theta must be a dict by name"),
    "a misspelt setting": (lambda: mlp().solve(X, rtoll=1e-3), 'did you mean "rtol"'),
    "a nested state": (lambda: mlp()({"a": X, "b": X}), "one tensor; given a dict: concatenate its parts.*ncode.solve"),
    "times out of a list": (lambda: mlp().trajectory(X, [[0.0, 1.0], [0.0]]), "ts must be a tensor of times"),
}


@pytest.mark.parametrize("habit", NEWCOMERS)
def test_habits_of_newcomers_get_a_sentence(habit):
    call, message = NEWCOMERS[habit]
    with pytest.raises(ncode.InputError, match=message):
        call()


def test_a_key_error_of_something_else_is_left_alone():
    table = {1: 2.0}
    with pytest.raises(KeyError, match="5"):
        function(lambda t, x, theta: table[5] * x)(X)
    with pytest.raises(TypeError, match="unsupported operand"):
        function(lambda t, x, theta: x * object())(X)


def test_a_part_of_ones_own_without_the_constructor_of_torch_is_told_so():
    class Unbuilt(ncode.control.Controller):
        def __init__(self):
            self.rate = 2.0

        def initial_theta(self, context):
            return context

    class UnbuiltDynamics(dynamics.Dynamics):
        def __init__(self):
            self.rate = 2.0

        def forward(self, t, x, theta):
            return -x

    said = r"__init__ does not call super\(\).__init__\(\): make it the first line of "
    with pytest.raises(ncode.InputError, match=rf"Unbuilt\.{said}Unbuilt.__init__"):
        ncode.NCODE(Attraction({"goal": (2,)}), Unbuilt())
    with pytest.raises(ncode.InputError, match=rf"UnbuiltDynamics\.{said}"):
        ncode.NCODE(UnbuiltDynamics())
