import torch

import ncode


def as_module(theta):
    """The same network as a plain module."""
    net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)).double()
    weights = [theta[name] for name in ("weight_1", "bias_1", "weight_2", "bias_2")]
    for parameter, weight in zip(net.parameters(), weights, strict=True):
        parameter.data.copy_(weight)
    return net


def test_a_static_control_is_a_plain_node_values_and_gradients():
    block = ncode.NCODE(ncode.dynamics.MLP(2), ncode.Static(), rtol=1e-6).double()
    net = as_module(block.controller.theta)
    x = torch.randn(5, 2, dtype=torch.float64)
    plain = ncode.solve(lambda t, x, theta: net(x), x, 0.0, 1.0, rtol=1e-6)
    ours = block(x)
    torch.testing.assert_close(ours, plain.x)
    ours.square().sum().backward()
    plain.x.square().sum().backward()
    for mine, theirs in zip(block.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_dynamics_that_need_a_batch_dimension_get_a_view_and_the_same_gradients():
    f = ncode.dynamics.MLP(2)
    wrapped = ncode.dynamics.Function(f.forward, f.control_shapes)
    shared, spread = ncode.NCODE(f, rtol=1e-6).double(), ncode.NCODE(wrapped, rtol=1e-6).double()
    spread.load_state_dict(shared.state_dict())
    x = torch.randn(5, 2, dtype=torch.float64)
    for block in (shared, spread):
        block(x).square().sum().backward()
    for mine, theirs in zip(shared.parameters(), spread.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    theta = spread.solve(x).theta["weight_1"]
    assert theta.shape == (5, 16, 2)
    assert theta.stride(0) == 0


def test_the_number_of_parameters_does_not_depend_on_the_batch():
    block = ncode.NCODE(ncode.dynamics.Linear(3))
    assert [tuple(p.shape) for p in block.parameters()] == [(3, 3)]


def test_dynamics_without_a_control_need_no_controller():
    block = ncode.NCODE(ncode.dynamics.MLP(2, controlled=()))
    assert block.solve(torch.ones(3, 2)).theta == {}


def test_zero_is_a_control_of_zeros():
    block = ncode.NCODE(ncode.dynamics.MLP(2), ncode.control.Zero())
    x = torch.randn(3, 2)
    assert torch.equal(block(x), x)
    assert not list(block.parameters())
