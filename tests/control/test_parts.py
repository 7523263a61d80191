import pytest
import torch
from torch import nn

import ncode
from ncode.control import Feedback, Parts


def trunk():
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh())


def test_some_parts_are_driven_and_others_are_constant():
    f = ncode.dynamics.MLP(2, hidden=4, context=2)
    controller = Parts(
        {
            "context": ncode.DataControl(),
            ("weight_1", "bias_1"): ncode.OpenLoop(trunk()),
            "weight_2": ncode.ClosedLoop(Feedback(trunk())),
        },
        rest=ncode.TimeVarying("polynomial", 2),
    )
    block = ncode.NCODE(f, controller, rtol=1e-6).double()
    x = torch.randn(4, 2, dtype=torch.float64)
    sol = block.solve(x, save_at=torch.tensor([0.0, 0.5, 1.0]))
    first, _, last = ({k: v[:, i] for k, v in sol.thetas.items()} for i in range(3))
    assert {k: tuple(v.shape) for k, v in last.items()} == {k: (4, *s) for k, s in f.control_shapes.items()}
    moved = {name for name in first if not torch.allclose(first[name], last[name])}
    assert moved == {"weight_2", "bias_2"}
    assert torch.equal(last["context"], x)
    sol.x.square().sum().backward()
    assert all(p.grad is not None for p in block.parameters())


def test_a_sample_s_result_does_not_depend_on_its_companions():
    f = ncode.dynamics.MLP(2, hidden=4, context=2)
    controller = Parts({"context": ncode.DataControl()}, rest=ncode.ClosedLoop(Feedback(trunk())))
    block = ncode.NCODE(f, controller, rtol=1e-6).double()
    x = torch.randn(9, 2, dtype=torch.float64) * torch.logspace(-2, 2, 9, dtype=torch.float64)[:, None]
    alone = torch.cat([block(x[i : i + 1]) for i in range(9)])
    torch.testing.assert_close(block(x), alone, atol=1e-9, rtol=1e-9)


def test_parts_are_as_good_as_one_controller():
    x = torch.randn(4, 2)
    block = ncode.NCODE(ncode.dynamics.Linear(2), Parts({"weight": ncode.Static()}))
    plain = ncode.NCODE(ncode.dynamics.Linear(2), ncode.Static())
    plain.controller.theta["weight"].data.copy_(block.controller.controllers[0].theta["weight"])
    torch.testing.assert_close(block(x), plain(x))
    assert block.solve(x).stats.nfe.tolist() == [0] * 4  # still solved exactly


@pytest.mark.parametrize(
    ("parts", "rest", "message"),
    [
        ({"wieght 1": ncode.Static()}, ncode.Static(), 'did you mean "weight_1"'),
        ({"weight_1": ncode.Static()}, None, "sets no 'bias_1'"),
        ({"weight_1": 3}, None, "a controller for each part"),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts, rest, message):
    with pytest.raises(ncode.InputError, match=message):
        ncode.NCODE(ncode.dynamics.MLP(2), Parts(parts, rest))


def test_a_rest_without_a_control_is_refused():
    with pytest.raises(ncode.InputError, match="nothing to control"):
        ncode.NCODE(ncode.dynamics.Linear(2), Parts({"weight": ncode.Static()}, ncode.Static()))


def test_one_controller_cannot_be_in_two_places():
    static = ncode.Static()
    with pytest.raises(ncode.InputError, match="two places"):
        Parts({"weight_1": static, "bias_1": static})
