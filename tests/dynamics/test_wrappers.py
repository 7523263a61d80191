import math

import pytest
import torch

import ncode


def test_zeros_stand_behind_the_data():
    f = ncode.dynamics.Augmented(ncode.dynamics.MLP(5), zeros=3)
    lifted = f.lift(torch.ones(2, 2))
    assert torch.equal(lifted, torch.tensor([[1.0, 1, 0, 0, 0]] * 2))
    image = ncode.dynamics.Augmented(ncode.dynamics.ConvBlock(4, filters=2), zeros=1).lift(torch.ones(2, 3, 5, 6))
    assert image.shape == (2, 4, 5, 6)
    assert not image[:, 3].any()


def test_an_augmented_linear_flow_is_still_solved_exactly():
    f = ncode.dynamics.Augmented(ncode.dynamics.Linear(3), zeros=1)
    assert isinstance(f.structure, ncode.dynamics.Product)
    sol = ncode.NCODE(f).solve(torch.randn(2, 2))
    assert sol.stats.nfe.tolist() == [0, 0]


def test_second_order_dynamics_swing_as_a_pendulum_does():
    fall = ncode.dynamics.Function(lambda t, state, theta: -state[:, :1])
    for velocity, x in (("zero", torch.tensor([[1.0]])), (None, torch.tensor([[1.0, 0.0]]))):
        block = ncode.NCODE(ncode.dynamics.SecondOrder(fall, velocity=velocity), t1=math.pi, rtol=1e-6)
        torch.testing.assert_close(block(x), torch.tensor([[-1.0, 0.0]]), atol=1e-4, rtol=0)


def test_the_initial_velocity_may_be_learned():
    speed = torch.nn.Linear(2, 2)
    block = ncode.NCODE(ncode.dynamics.SecondOrder(ncode.dynamics.MLP(4, out=2), velocity=speed))
    block(torch.randn(3, 2)).sum().backward()
    assert speed.weight.grad is not None


def test_wrappers_may_be_nested():
    inner = ncode.dynamics.SecondOrder(ncode.dynamics.MLP(6, out=3), velocity="zero")
    assert ncode.NCODE(ncode.dynamics.Augmented(inner, zeros=1))(torch.ones(2, 2)).shape == (2, 6)


def test_a_function_with_one_control_is_given_a_tensor_and_with_several_a_dict():
    seen = []

    def f(t, x, theta):
        seen.append(theta)
        return torch.zeros_like(x)

    ncode.NCODE(ncode.dynamics.Function(f, (2, 3)))(torch.ones(4, 1))
    assert seen[-1].shape == (4, 2, 3)
    ncode.NCODE(ncode.dynamics.Function(f, {"a": (2,), "b": ()}))(torch.ones(4, 1))
    assert {name: tuple(value.shape) for name, value in seen[-1].items()} == {"a": (4, 2), "b": (4,)}
    ncode.NCODE(ncode.dynamics.Function(f))(torch.ones(4, 1))
    assert seen[-1] == {}


def test_a_module_may_be_the_function_and_its_parameters_are_found():
    class Field(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)

        def forward(self, t, x, theta):
            return self.linear(x) + theta

    block = ncode.NCODE(ncode.dynamics.Function(Field(), (2,)))
    block(torch.ones(3, 2)).sum().backward()
    assert len(list(block.parameters())) == 3
    assert all(p.grad is not None for p in block.parameters())


@pytest.mark.parametrize("shape", [3, {"a": 3}, {"a": (0,)}, (2.5,)])
def test_a_shape_that_is_none_is_refused(shape):
    with pytest.raises(ncode.InputError, match="tuple of sizes"):
        ncode.dynamics.Function(lambda t, x, theta: x, shape)


@pytest.mark.parametrize("wrap", [ncode.dynamics.SecondOrder, lambda f: ncode.dynamics.Augmented(f, 2)])
def test_a_plain_function_must_be_wrapped_first(wrap):
    with pytest.raises(ncode.InputError, match=r"ncode\.dynamics\.Function"):
        wrap(lambda t, x, theta: x)
