"""What a newcomer meets first: help, attributes, tables, and errors for habits of other libraries."""

import re

import pytest
import torch
from torch import nn

import ncode

X = torch.linspace(-1, 1, 15).reshape(5, 3)
TIMES = torch.linspace(0, 1, 7)


class Net(nn.Module):
    def forward(self, t, x):
        return -x


class Attraction(ncode.dynamics.Dynamics):  # its control_shapes are forgotten
    def forward(self, t, x, theta):
        return theta["goal"] - x


def goal(name):
    return ncode.dynamics.Function(lambda t, x, theta: theta[name] - x, {"goal": (3,)})


def test_the_help_of_the_package_names_every_public_name():
    words = set(re.findall(r"\w+", ncode.__doc__))
    assert [name for name in ncode.__all__ if name not in words and name != "__version__"] == []
    assert max(map(len, ncode.__doc__.splitlines())) <= 120


def test_a_missing_attribute_gets_the_nearest_name():
    with pytest.raises(AttributeError, match='did you mean "ClosedLoop"'):
        _ = ncode.ClosedLop
    with pytest.raises(AttributeError, match='did you mean "NCODE"'):
        _ = ncode.Ncode
    with pytest.raises(AttributeError, match=r"from ncode\.compat\.torchdiffeq import odeint"):
        _ = ncode.odeint


def test_a_solution_is_shown_in_three_lines():
    solution = ncode.solve(lambda t, x, theta: -x, X, 0.0, 1.0, save_at=TIMES)
    first, second, third = repr(solution).splitlines()
    assert first == "Solution: x (5, 3), xs (5, 7, 3)"
    assert second == "  status: 5 OK"
    assert third.startswith("  evaluations per sample: ")


def test_a_solution_says_how_many_samples_an_event_ended():
    half = ncode.Event(lambda t, x, theta: x[:, 0] - 0.5)
    x0 = torch.tensor([[1.0], [0.9], [9.0]])
    solution = ncode.solve(lambda t, x, theta: -x, x0, 0.0, 1.0, events=[half, half])
    assert repr(solution).splitlines()[1] == "  status: 3 OK (2 ended by an event)"
    assert solution.events[0].ended.tolist() == [True, True, False]


def test_the_family_is_a_table_with_a_header():
    header, *rows = repr(ncode.NCODE.family()).splitlines()
    start = header.index("dynamics")
    assert header.split()[:3] == ["model", "controller", "dynamics"]
    assert all(row[start - 2 : start] == "  " and row[start] != " " for row in rows)


