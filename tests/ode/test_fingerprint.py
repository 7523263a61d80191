"""A compiled solve follows everything that its dynamics read, as an eager one does."""

import sys
import types

import pytest
import torch
from torch import nn

import ncode
from ncode import InputError
from ncode.ode.backends import inductor
from ncode.ode.held_values import held_by, survey

from .systems import DOUBLE, close

SCALE = [1.0]
FACTOR = 1.0


def fingerprint(functions):
    return survey(functions).fingerprint


def factors(x):
    return factors.each * torch.ones_like(x)


factors.each = 1.0


class Field(nn.Module):
    """Dynamics that read an attribute, a sub-module, a list, a global and an attribute of a function."""

    def __init__(self):
        super().__init__()
        self.scale, self.parts, self.names = 1.0, nn.Sequential(nn.Linear(2, 2, dtype=DOUBLE), nn.Tanh()), ["tanh"]
        self.settings = types.SimpleNamespace(sign=-1.0)

    def forward(self, t, x, theta):
        last = torch.tanh if self.names[0] == "tanh" else torch.sin
        return factors(x) * self.settings.sign * self.scale * SCALE[0] * FACTOR * last(self.parts(x))


def set_global(field):
    globals()["FACTOR"] = 3.0


CHANGES = {
    "an attribute": lambda field: setattr(field, "scale", 3.0),
    "a sub-module": lambda field: field.parts.__setitem__(1, nn.ReLU()),
    "an item of a list": lambda field: field.names.__setitem__(0, "sin"),
    "an attribute of an object": lambda field: setattr(field.settings, "sign", 0.5),
    "an item of a global list": lambda field: SCALE.__setitem__(0, 3.0),
    "a global number": set_global,
    "an attribute of a function": lambda field: setattr(factors, "each", 3.0),
    "a forward hook": lambda field: field.parts[0].register_forward_hook(lambda module, given, out: 2 * out),
    "a forward pre-hook": lambda field: field.parts.register_forward_pre_hook(lambda module, given: (2 * given[0],)),
}


@pytest.fixture(autouse=True)
def _restore_globals():
    yield
    SCALE[0] = factors.each = 1.0
    globals()["FACTOR"] = 1.0


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("change", CHANGES)
def test_a_compiled_solve_follows_what_its_dynamics_read(change):
    torch.manual_seed(0)
    field, x0 = Field(), torch.randn(3, 2, dtype=DOUBLE)

    def results(compile):
        sol = ncode.solve(field, x0, 0.0, 1.0, compile=compile, method="rk4", dt=0.5)
        return sol.x.detach(), torch.autograd.grad(sol.x.square().sum(), list(field.parameters()))

    before = results(True)
    close(before, results(False))
    CHANGES[change](field)
    after = results(True)
    close(after, results(False))
    assert not torch.allclose(before[0], after[0])


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_what_does_not_change_is_compiled_once():
    torch.manual_seed(0)
    net, x0 = nn.Linear(2, 2, dtype=DOUBLE), torch.randn(3, 2, dtype=DOUBLE)

    def solve():
        return ncode.solve(lambda t, x, theta: net(x), x0, 0.0, 1.0, compile="inductor", method="rk4", dt=0.5)

    solve().x.sum().backward()
    known = set(inductor._compiled)
    with torch.no_grad():
        net.weight.mul_(0.5)
    for _ in range(2):
        solve().x.sum().backward()
    assert set(inductor._compiled) == known


@pytest.mark.parametrize("change", CHANGES)
def test_a_fingerprint_changes_with_what_is_read(change):
    field = Field()
    before = fingerprint([field])
    assert fingerprint([field]) == before
    CHANGES[change](field)
    assert fingerprint([field]) != before


def test_fresh_functions_with_equal_closures_have_one_fingerprint():
    net = nn.Linear(2, 2)

    def make(factor):
        return lambda t, x, theta: factor * net(x)

    assert fingerprint([make(2.0)]) == fingerprint([make(2.0)])
    assert fingerprint([make(2.0)]) != fingerprint([make(3.0)])
    assert fingerprint([make(float("nan"))]) == fingerprint([make(float("nan"))])


def test_fresh_functions_without_closures_have_one_fingerprint():
    first, second = (eval("lambda t, x, theta: -x") for _ in range(2))
    assert first.__code__ == second.__code__
    assert fingerprint([first]) == fingerprint([second])


