import math

import pytest
import torch

import ncode

from ..differences import assert_gradients_agree

DOUBLE = torch.float64


def test_the_coupling_grows_with_the_product_of_both_ends():
    still = ncode.dynamics.Function(lambda t, x, theta: torch.zeros_like(x), {"w": (3, 3)})
    block = ncode.NCODE(still, ncode.Hebbian(), t1=2.0).double()
    x = torch.randn(4, 3, dtype=DOUBLE)
    theta = block.solve(x).theta["w"]
    hebb = block.controller
    expected = hebb.theta + 2.0 * hebb.mu * torch.einsum("bi,bj->bij", x, x)
    torch.testing.assert_close(theta, expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("decay", [0.5, "learned"])
def test_without_activity_the_coupling_decays(decay):
    still = ncode.dynamics.Function(lambda t, x, theta: torch.zeros_like(x), {"w": (2, 2)})
    block = ncode.NCODE(still, ncode.Hebbian(scale=1.0, decay=decay), t1=2.0, rtol=1e-8).double()
    theta = block.solve(torch.zeros(1, 2, dtype=DOUBLE)).theta["w"][0]
    rate = 0.01 if decay == "learned" else decay
    torch.testing.assert_close(theta, math.exp(-2.0 * rate) * block.controller.theta, rtol=1e-5, atol=1e-8)
    theta.sum().backward()
    assert (block.controller.log_decay is not None) == (decay == "learned")
    if decay == "learned":
        assert block.controller.log_decay.grad != 0


@pytest.mark.slow
def test_gradients_agree_with_finite_differences():
    controller = ncode.Hebbian(scale=0.5, decay="learned")
    block = ncode.NCODE(ncode.dynamics.Recurrent(3), controller, rtol=1e-10, atol=1e-12).double()
    assert_gradients_agree(block, torch.randn(2, 3, dtype=DOUBLE))


@pytest.mark.parametrize("shapes", [{"w": (2, 3)}, {"w": (2,)}, {"w": (2, 2), "b": (2,)}])
def test_hebbian_wants_one_square_matrix(shapes):
    f = ncode.dynamics.Function(lambda t, x, theta: x, shapes)
    with pytest.raises(ncode.InputError, match="one square matrix"):
        ncode.NCODE(f, ncode.Hebbian())


def test_a_misspelt_decay_is_refused():
    with pytest.raises(ncode.InputError, match='"learned"'):
        ncode.Hebbian(decay="lerned")
