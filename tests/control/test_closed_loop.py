import math

import pytest
import torch
from torch import nn

import ncode
from ncode.control import Drift, Feedback

from ..differences import assert_gradients_agree


def trunk(seen, width=8):
    return nn.Sequential(nn.Linear(seen, width), nn.Tanh())


def oscillator(**more):
    """The closed loop of Proposition 1: x(t) = x(0) cos t."""
    f = ncode.dynamics.Function(lambda t, x, theta: theta["v"], {"v": (1,)})
    return ncode.NCODE(f, ncode.ClosedLoop(lambda t, x, theta: {"v": -x}, initial="zero"), **more)


def test_the_control_is_driven_by_the_state():
    x = torch.tensor([[1.0], [-2.0]], dtype=torch.float64)
    ts = torch.linspace(0, math.pi, 5, dtype=torch.float64)
    sol = oscillator(t1=math.pi, rtol=1e-9, atol=1e-12).solve(x, save_at=ts)
    torch.testing.assert_close(sol.xs, x[:, None] * torch.cos(ts)[:, None], atol=1e-7, rtol=0)
    torch.testing.assert_close(sol.thetas["v"], -x[:, None] * torch.sin(ts)[:, None], atol=1e-7, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("sees", [("x",), ("x", "theta"), ("t", "x", "theta"), ("t",)])
@pytest.mark.parametrize("gradient", ["discrete", "adjoint", "autograd"])
def test_gradients_reach_feedback_and_initial_control(sees, gradient):
    f = ncode.dynamics.MLP(2, hidden=1)
    size = {"x": 2, "theta": 7, "t": 1}
    feedback = Feedback(trunk(sum(size[name] for name in sees), 2), sees=sees, scale=1.0)
    loop = ncode.ClosedLoop(feedback)
    block = ncode.NCODE(f, loop, rtol=1e-10, atol=1e-12, method="dopri8", gradient=gradient).double()
    assert_gradients_agree(block, torch.randn(2, 2, dtype=torch.float64))


def test_feedback_starts_small_and_without_a_drift_of_its_own():
    block = ncode.NCODE(ncode.dynamics.MLP(2), ncode.ClosedLoop(Feedback(trunk(2), scale=0.1)))
    sol = block.solve(torch.randn(50, 2), save_at=torch.tensor([0.0, 1.0]))
    before, after = sol.thetas["weight_1"].detach().unbind(1)
    moved = (after - before).square().mean().sqrt()
    assert 0 < moved < 0.2 * before.square().mean().sqrt()


def test_the_initial_control_may_be_an_open_loop():
    loop = ncode.ClosedLoop(Feedback(trunk(2)), initial=ncode.OpenLoop(trunk(2)))
    block = ncode.NCODE(ncode.dynamics.MLP(2), loop)
    block(torch.randn(4, 2)).square().sum().backward()
    assert all(p.grad is not None for p in block.parameters())
    theta = block.solve(torch.randn(4, 2), save_at=torch.tensor([0.0])).thetas["weight_1"]
    assert not torch.allclose(theta[0], theta[1])


def test_a_drift_is_blind_to_the_state():
    block = ncode.NCODE(
        ncode.dynamics.MLP(2),
        ncode.ClosedLoop(Drift(lambda t, theta: {k: -v for k, v in theta.items()})),
        rtol=1e-7,
    )
    theta = block.solve(torch.randn(4, 2)).theta["weight_1"]
    start = block.controller.initial.theta["weight_1"]
    torch.testing.assert_close(theta, (math.exp(-1) * start).expand_as(theta), rtol=1e-4, atol=1e-6)


def test_theta_carries_over_from_one_solve_to_the_next():
    block = oscillator(rtol=1e-9, atol=1e-12)
    x = torch.tensor([[1.0]], dtype=torch.float64)
    half = block.solve(x, t1=0.7)
    whole = block.solve(half.x, theta=half.theta, t0=0.7, t1=1.5)
    torch.testing.assert_close(whole.x, x * math.cos(1.5), atol=1e-7, rtol=0)


def test_feedback_that_omits_a_control_is_refused():
    f = ncode.dynamics.Function(lambda t, x, theta: theta["a"] + theta["b"], {"a": (1,), "b": (1,)})
    block = ncode.NCODE(f, ncode.ClosedLoop(lambda t, x, theta: {"a": x}))
    with pytest.raises(ncode.InputError, match=r"returned \['a'\]; expected .* \['a', 'b'\]"):
        block(torch.ones(2, 1))


@pytest.mark.parametrize("initial", ["lerned", 3, ncode.Hebbian()])
def test_an_initial_control_that_is_not_constant_is_refused(initial):
    with pytest.raises(ncode.InputError):
        ncode.ClosedLoop(lambda t, x, theta: theta, initial=initial)
