from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.autograd import gradcheck

import ncode

DOUBLE = torch.float64


def random_control(f, batch, dtype=torch.float32):
    return {name: torch.randn(batch, *shape, dtype=dtype) for name, shape in f.control_shapes.items()}


@given(batch=st.integers(1, 3), dim=st.integers(1, 4), hidden=st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_each_sample_has_its_own_network(batch, dim, hidden):
    f = ncode.dynamics.MLP(dim, hidden=tuple(hidden))
    x, theta = torch.randn(batch, dim), random_control(f, batch)
    y = f(torch.zeros(batch), x, theta)
    for b in range(batch):
        net, sizes = nn.Sequential(), (dim, *hidden, dim)
        for layer, (wide, high) in enumerate(pairwise(sizes), 1):
            linear = nn.Linear(wide, high)
            linear.weight.data, linear.bias.data = theta[f"weight_{layer}"][b], theta[f"bias_{layer}"][b]
            net.extend([linear, nn.Tanh()] if layer < len(sizes) - 1 else [linear])
        torch.testing.assert_close(y[b], net(x[b]))


NAMES = ("weight_1", "bias_1", "weight_2", "bias_2")


@given(st.sets(st.sampled_from(NAMES)))
def test_any_subset_may_be_controlled_and_the_rest_is_learned(controlled):
    f = ncode.dynamics.MLP(2, hidden=3, controlled=sorted(controlled))
    assert set(f.control_shapes) == controlled
    assert {name.removeprefix("weights.learned.") for name, _ in f.named_parameters()} == set(NAMES) - controlled
    whole = ncode.dynamics.MLP(2, hidden=3)
    x, t, theta = torch.randn(4, 2), torch.zeros(4), random_control(f, 4)
    own = {name: value.expand(4, *value.shape) for name, value in f.weights.learned.items()}
    torch.testing.assert_close(f(t, x, theta), whole(t, x, {**theta, **own}))


def test_time_and_context_are_seen_by_the_first_layer():
    f = ncode.dynamics.MLP(2, hidden=3, time=True, context=4, controlled=())
    assert dict(f.control_shapes) == {"context": (4,)}
    assert f.weights.learned["weight_1"].shape == (3, 2 + 4 + 1)
    x, context = torch.zeros(2, 2), {"context": torch.zeros(2, 4)}
    at = [f(torch.full((2,), t), x, context) for t in (0.0, 1.0)]
    assert not torch.allclose(at[0], at[1])
    assert not torch.allclose(at[0], f(torch.zeros(2), x, {"context": torch.ones(2, 4)}))


def test_gradients_reach_state_time_and_control():
    f = ncode.dynamics.MLP(2, hidden=3, time=True)
    names = list(f.control_shapes)
    theta = [v.requires_grad_() for v in random_control(f, 2, DOUBLE).values()]
    t, x = torch.rand(2, dtype=DOUBLE, requires_grad=True), torch.randn(2, 2, dtype=DOUBLE, requires_grad=True)
    assert gradcheck(lambda t, x, *theta: f(t, x, dict(zip(names, theta, strict=True))), (t, x, *theta))


def test_learned_weights_start_as_those_of_torch_do():
    f = ncode.dynamics.MLP(100, hidden=400, controlled=())
    ours = f.weights.learned
    theirs = nn.Linear(100, 400)
    assert ours["weight_1"].std().item() == pytest.approx(theirs.weight.std().item(), rel=0.02)
    assert ours["bias_1"].std().item() == pytest.approx(theirs.bias.std().item(), rel=0.15)


def test_a_misspelt_tensor_gets_the_nearest_right_one():
    with pytest.raises(ncode.InputError, match='did you mean "weight_1"'):
        ncode.dynamics.MLP(2, controlled=("weigth 1",))


def test_a_string_is_not_taken_for_a_tuple_of_letters():
    with pytest.raises(ncode.InputError, match=r"use \('weight_1',\)"):
        ncode.dynamics.MLP(2, controlled="weight_1")


@pytest.mark.parametrize("wrong", [{"dim": 0}, {"dim": 2, "hidden": 1.5}, {"dim": 2, "activation": "tanhh"}])
def test_arguments_that_make_no_network_are_refused(wrong):
    with pytest.raises(ncode.InputError):
        ncode.dynamics.MLP(**wrong)