HABITS = {
    "f(t, x)": (lambda: ncode.solve(lambda t, x: -x, X, 0.0, 1.0), r"write lambda t, x, theta: f\(t, x\).*odeint"),
    "a module of t and x": (lambda: ncode.solve(Net(), X, 0.0, 1.0), r"Net takes \(t, x\): write .*net\(t, x\)"),
    "a network of x": (lambda: ncode.solve(nn.Linear(3, 3), X, 0.0, 1.0), r"write lambda t, x, theta: net\(x\)"),
    "f(t, x) in a block": (lambda: ncode.dynamics.Function(lambda t, x: -x), r"write lambda t, x, theta: f\(t, x\)"),
    "a network as a block": (lambda: ncode.NCODE(nn.Linear(3, 3)), r"ncode.dynamics.Function\("),
    "ts as the third argument": (lambda: ncode.solve(Net(), X, TIMES), r"ts\[0\], ts\[-1\], save_at=ts\)"),
    "a list of times": (lambda: ncode.solve(Net(), X, [0.0, 1.0]), r"given \[0.0, 1.0\].*save_at=ts"),
    "options of odeint": (
        lambda: ncode.solve(goal("goal"), X, 0.0, 1.0, method="rk4", options={"step_size": 0.1}),
        "no options=: they are arguments of their own, such as dt=0.1 for a step_size",
    ),
    "no t1": (lambda: ncode.solve(Net(), X, 0.0), "two times, t0 and t1: write"),
    "ts as t0": (lambda: ncode.solve(goal("goal"), X, TIMES, 1.0), r"given \(7,\): times .* save_at"),
    "a block and ts": (lambda: ncode.NCODE(ncode.dynamics.MLP(3))(X, TIMES), r"block.trajectory\(x, ts\)"),
    "ClosedLoop(nn.Linear)": (lambda: ncode.ClosedLoop(nn.Linear(3, 3)), r"ncode.control.Feedback\(trunk\)"),
    "a trunk as a controller": (lambda: ncode.NCODE(ncode.dynamics.MLP(3), nn.Linear(3, 3)), r"ncode.OpenLoop\(trunk"),
    "hidden as text": (
        lambda: ncode.dynamics.MLP(3, hidden="16"),
        "given .16.: leave out the quotes",
    ),
    "a wrong control": (lambda: ncode.NCODE(goal("gaol"), ncode.DataControl())(X), 'did you mean "goal"'),
    "a wrong control given": (
        lambda: ncode.NCODE(goal("goal"), ncode.DataControl()).solve(X, theta={"gaol": X}),
        '(?s)does not fit.*did you mean "goal"',
    ),
    "a wrong weight": (lambda: ncode.dynamics.MLP(3, controlled=("weight1",)), 'did you mean "weight_1"'),
    "no control_shapes": (lambda: ncode.NCODE(Attraction())(X), r"control_shapes=\{'goal': \(2,\)\}"),
    "no control_shapes in an open loop": (
        lambda: ncode.NCODE(Attraction(), ncode.OpenLoop(nn.Linear(3, 4))),
        "control_shapes in dynamics of your own",
    ),
    "no control_shapes in a closed loop": (
        lambda: ncode.NCODE(Attraction(), ncode.ClosedLoop(lambda t, x, theta: theta)),
        "control_shapes in dynamics of your own",
    ),
    "no control_shapes, data": (
        lambda: ncode.NCODE(Attraction(), ncode.DataControl()),
        "control_shapes of dynamics of your own",
    ),
}


@pytest.mark.parametrize("habit", HABITS)
def test_a_habit_gets_a_sentence_that_names_the_fix(habit):
    call, message = HABITS[habit]
    with pytest.raises(ncode.InputError, match=message):
        call()


FIXED = {"method": "rk4", "dt": 0.5}
TIME_HABITS = {
    "product": {"dynamics": lambda t, x, theta: t * x},
    "concatenation": {"dynamics": lambda t, x, theta: torch.cat([t, x], 1)[:, 1:]},
    "feedback": {"dynamics": lambda t, x, theta: x, "theta": X, "feedback": lambda t, x, theta: t * x},
    "cost": {"dynamics": lambda t, x, theta: x, "cost": lambda t, x, theta: (t * x).sum(1)},
    "fixed steps": {"dynamics": lambda t, x, theta: t + x, **FIXED},
    "a plain graph": {"dynamics": lambda t, x, theta: t + x, "gradient": "autograd", **FIXED},
    "one column": {"dynamics": lambda t, x, theta: t * x, "x0": X[:, :1]},
}


@pytest.mark.parametrize("name", TIME_HABITS)
def test_a_time_that_does_not_broadcast_gets_the_line_to_write(name):
    arguments = {"x0": X, **TIME_HABITS[name]}
    with pytest.raises(ncode.InputError, match=r"t of shape \(5,\).*write t\[:, None\] \* x for t \* x"):
        ncode.solve(t0=0.0, t1=1.0, **arguments)


def test_the_line_to_write_has_the_dimensions_of_images():
    with pytest.raises(ncode.InputError, match=r"write t.reshape\(-1, 1, 1, 1\) \* x"):
        ncode.solve(lambda t, x, theta: t * x, torch.ones(5, 1, 4, 4), 0.0, 1.0)
