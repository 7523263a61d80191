"""What the dynamics use at later times than t0 only, where one evaluation at t0 does not show it."""

import contextvars

import pytest
import torch
from torch import nn

import ncode
from ncode import InputError

from .systems import DOUBLE, close

STEPS = {"method": "rk4", "dt": 0.25}
METHODS = ({"method": "rk4", "dt": 0.25}, {}, {"method": "rodas5p"})


def is_late(t):
    return float(t.detach().max()) >= 0.5


# Parameters, where nothing that is known at t0 requires a gradient.


def hidden_ways():
    """Functions that use a module which no search finds, and the module."""
    late = nn.Linear(2, 2, dtype=DOUBLE)
    many, variable = [None] * 2000 + [late], contextvars.ContextVar("variable")
    variable.set(late)
    return {"a long list": lambda x: many[-1](x), "a ContextVar": lambda x: variable.get()(x)}, late


@pytest.mark.parametrize("way", hidden_ways()[0])
@pytest.mark.parametrize("gradient", ["discrete", "adjoint"])
@pytest.mark.parametrize("options", METHODS)
def test_a_parameter_that_is_first_met_after_t0_is_refused_or_has_its_gradient(way, gradient, options):
    ways, late = hidden_ways()
    x0, head = torch.ones(1, 2, dtype=DOUBLE), nn.Linear(2, 1, dtype=DOUBLE)

    def dynamics(t, x, theta):
        return ways[way](x) if is_late(t) else -x

    with pytest.raises(InputError, match="its gradient would be lost"):
        ncode.solve(dynamics, x0, 0.0, 1.0, gradient=gradient, **options)
    head(ncode.solve(dynamics, x0, 0.0, 1.0, gradient="autograd", **options).x).sum().backward()
    assert late.weight.grad.abs().sum() > 0
    with torch.no_grad():
        assert ncode.solve(dynamics, x0, 0.0, 1.0, gradient=gradient, **options).ok.all()


@pytest.mark.parametrize("part", ["feedback", "cost"])
def test_a_parameter_of_feedback_or_cost_that_is_first_met_after_t0_is_refused(part):
    ways, _ = hidden_ways()
    parts = {
        "feedback": lambda t, x, theta: ways["a long list"](x) if is_late(t) else -theta,
        "cost": lambda t, x, theta: ways["a long list"](x)[:, 0] if is_late(t) else x[:, 0],
    }
    x0 = torch.ones(3, 2, dtype=DOUBLE)
    with pytest.raises(InputError, match="its gradient would be lost"):
        ncode.solve(lambda t, x, theta: -x, x0, 0.0, 1.0, theta=x0, **{part: parts[part]}, **STEPS)


def test_a_parameter_that_is_returned_as_it_is_is_refused():
    many = [None] * 2000 + [nn.Parameter(torch.ones(3, 2, dtype=DOUBLE))]
    with pytest.raises(InputError, match="its gradient would be lost"):
        ncode.solve(
            lambda t, x, theta: many[-1] if is_late(t) else -x, torch.ones(3, 2, dtype=DOUBLE), 0.0, 1.0, **STEPS
        )


def test_a_parameter_of_an_event_that_is_first_met_after_t0_has_its_gradient():
    ways, late = hidden_ways()

    def value(t, x, theta):
        return ways["a long list"](x - 0.3)[:, 0] if is_late(t) else x[:, 0]

    torch.nn.init.ones_(late.weight)
    torch.nn.init.zeros_(late.bias)
    x0 = torch.ones(1, 2, dtype=DOUBLE)
    sol = ncode.solve(lambda t, x, theta: -x, x0, 0.0, 5.0, events=ncode.Event(value))
    sol.events[0].ts.sum().backward()
    assert late.bias.grad.abs().sum() > 0


def test_dynamics_without_parameters_are_evaluated_no_more_often_than_without_autograd():
    calls = []

    def dynamics(t, x, theta):
        calls.append(torch.is_grad_enabled())
        leaf = x.detach().requires_grad_()  # a derivative of the dynamics' own
        with torch.enable_grad():
            return -torch.autograd.grad(leaf.square().sum(), leaf)[0] / 2

    x0 = torch.ones(3, 2, dtype=DOUBLE)
    sol = ncode.solve(dynamics, x0, 0.0, 1.0, **STEPS)
    count = len(calls)
    with torch.no_grad():
        ncode.solve(dynamics, x0, 0.0, 1.0, **STEPS)
    assert len(calls) == 2 * count
    assert not sol.x.requires_grad


# Buffers that are first read after t0, and change between solve and backward.


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.ones(2, dtype=DOUBLE))
        self.register_buffer("mask", torch.tensor([1.0, 2.0], dtype=DOUBLE))
        self.register_buffer("unread", torch.ones(2, dtype=DOUBLE))
        self.register_buffer("count", torch.zeros(2, dtype=DOUBLE))
        self.register_buffer("late_count", torch.zeros(2, dtype=DOUBLE))

    def forward(self, t, x, theta):
        self.count.add_(1)
        if not is_late(t):
            return -x * self.rate
        self.late_count.add_(1)
        return -x * self.rate * self.mask.view(self.unread.shape)


@pytest.mark.parametrize("gradient", ["discrete", "adjoint"])
@pytest.mark.parametrize(
    "options",
    [
        *({**it, "keep": "states"} for it in METHODS),
        {**STEPS, "keep": "graph"},
        {"jump_ts": [0.5], **STEPS},
        {**STEPS, "checkpoint_every": 2},
    ],
)
@pytest.mark.parametrize("changed", ["mask", "unread", "late_count"])
def test_a_buffer_first_read_after_t0_that_changes_before_backward_is_refused(gradient, options, changed):
    module, x0 = Masked(), torch.ones(1, 2, dtype=DOUBLE)
    sol = ncode.solve(module, x0, 0.0, 1.0, gradient=gradient, **options)
    getattr(module, changed).mul_(0)
    if changed == "mask":
        with pytest.raises(InputError, match="changed in place between solve and backward"):
            sol.x.sum().backward()
    else:
        sol.x.sum().backward()
        found = module.rate.grad.clone()
        module.rate.grad = None
        ncode.solve(module, x0, 0.0, 1.0, gradient=gradient, **options).x.sum().backward()
        close(found, module.rate.grad)
