import pytest
import torch
from torch import nn

import ncode
from ncode.control import Controller, Feedback


def attraction(**shapes):
    return ncode.dynamics.Function(lambda t, x, theta: theta["goal"] - x, shapes or {"goal": (2,)})


class Mean(Controller):
    def initial_theta(self, context):
        return context.mean(0).expand_as(context)


class Scaled(Controller):
    """A shared parameter per control, whose size depends on a constructor argument."""

    def __init__(self, size, names=("goal",)):
        super().__init__()
        self.size, self.names = size, names

    def build(self, shapes, defaults):
        self.weights = nn.ParameterDict({name: self.size * value for name, value in defaults.items()})

    def initial_theta(self, context):
        return dict(self.weights.items())


class Rotating(Mean):
    def speed(self, t, x, theta):
        return theta["goal"].flip(1) * torch.tensor([-1.0, 1.0], dtype=x.dtype)


def test_a_controller_of_ones_own_needs_one_method():
    x = torch.randn(4, 2)
    sol = ncode.NCODE(attraction(), Mean(), t1=30.0).solve(x, save_at=torch.tensor([0.0, 30.0]))
    torch.testing.assert_close(sol.x, x.mean(0).expand(4, 2), atol=1e-2, rtol=0)
    torch.testing.assert_close(sol.thetas["goal"][:, 0], sol.thetas["goal"][:, 1])


def test_a_speed_makes_the_control_part_of_the_integration():
    x = torch.randn(3, 2, dtype=torch.float64)
    sol = ncode.NCODE(attraction(), Rotating(), t1=torch.pi, rtol=1e-9, atol=1e-9).solve(x)
    torch.testing.assert_close(sol.theta["goal"], -x.mean(0).expand(3, 2), atol=1e-6, rtol=0)


def test_a_control_without_a_batch_dimension_is_shared_and_its_gradient_summed():
    block = ncode.NCODE(attraction(), Scaled(2.0), rtol=1e-7)
    x = torch.randn(2, 2)  # as many samples as elements
    assert block.solve(x).theta["goal"].shape == (2, 2)
    block(x).sum().backward()
    torch.testing.assert_close(block.controller.weights["goal"].grad, torch.full((2,), 2 * (1 - torch.e**-1)))


def test_arguments_are_found_by_their_names():
    assert Scaled(2.0).config() == {"size": 2.0, "names": ("goal",)}
    assert "size=2.0" in repr(Scaled(2.0))
    assert Mean().config() == {}


def test_an_argument_that_is_not_kept_is_named():
    class Forgetful(Mean):
        def __init__(self, size):
            super().__init__()

    with pytest.raises(ncode.InputError, match=r"argument 'size' of Forgetful: .* keep it as self\.size"):
        Forgetful(1).config()
    assert repr(Forgetful(1)) == "Forgetful()"


def test_a_control_that_is_missing_is_named():
    shapes = {"goal": (2,), "other": (2,)}
    block = ncode.NCODE(attraction(**shapes), Mean())
    with pytest.raises(ncode.InputError, match=r"Mean\.initial_theta returned Tensor; expected .*\['goal', 'other'\]"):
        block(torch.ones(3, 2))


@pytest.mark.parametrize("name", ["my goal", "a.b", "3x3"])
def test_control_names_are_identifiers(name):
    f = ncode.dynamics.Function(lambda t, x, theta: x, {name: (2,)})
    with pytest.raises(ncode.InputError, match="must be an identifier"):
        ncode.NCODE(f)


@pytest.mark.parametrize("module", [nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2))])
def test_a_network_of_x_is_not_a_feedback(module):
    with pytest.raises(ncode.InputError, match=r"function of \(t, x, theta\); .* takes \(input.*Feedback\(trunk\)"):
        ncode.ClosedLoop(module)
    ncode.ClosedLoop(Feedback(module))


def test_a_controller_works_only_as_part_of_a_block():
    with pytest.raises(ncode.InputError, match="this Mean is not part of a block yet"):
        Mean().start(torch.ones(1, 2))