@pytest.mark.parametrize("name", ["NODE", "open-loop N-CODE", "closed-loop N-CODE", "depth-varying NODE"])
def test_a_block_is_compiled_once(name, traced):
    block = ncode.NCODE(*ncode.NCODE.family()[name].choose(2), method="rk4", dt=0.5, compile="inductor")
    counts = []
    for _ in range(3):
        block(torch.ones(4, 2)).sum().backward()
        counts.append(len(traced))
    assert counts == [counts[0]] * 3 != [0] * 3


def test_values_of_tensors_are_no_part_of_a_fingerprint():
    net = nn.Linear(2, 2)
    before = fingerprint([net.forward])
    with torch.no_grad():
        net.weight.add_(1)
    assert fingerprint([net.forward]) == before
    net.weight.requires_grad_(False)
    assert fingerprint([net.forward]) != before


def test_objects_that_hold_one_another_come_to_an_end():
    first, second = types.SimpleNamespace(), types.SimpleNamespace()
    first.other, second.other, first.net = second, first, nn.Linear(2, 2)

    def function(x):
        return first.net(x)

    assert any(value is first.net.weight for value in held_by(function))
    assert fingerprint([function]) == fingerprint([function])


@pytest.fixture
def settings(monkeypatch):
    """A module of the user's, with a number, a list and a function that reads a global of the module."""
    module = types.ModuleType("settings_of_a_user")
    module.rate, module.rates, module.unrelated = 1.0, [1.0], 0
    exec("factor = 1.0\ndef scaled(x):\n    return factor * x", vars(module))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def reads_a_module(settings):
    return lambda t, x, theta: -settings.rate * settings.rates[0] * settings.scaled(x)


def imports_a_module(settings):
    def dynamics(t, x, theta):
        import settings_of_a_user  # pyright: ignore[reportMissingImports]

        return -settings_of_a_user.rate * settings_of_a_user.rates[0] * settings_of_a_user.scaled(x)

    return dynamics


def has_a_module(settings):
    class Reads:
        source = functions = None

        def __call__(self, t, x, theta):
            return -self.source.rate * self.functions[0][0] * self.functions[1](x)

    reads = Reads()
    reads.source, reads.functions = settings, (settings.rates, settings.scaled)
    return reads


@pytest.mark.parametrize("make", [reads_a_module, imports_a_module, has_a_module])
@pytest.mark.parametrize("change", ["rate", "rates", "factor"])
def test_numbers_in_a_module_of_the_user_are_followed(settings, make, change):
    dynamics, x0 = make(settings), torch.ones(2, 1, dtype=DOUBLE)

    def end(compile):
        return ncode.solve(dynamics, x0, 0.0, 1.0, compile=compile).x

    close(end(True), end(False))
    before = fingerprint([dynamics])
    setattr(settings, change, [5.0] if change == "rates" else 5.0)
    if make is not has_a_module or change != "rates":  # it holds the old list
        assert fingerprint([dynamics]) != before
    close(end(True), end(False))


def test_what_a_function_does_not_name_in_a_module_does_not_count(settings):
    dynamics = reads_a_module(settings)
    before = fingerprint([dynamics])
    settings.unrelated = 1
    assert fingerprint([dynamics]) == before


class Link:
    def __init__(self, after):
        self.after, self.rate = after, 1.0


def test_numbers_far_away_are_followed():
    long, last = [0.0] * 5000, Link(None)
    chain = last
    for _ in range(3000):
        chain = Link(chain)

    def dynamics(t, x, theta):
        return -long[4000] * x + chain.rate * x

    before = fingerprint([dynamics])
    assert fingerprint([dynamics]) == before
    long[4000] = 1.0
    after = fingerprint([dynamics])
    assert after != before
    last.rate = 2.0
    assert fingerprint([dynamics]) != after


def test_dynamics_that_lead_to_too_much_are_not_compiled():
    lot = [Link(None) for _ in range(30_000)]
    with pytest.raises(InputError, match="more than 20000 objects, by way of a value of type list"):
        ncode.solve(lambda t, x, theta: -lot[0].rate * x, torch.ones(2, 1), 0.0, 1.0, compile=True)
