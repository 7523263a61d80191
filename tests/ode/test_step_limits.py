"""`min_dt` and `max_dt`: limits of the steps that are chosen by their error."""

import math

import pytest
import torch

import ncode
from ncode import InputError, Status

from .systems import ADAPTIVE, DOUBLE, GRADIENTS, close, decay, double, explode

every_gradient = pytest.mark.parametrize("gradient", GRADIENTS)


def lengths(sol):
    """The lengths of the accepted steps of each sample, one after another."""
    steps = (sol.dense.ends - sol.dense.begins).abs()
    return [row[row > 0] for row in steps]


@pytest.mark.parametrize("method", ADAPTIVE)
@pytest.mark.parametrize("span", [1.0, -1.0])
@pytest.mark.parametrize("step", ["sample", "batch"])
def test_no_step_is_longer_than_max_dt(method, span, step):
    options = {"method": method, "step": step, "dense": True, "rtol": 0.1, "atol": 0.1}
    sol = ncode.solve(decay, double(1.0, 5.0), 0.0, span, max_dt=0.15, **options)
    assert sol.ok.all()
    for steps in lengths(sol):
        assert steps.max() <= 0.15 * (1 + 1e-8)
        close(steps.sum().item(), 1.0)
    free = ncode.solve(decay, double(1.0, 5.0), 0.0, span, **options)
    assert max(steps.max() for steps in lengths(free)) > 0.2


@every_gradient
def test_max_dt_finds_a_pulse_that_long_steps_jump_over(gradient):
    def pulse(t, x, theta):
        return theta * torch.exp(-(((t - 6.0) / 0.05) ** 2))[:, None]

    def run(**options):
        theta = double(1.0, 2.0).requires_grad_()
        sol = ncode.solve(
            pulse, torch.zeros(2, 1, dtype=DOUBLE), 0.0, 10.0, theta=theta, gradient=gradient, rtol=1e-8, **options
        )
        (grad,) = torch.autograd.grad(sol.x.sum(), theta)
        return sol.x.detach(), grad

    area = 0.05 * math.sqrt(math.pi)
    missed, _ = run()
    x, grad = run(max_dt=0.1)
    assert missed.abs().max() < 1e-6
    close(x, area * double(1.0, 2.0), rtol=1e-5)
    close(grad, torch.full_like(x, area), rtol=1e-4)


@pytest.mark.parametrize("compile", [False, True], ids=["eager", "traced"])
@pytest.mark.parametrize("span", [2.0, -2.0])
def test_a_sample_that_needs_a_step_below_min_dt_fails_and_the_others_go_on(compile, span, traced):
    x0 = double(0.1, 2.0) * math.copysign(1.0, span)  # the second blows up at 1 / x0
    sol = ncode.solve(explode, x0, 0.0, span, min_dt=1e-3, throw=False, compile=compile)
    assert sol.status == (Status.OK, Status.MIN_DT)
    assert "min_dt" in sol.status[1].sentence
    assert abs(sol.t[1].item()) == pytest.approx(0.5, abs=0.05)
    close(sol.x[0], x0[0] / (1 - x0[0] * span), rtol=1e-3)
    assert sol.x[1].isnan().all()


def test_steps_between_start_and_end_are_not_shorter_than_min_dt():
    sol = ncode.solve(decay, double(1.0), 0.0, 5.0, min_dt=0.3, dense=True)
    (steps,) = lengths(sol)
    assert (steps[:-1] >= 0.3 * (1 - 1e-9)).all()
    assert len(steps) >= 3
    tight = ncode.solve(decay, double(1.0), 0.0, 1.0, min_dt=0.3, rtol=1e-9, atol=1e-9, throw=False)
    assert tight.status == (Status.MIN_DT,)


def test_an_interval_shorter_than_min_dt_is_one_step():
    sol = ncode.solve(decay, double(1.0), 0.0, 1e-3, min_dt=0.5)
    assert sol.stats.steps.tolist() == [1]
    close(sol.x.item(), math.exp(-1e-3))


def test_with_a_shared_step_a_sample_fails_only_for_its_own_error():
    x0 = double(0.1, 2.0)
    sol = ncode.solve(explode, x0, 0.0, 2.0, min_dt=1e-3, throw=False, step="batch")
    assert sol.status == (Status.OK, Status.MIN_DT)
    close(sol.x[0], x0[0] / (1 - x0[0] * 2.0), rtol=1e-3)


def test_a_dynamics_that_is_not_finite_is_named_before_min_dt():
    sol = ncode.solve(lambda t, x, theta: (0.5 - t[:, None]).log(), double(1.0), 0.0, 1.0, min_dt=1e-2, throw=False)
    assert sol.status == (Status.NOT_FINITE,)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dt": 0.1, "max_dt": 0.2}, "dt fixes the step size"),
        ({"dt": 0.1, "min_dt": 0.2}, "dt fixes the step size"),
        ({"min_dt": 0.2, "max_dt": 0.1}, "min_dt = 0.2 is larger than max_dt = 0.1"),
        ({"max_dt": 0.0}, "max_dt must be above 0"),
        ({"min_dt": -1.0}, "min_dt must be above 0"),
        ({"max_dt": math.nan}, "max_dt must be a finite number"),
    ],
)
def test_bad_limits_are_refused(options, text):
    with pytest.raises(InputError, match=text):
        ncode.solve(decay, double(1.0), 0.0, 1.0, **options)


def test_a_block_keeps_its_limits(tmp_path):
    block = ncode.NCODE(ncode.dynamics.MLP(2, hidden=4), max_dt=0.125, min_dt=1e-6)
    block.save_pretrained(tmp_path)
    again = ncode.NCODE.from_pretrained(tmp_path)
    assert again.settings.options == block.settings.options
    assert again.solve(torch.zeros(1, 2)).stats.steps.item() >= 8
