"""The shapes in the annotations of the public surface are those that calls take and return.

The library writes shapes as jaxtyping does and never evaluates them, since it needs torch alone. Here the names in them
stand for jaxtyping's own types, and beartype checks calls.
"""

import inspect
import sys
import types
import typing

import jaxtyping
import pytest
import torch
from beartype import BeartypeConf, beartype
from jaxtyping import TypeCheckError, jaxtyped
from torch import nn

import ncode
from ncode import paths
from ncode.closed_forms import linear_flow, linear_recurrence, piecewise_linear_flow
from ncode.control import Controller
from ncode.dynamics import Dynamics

NAMES = {name: getattr(jaxtyping, name) for name in ("Bool", "Float", "Inexact", "Int", "Int64", "Real", "Shaped")}
typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))  # a parameter of type float takes 1, too


def shapes(thing):
    """The annotations of a function or class that name shapes, with jaxtyping's types."""
    hints = typing.get_type_hints(thing, {**vars(sys.modules[thing.__module__]), **NAMES}, include_extras=True)
    return {name: hint for name, hint in hints.items() if "jaxtyping" in repr(hint)}


def checked(function, base=None):
    """The function, with the shapes checked that it, or the method `base` that it overrides, is annotated with."""
    function = inspect.unwrap(function)
    code, names, closure = function.__code__, function.__globals__, function.__closure__
    copy = types.FunctionType(code, names, function.__name__, function.__defaults__, closure)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__annotations__ = shapes(inspect.unwrap(base or function))
    assert copy.__annotations__
    return jaxtyped(copy, typechecker=typechecker)


def assert_shapes_agree(*things):
    """Check all annotated fields of several objects; a name is one size throughout."""
    with jaxtyped("context"):
        for thing in things:
            for name, hint in shapes(type(thing)).items():
                value = getattr(thing, name)
                if value is not None:
                    assert isinstance(value, hint), f"{name} is {value.dtype} {tuple(value.shape)}, not {hint}"


def decay(t, x, theta):
    return -x


def price(t, x, theta):
    return x.abs().reshape(len(t), -1).sum(1)


solve = checked(ncode.solve)
TIMES = {
    "none": None,
    "list": [0.0, 0.5, 1.0],
    "shared": torch.linspace(0, 1, 3),
    "per sample": torch.linspace(0, 1, 3).expand(4, 3),
}


