import pytest
import torch

import ncode


def test_dynamics_of_ones_own_need_one_method():
    class Decay(ncode.dynamics.Dynamics):
        def forward(self, t, x, theta):
            assert theta == {}
            return -x

    x = torch.randn(3, 2, 4)
    torch.testing.assert_close(ncode.NCODE(Decay(), rtol=1e-6)(x), x / torch.e, atol=1e-4, rtol=1e-4)
    assert Decay().config() == {}


def test_dynamics_with_a_control_name_its_shape():
    class Attraction(ncode.dynamics.Dynamics):
        control_shapes = {"goal": (2,)}  # noqa: RUF012
        state_shape = (2,)

        def __init__(self, rate):
            super().__init__()
            self.rate = rate

        def forward(self, t, x, theta):
            assert theta["goal"].shape == x.shape
            return self.rate * (theta["goal"] - x)

    block = ncode.NCODE(Attraction(2.0), t1=20.0)
    goal = block.controller.theta["goal"]
    torch.testing.assert_close(block(torch.zeros(3, 2)), goal.expand(3, 2), atol=1e-3, rtol=0)
    assert block.dynamics.config() == {"rate": 2.0}
    with pytest.raises(ncode.InputError):
        block(torch.zeros(3, 5))


def test_a_function_of_other_arguments_is_refused():
    with pytest.raises(ncode.InputError, match=r"f must be a function of \(t, x, theta\); Linear takes \(input"):
        ncode.dynamics.Function(torch.nn.Linear(2, 2))
