"""`Plastic`: its three rules, its parameters, and what it refuses."""

import pytest
import torch

import ncode
from ncode import InputError
from ncode.control import Plastic
from ncode.dynamics import Function, Recurrent

from ..differences import assert_gradients_agree

DOUBLE = torch.float64
every_rule = pytest.mark.parametrize("rule", ["hebb", "oja", "delta"])


def still(n):
    return Function(lambda t, x, theta: torch.zeros_like(x), {"w": (n, n)})


def network(rule, n=4, dynamics=None, **more):
    controller = Plastic(rule, scale=0.3, **more)
    return ncode.NCODE(dynamics or Recurrent(n), controller, t1=0.5, method="rk4", dt=0.25).double()


@every_rule
def test_dtheta_is_mu_times_the_rule_less_the_decay(rule):
    block = network(rule, decay=0.2)
    x, theta = torch.randn(3, 4, dtype=DOUBLE), torch.randn(3, 4, 4, dtype=DOUBLE)
    speed = block.controller.speed(torch.zeros(3), x, {"weight": theta})
    for one, matrix, got in zip(x, theta, speed, strict=True):
        rule_of_x = {
            "hebb": torch.outer(one, one),
            "oja": torch.outer(one, one - matrix.T @ one),
            "delta": torch.outer(one - matrix @ one, one),
        }[rule]
        torch.testing.assert_close(got, block.controller.mu * rule_of_x - 0.2 * matrix)


def test_the_delta_rule_stops_where_theta_x_is_x():
    block = ncode.NCODE(still(3), Plastic("delta", strength=3.0, scale=0.0), t1=20.0, rtol=1e-8, atol=1e-10).double()
    x = torch.randn(2, 3, dtype=DOUBLE)
    theta = block.solve(x).theta["w"]
    torch.testing.assert_close((theta @ x[..., None])[..., 0], x, rtol=1e-5, atol=1e-6)


@every_rule
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("learned", [False, True])
def test_the_closed_form_is_the_generic_solver(rule, shared, learned):
    f = Recurrent(4, gain=1.7, leak=0.4, learned=learned)
    block = network(rule, dynamics=f, strength=0.8, hold=-0.5, decay="learned", shared=shared)
    stimuli, results = torch.randn(2, 3, 4, dtype=DOUBLE, requires_grad=True), []
    for exact in (True, False):
        shown = block.episode(stimuli, durations=[0.5, 0.3, 1.0], exact=exact)
        loss = shown.xs.sin().sum() + shown.theta()["weight"].cos().sum()
        results.append((shown.xs, shown.theta()["weight"], *torch.autograd.grad(loss, [stimuli, *block.parameters()])))
    for fast, generic in zip(*results, strict=True):
        torch.testing.assert_close(fast, generic, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@every_rule
def test_gradients_agree_with_finite_differences(rule):
    block = ncode.NCODE(
        Recurrent(3, gain=2.0, leak=0.5, learned=True), Plastic(rule, scale=0.3), rtol=1e-10, atol=1e-12
    )
    assert_gradients_agree(block.double(), torch.randn(2, 3, dtype=DOUBLE))


def test_held_elements_do_not_move_and_the_others_do():
    stimuli = torch.randn(2, 3, 4, dtype=DOUBLE)
    held = torch.rand(2, 3, 4) < 0.5
    shown = network("delta").episode(stimuli, held=held)
    assert torch.equal(shown.xs == stimuli, held)


def test_shared_numbers_make_all_neurons_alike():
    controller = network("delta", n=5, shared=True, strength=2.0, hold=-1.0).controller
    assert controller.mu.shape == controller.theta.shape == (2,)
    torch.testing.assert_close(controller.motion.mu, torch.full((5, 5), 0.4, dtype=DOUBLE))
    torch.testing.assert_close(controller.initial_theta(torch.zeros(1, 5)), -torch.eye(5, dtype=DOUBLE))


def test_a_new_order_of_the_neurons_changes_nothing_for_shared_numbers():
    block, stimuli, order = network("oja", shared=True), torch.randn(2, 3, 4, dtype=DOUBLE), torch.randperm(4)
    torch.testing.assert_close(block.episode(stimuli[..., order]).x, block.episode(stimuli).x[..., order])


def test_hebbian_is_hebbs_rule_from_random_numbers():
    torch.manual_seed(0)
    hebbian = ncode.NCODE(Recurrent(6), ncode.Hebbian(0.1)).controller
    torch.manual_seed(0)
    plastic = ncode.NCODE(Recurrent(6), Plastic("hebb", strength=0.0, scale=0.1)).controller
    assert hebbian.rule == "hebb"
    assert torch.equal(hebbian.mu, plastic.mu)
    assert torch.equal(hebbian.theta, plastic.theta)


@every_rule
def test_it_is_saved_and_loaded(rule, tmp_path):
    f = Recurrent(4, gain=2.0, leak=0.5, learned=True)
    block = ncode.NCODE(f, Plastic(rule, shared=True, decay="learned"), t1=0.5, method="rk4", dt=0.5)
    block.save_pretrained(tmp_path)
    stimuli = torch.randn(1, 2, 4)
    assert torch.equal(ncode.from_pretrained(tmp_path).episode(stimuli).x, block.episode(stimuli).x)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rule": "detla"}, 'did you mean "delta"'),
        ({"strength": "1"}, "strength"),
        ({"hold": float("nan")}, "hold"),
        ({"shared": 1}, "shared must be True or False"),
        ({"decay": "lerned"}, '"learned"'),
    ],
)
def test_bad_arguments_are_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        Plastic(**wrong)


@pytest.mark.parametrize("durations", [[0.5], 0.5, [0.5, 0.5, 0.0], [0.5, 0.5, "1"]])
@pytest.mark.parametrize("exact", [True, False])
def test_durations_are_one_positive_number_per_presentation(durations, exact):
    with pytest.raises(InputError, match="durations"):
        network("hebb").episode(torch.zeros(1, 3, 4, dtype=DOUBLE), durations=durations, exact=exact)


def test_the_generic_solver_cannot_hold_elements_and_says_so():
    stimuli = torch.zeros(1, 3, 4, dtype=DOUBLE)
    with pytest.raises(InputError, match="only a closed form can hold elements"):
        network("hebb").episode(stimuli, held=torch.zeros(1, 3, 4, dtype=torch.bool), exact=False)


def test_a_leaking_identity_is_not_taken_for_a_linear_flow():
    """Its closed form knows no leak: dx/dt = W x - x with W = 0 decays."""
    block = ncode.NCODE(Recurrent(2, "identity", leak=1.0), ncode.Static(), rtol=1e-8).double()
    end = block.solve(torch.ones(1, 2, dtype=DOUBLE), theta={"weight": torch.zeros(1, 2, 2, dtype=DOUBLE)}).x
    torch.testing.assert_close(end, torch.full((1, 2), -1.0, dtype=DOUBLE).exp(), rtol=1e-6, atol=1e-8)
