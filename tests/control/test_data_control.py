import pytest
import torch

import ncode


def test_dynamics_see_the_initial_value_and_the_state():
    seen = []

    def f(t, x, theta):
        seen.append((x, theta))
        return x + theta

    x = torch.randn(3, 2)
    ncode.NCODE(ncode.dynamics.Function(f, (2,)), ncode.DataControl(), method="rk4", dt=0.25)(x)
    assert all(torch.equal(theta, x) for _, theta in seen)
    assert not torch.equal(seen[-1][0], x)


def test_the_gradient_with_respect_to_the_initial_value_is_kept():
    f = ncode.dynamics.Function(lambda t, x, theta: theta, (1,))
    x = torch.tensor([[3.0]], dtype=torch.float64, requires_grad=True)
    ncode.NCODE(f, ncode.DataControl())(x).backward()  # x(1) = x(0) + x(0)
    torch.testing.assert_close(x.grad, torch.full_like(x, 2.0))


def test_gradients_agree_with_finite_differences():
    f = ncode.dynamics.MLP(2, hidden=3, controlled=(), context=2)
    block = ncode.NCODE(f, ncode.DataControl(), rtol=1e-9, atol=1e-11).double()
    assert torch.autograd.gradcheck(block, torch.randn(3, 2, dtype=torch.float64, requires_grad=True), atol=1e-6)


def test_dynamics_with_more_controls_are_refused_with_advice():
    with pytest.raises(ncode.InputError, match="Parts"):
        ncode.NCODE(ncode.dynamics.MLP(2, context=2), ncode.DataControl())


def test_a_context_of_another_size_does_not_fit():
    block = ncode.NCODE(ncode.dynamics.MLP(2, controlled=(), context=3), ncode.DataControl())
    with pytest.raises(ncode.InputError, match=r"take   'context' \(4, 3\)\n.*gave 'context' \(4, 2\)"):
        block(torch.ones(4, 2))