@pytest.mark.parametrize("save_at", TIMES.values(), ids=TIMES)
@pytest.mark.parametrize("state", [(), (2,), (2, 3, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_a_solution_has_the_shapes_of_its_annotations(state, dtype, save_at):
    x0 = torch.ones(4, *state, dtype=dtype, requires_grad=True)
    sol = solve(decay, x0, 0.0, 1.0, save_at=save_at, cost=price)
    sol.x.abs().sum().backward()
    assert_shapes_agree(sol, sol.stats)
    assert sol.x.shape == x0.shape
    assert (sol.xs is None) == (save_at is None)
    assert sol.stats.nfe_backward is not None


def test_all_tensors_of_a_solution_are_annotated():
    assert set(shapes(ncode.Solution)) == {"x", "cost", "ts", "xs", "codes", "t", "steps"}
    assert set(shapes(ncode.Stats)) == {"nfe", "steps", "rejected", "nfe_backward"}


@pytest.mark.parametrize("time", [0, 0.0, torch.tensor(0.0), torch.zeros(4), torch.zeros(4, dtype=torch.int64)])
def test_a_time_is_a_number_or_a_tensor_of_one_or_of_one_per_sample(time):
    sol = solve(decay, torch.ones(4, 2), time, 1.0)
    assert_shapes_agree(sol, sol.stats)


@pytest.mark.parametrize(
    "wrong",
    [
        {"x0": torch.tensor(1.0)},
        {"x0": torch.ones(4, 2, dtype=torch.int64)},
        {"t0": torch.zeros(3)},
        {"t1": torch.ones(4, 1)},
        {"t1": torch.ones((), dtype=torch.complex64)},
        {"save_at": torch.ones(3, 5)},
        {"save_at": torch.ones(4, 5, 1)},
    ],
)
def test_what_breaks_the_annotations_solve_refuses_with_a_sentence(wrong):
    arguments = {"dynamics": decay, "x0": torch.ones(4, 2), "t0": 0.0, "t1": 1.0, **wrong}
    with pytest.raises(TypeCheckError):
        solve(**arguments)
    with pytest.raises(ncode.InputError):
        ncode.solve(**arguments)


@pytest.mark.parametrize("save_at", [None, torch.linspace(0, 1, 3), torch.linspace(0, 1, 3).expand(4, 3)])
@pytest.mark.parametrize("sparse", [True, False])
def test_a_linear_flow_has_the_shapes_of_its_annotations(sparse, save_at):
    columns = torch.tensor([[0, 1], [1, 2], [2, 0]]) if sparse else None
    theta, x0 = torch.randn(4, 3, 2 if sparse else 3), torch.randn(4, 3)
    flow = checked(linear_flow)(theta, x0, 0.0, torch.ones(4), columns=columns, save_at=save_at)
    assert_shapes_agree(flow)
    assert (flow.xs is None) == (save_at is None)


def test_a_linear_flow_of_wrong_shapes_is_refused():
    arguments = torch.randn(4, 3, 3), torch.randn(4, 2), 0.0, 1.0
    with pytest.raises(TypeCheckError):
        checked(linear_flow)(*arguments)
    with pytest.raises(ncode.InputError):
        linear_flow(*arguments)


@pytest.mark.parametrize("shared", [True, False])
def test_a_piecewise_linear_flow_has_the_shapes_of_its_annotations(shared):
    theta, x0, bias = torch.randn(4, 5, 3, 3), torch.randn(4, 3), torch.randn(4, 5, 3)
    knots = torch.arange(6) if shared else torch.arange(6.0).expand(4, 6)
    assert checked(piecewise_linear_flow)(theta, x0, knots, bias=bias).shape == (4, 6, 3)
    assert checked(linear_recurrence)(theta, x0, bias).shape == (4, 6, 3)
    with pytest.raises(TypeCheckError):
        checked(piecewise_linear_flow)(theta, x0[:, :2], knots)


@pytest.mark.parametrize("make", [paths.constant, paths.linear, paths.hermite, paths.rectilinear])
@pytest.mark.parametrize("knots", [None, torch.arange(5), torch.arange(5.0).expand(4, 5)])
def test_a_path_has_the_shapes_of_its_annotations(make, knots):
    path = checked(make)(torch.randn(4, 5, 2), knots, torch.tensor([5, 1, 2, 3]))
    assert_shapes_agree(path)
    with pytest.raises(TypeCheckError):
        checked(make)(torch.randn(5, 2), knots)


class Attraction(Dynamics):
    control_shapes = {"goal": (3,)}  # noqa: RUF012

    def forward(self, t, x, theta):
        return theta["goal"] - x


class Moving(Controller):
    def initial_theta(self, context):
        return {"goal": -context}

    def speed(self, t, x, theta):
        return {"goal": x - theta["goal"] * t[:, None]}


@pytest.mark.parametrize("gradient", ["discrete", "adjoint", "autograd"])
def test_dynamics_and_controllers_are_called_with_the_shapes_of_their_annotations(gradient, monkeypatch):
    called = set()

    def watch(cls, base, name):
        function = checked(vars(cls)[name], vars(base)[name])
        monkeypatch.setattr(cls, name, lambda *arguments: called.add(name) or function(*arguments))

    watch(Attraction, Dynamics, "forward")
    watch(Moving, Controller, "initial_theta")
    watch(Moving, Controller, "speed")
    ncode.NCODE(Attraction(), Moving(), gradient=gradient)(torch.randn(4, 3, requires_grad=True)).sum().backward()
    assert called == {"forward", "initial_theta", "speed"}


def test_a_dynamics_that_returns_another_shape_breaks_its_annotations():
    def forward(self, t, x, theta):
        return x[:, :1]

    with pytest.raises(TypeCheckError):
        checked(forward, Dynamics.forward)(None, torch.zeros(4), torch.ones(4, 3), {})


@pytest.mark.parametrize("controller", [ncode.Static, lambda: ncode.OpenLoop(nn.Linear(3, 4))])
def test_a_block_has_the_shapes_of_its_annotations(controller):
    block, x = ncode.NCODE(ncode.dynamics.MLP(3), controller()), torch.randn(4, 3)
    forward, trajectory = checked(ncode.NCODE.forward), checked(ncode.NCODE.trajectory)
    assert forward(block, x).shape == (4, 3)
    assert forward(block, x, context=torch.randn(4, 3)).shape == (4, 3)
    for ts in (torch.linspace(0, 1, 5), torch.linspace(0, 1, 5).expand(4, 5)):
        assert trajectory(block, x, ts).shape == (4, 5, 3)
        sol = block.solve(x, save_at=ts)
        assert_shapes_agree(sol, sol.stats)
    for wrong in (torch.linspace(0, 1, 5).expand(3, 5), torch.tensor(1.0)):
        with pytest.raises(TypeCheckError):
            trajectory(block, x, wrong)
        with pytest.raises(ncode.InputError):
            block.trajectory(x, wrong)
