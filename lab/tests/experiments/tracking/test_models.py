"""Models of words: their flows against the library's blocks, their sizes, and reading in parts."""

import math

import pytest
import torch
from ncode_lab.experiments.tracking.models import MODELS, FlowTracker, build_tracker
from torch import nn

import ncode
from ncode.dynamics import BlockLinear, Skew

FLOWS = [name for name in MODELS if "lstm" not in name]


def parameters(model):
    return sum(each.numel() for each in model.parameters())


@pytest.mark.parametrize("dynamics", [Skew(6), Skew(6, 3), BlockLinear(6, 6), BlockLinear(6, 2)])
def test_a_word_is_the_flow_of_a_block_along_a_piecewise_constant_path(dynamics):
    torch.manual_seed(0)
    model = FlowTracker(dynamics, 3, nn.Linear(6, 4))
    letters = torch.randint(3, (5, 7))
    control = lambda u: (u @ model.control.flatten(1)).unflatten(1, model.control.shape[1:])  # noqa: E731
    block = ncode.NCODE(dynamics, ncode.InputControl(control), t1=7.0).double()
    path = ncode.paths.constant(torch.eye(3, dtype=torch.float64)[letters])
    ts = torch.arange(1.0, 8.0, dtype=torch.float64)
    for exact in (True, False):
        sol = block.solve(model.start.expand(5, 6), path=path, save_at=ts, exact=exact, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(sol.xs, model.states(letters)[0], rtol=1e-6, atol=1e-6)


def test_a_diagonal_control_with_input_fades_towards_what_the_letters_add():
    model = FlowTracker(BlockLinear(5), 2, nn.Linear(5, 4), input=True, decay=True)
    rate = nn.functional.softplus(model.control[..., 0])
    letters = torch.tensor([[1, 0]])
    x = model.start
    for letter in (1, 0):
        x = (-rate[letter]).exp() * x + model.input[letter] * (1 - (-rate[letter]).exp()) / rate[letter]
    torch.testing.assert_close(model.states(letters)[1][0], x)
    assert bool((model.maps()[0] > 0).all())
    assert bool((model.maps()[0] < 1).all())


@pytest.mark.parametrize("name", ["skew", "skew-blocks", "skew-planes"])
def test_skew_control_keeps_the_norm_through_thousands_of_letters(name):
    model = build_tracker(name, 2, 7, states=12, block=3)
    states, last = model.states(torch.randint(2, (3, 5000)))
    norms = states.norm(dim=-1)
    torch.testing.assert_close(norms, model.start.norm().expand_as(norms), rtol=1e-11, atol=0)
    assert torch.equal(last, states[:, -1])


@pytest.mark.parametrize("name", MODELS)
def test_a_word_read_in_parts_is_the_word_read_at_once(name):
    model = build_tracker(name, 2, 7, states=12, block=3)
    letters = torch.randint(2, (4, 9))
    whole, _ = model.states(letters)
    first, carry = model.states(letters[:, :4])
    torch.testing.assert_close(torch.cat([first, model.states(letters[:, 4:], carry)[0]], 1), whole)


@pytest.mark.parametrize("elements", [2, 60, 120])
def test_rivals_have_at_least_as_many_parameters(elements):
    size = {name: parameters(build_tracker(name, 2, elements)) for name in MODELS}
    assert size["skew"] == 2 * math.comb(24, 2) + 24 + 25 * elements
    for rival in ("diagonal", "lstm"):
        assert size["skew"] <= size[rival] < 1.2 * size["skew"]
    assert min(size["diagonal-wide"], size["lstm-wide"]) > 10 * size["skew"]


@pytest.mark.parametrize("name", FLOWS)
def test_gradients_reach_all_parameters(name):
    model = build_tracker(name, 2, 7, states=12, block=3)
    model(torch.randint(2, (4, 9)))[1].square().sum().backward()
    assert all(each.grad is not None and bool((each.grad != 0).any()) for each in model.parameters())


def test_a_dense_control_starts_as_a_rotation():
    e, _ = build_tracker("dense", 2, 7, states=12).maps()
    torch.testing.assert_close(e @ e.mT, torch.eye(12).double().expand_as(e))
