"""What torchdiffeq takes silently, or fails at without a sentence: functions that work in place, lists, odd norms."""

import pytest
import torch
from torch import nn

import ncode
from ncode.compat.torchdiffeq import odeint, odeint_adjoint, odeint_event

T = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)
METHODS = ("dopri5", "bosh3", "rk4", "euler", "radauIIA3")
MODES = (torch.no_grad, torch.enable_grad, torch.inference_mode)
IN_PLACE = {
    "the slope is y itself": lambda t, y: y.mul_(-1),
    "a ReLU": lambda t, y: nn.functional.relu(y, inplace=True) - 1,
    "a view": lambda t, y: y[:1].zero_() - y,
    "the time": lambda t, y: -y * t.add_(1),
}


def ones():
    return torch.ones(3, 2, dtype=torch.float64)


@pytest.mark.parametrize("name", IN_PLACE)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("mode", MODES)
def test_a_function_that_works_in_place_is_refused_and_y0_stays(name, method, mode):
    y0 = -ones()
    with mode(), pytest.raises(ncode.InputError, match="in place"):
        odeint(IN_PLACE[name], y0, T, method=method)
    assert torch.equal(y0, -ones())


def test_a_change_in_place_while_training_is_refused_with_a_sentence():
    y0 = ones().requires_grad_()
    with pytest.raises(ncode.InputError, match="in place"):
        odeint(lambda t, y: y.mul_(-1), y0, T)
    with pytest.raises(ncode.InputError, match="in place"):
        odeint_adjoint(lambda t, y: y.mul_(-1), y0, T)


def test_tensors_of_a_tuple_that_are_changed_are_noticed():
    with pytest.raises(ncode.InputError, match="in place"):
        odeint(lambda t, y: (y[0].neg_(), -y[1]), (ones(), ones()), T)


@pytest.mark.parametrize("method", ["dopri5", "bosh3", "rk4", "midpoint"])
def test_an_output_that_is_written_again_is_refused(method):
    buffer = ones()
    with torch.no_grad(), pytest.raises(ncode.InputError, match="had returned before"):
        odeint(lambda t, y: torch.mul(y, -1, out=buffer), ones(), T, method=method)


def test_one_evaluation_per_step_may_write_its_output_again():
    buffer = ones()
    with torch.no_grad():
        y = odeint(lambda t, y: torch.mul(y, -1, out=buffer), ones(), T, method="euler")
    torch.testing.assert_close(y[-1], 0.25 * ones())


def test_a_missing_event_is_the_error_that_torchdiffeq_raises():
    arguments = {"event_fn": lambda t, y: y + 1}
    y0, t = torch.ones(1), torch.tensor([0.0, 1.0])
    for solve in (odeint, odeint_adjoint):
        with pytest.raises(AssertionError, match="no event"):
            solve(lambda t, y: -y, y0, t, options={"max_num_steps": 20}, **arguments)
    with pytest.raises(AssertionError, match="no event"):
        odeint_event(lambda t, y: -y, y0, t[0], options={"max_num_steps": 20}, **arguments)
    with pytest.raises(RuntimeError, match="no event"):
        odeint(lambda t, y: -y, y0, t, method="euler", options={"step_size": 0.1}, **arguments)


@pytest.mark.parametrize("jumps", [[0.25, 0.75], (0.75, 0.25), torch.tensor([0.25, 0.75])])
def test_times_to_land_on_may_be_a_list(jumps):
    """y' = 1 before the first jump, 3 between, 1 after: exact where steps end at the jumps."""
    seen = []

    def field(t, y):
        seen.append(float(t))
        return torch.where((t > 0.25) & (t < 0.75), 3.0, 1.0).expand_as(y)

    y = odeint(field, torch.zeros(1, dtype=torch.float64), T, options={"jump_t": jumps})
    torch.testing.assert_close(y[-1, 0].item(), 2.0)
    assert len(seen) < 60


@pytest.mark.parametrize("jumps", ["soon", [[0.5]], [float("nan")], [0.5, None]])
def test_other_times_to_land_on_get_a_sentence(jumps):
    with pytest.raises(ncode.InputError, match="must be times"):
        odeint(lambda t, y: -y, ones(), T, options={"jump_t": jumps})


@pytest.mark.parametrize("norm", [lambda y: y.abs(), lambda y: None, lambda y: "one"])
def test_a_norm_that_returns_no_number_gets_a_sentence(norm):
    with pytest.raises(ncode.InputError, match="must return one number"):
        odeint(lambda t, y: -y, ones(), T, options={"norm": norm})
