import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import ncode

from ..differences import assert_gradients_agree


def trunk(seen=2, width=32):
    return nn.Sequential(nn.Linear(seen, width), nn.Tanh())


def test_the_block_makes_one_head_per_control():
    f = ncode.dynamics.MLP(2, hidden=16)
    controller = ncode.OpenLoop(trunk())
    ncode.NCODE(f, controller)
    sizes = {name: (head.in_features, head.out_features) for name, head in controller.heads.items()}
    assert sizes == {"weight_1": (32, 32), "bias_1": (32, 16), "weight_2": (32, 32), "bias_2": (32, 2)}


@given(scale=st.floats(0.01, 1.0), seed=st.integers(0, 20))
def test_heads_start_near_a_static_weight_with_a_fraction_that_depends_on_the_data(scale, seed):
    torch.manual_seed(seed)
    f = ncode.dynamics.MLP(50, hidden=200)
    block = ncode.NCODE(f, ncode.OpenLoop(nn.Identity(), width=64, scale=scale))
    features = torch.randn(100, 64)
    theta = block.controller.start(features).fixed["weight_1"].detach()
    usual = 50**-0.5 / 3**0.5  # the standard deviation of torch's initialisation
    constant, depends = theta.mean(0), theta - theta.mean(0)
    assert constant.std().item() == pytest.approx(usual, rel=0.1)
    assert depends.std().item() == pytest.approx(scale * usual, rel=0.2)


def test_with_scale_zero_it_begins_as_a_plain_node():
    block = ncode.NCODE(ncode.dynamics.MLP(2), ncode.OpenLoop(trunk(), scale=0.0))
    theta = block.solve(torch.randn(5, 2)).theta["weight_1"]
    torch.testing.assert_close(theta, theta[:1].expand_as(theta))
    block(torch.randn(5, 2)).square().sum().backward()
    assert block.controller.heads["weight_1"].weight.grad.abs().sum() > 0


@pytest.mark.slow
def test_gradients_agree_with_finite_differences():
    f = ncode.dynamics.MLP(2, hidden=2)
    block = ncode.NCODE(f, ncode.OpenLoop(trunk(2, 3), scale=1.0), rtol=1e-10, atol=1e-12).double()
    assert_gradients_agree(block, torch.randn(3, 2, dtype=torch.float64))


def test_gamma_may_see_something_else_than_the_state():
    block = ncode.NCODE(ncode.dynamics.SparseLinear(4, 2), ncode.OpenLoop(trunk(7)), t1=10.0)
    start, image = torch.randn(4), torch.randn(3, 7, requires_grad=True)
    block(start.expand(3, 4), context=image).sum().backward()
    assert image.grad is not None


def test_the_width_is_by_default_that_of_the_last_linear_layer():
    convolutional = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    with pytest.raises(ncode.InputError, match=r"width=\.\.\."):
        ncode.OpenLoop(convolutional)
    block = ncode.NCODE(ncode.dynamics.ConvBlock(3, filters=2), ncode.OpenLoop(convolutional, width=16))
    assert block(torch.randn(2, 3, 8, 8)).shape == (2, 3, 8, 8)


def test_a_trunk_of_another_width_is_refused():
    block = ncode.NCODE(ncode.dynamics.MLP(2), ncode.OpenLoop(trunk(), width=5))
    with pytest.raises(ncode.InputError, match=r"returned \(3, 32\); expected \(3, 5\)"):
        block(torch.ones(3, 2))


def test_a_controller_belongs_to_one_block():
    controller = ncode.OpenLoop(trunk())
    ncode.NCODE(ncode.dynamics.MLP(2), controller)
    with pytest.raises(ncode.InputError, match="give each block a controller of its own"):
        ncode.NCODE(ncode.dynamics.MLP(2), controller)


def test_dynamics_without_a_control_cannot_be_controlled():
    with pytest.raises(ncode.InputError, match="nothing to control"):
        ncode.NCODE(ncode.dynamics.MLP(2, controlled=()), ncode.OpenLoop(trunk()))


@pytest.mark.parametrize("wrong", [{"trunk": 3}, {"trunk": trunk(), "scale": -1.0}, {"trunk": trunk(), "width": 0}])
def test_arguments_that_make_no_gamma_are_refused(wrong):
    with pytest.raises(ncode.InputError):
        ncode.OpenLoop(**wrong)
