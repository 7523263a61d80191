"""Times: late ones, those that coincide with t0, and first steps of nothing."""

import math

import pytest
import torch

import ncode
from ncode import InputError, Status

from .systems import DOUBLE, GRADIENTS, close, decay, double

TIGHT = {"rtol": 1e-9, "atol": 1e-9}
LATE = (1.7e12, -1.7e12, 1e15)  # epoch milliseconds, and beyond


@pytest.mark.parametrize("t0", LATE)
@pytest.mark.parametrize("options", [TIGHT, {"method": "rk4", "dt": 1 / 16}, {"step": "batch", **TIGHT}])
@pytest.mark.parametrize("span", [1.0, -1.0])
def test_a_late_start_changes_nothing(t0, options, span):
    now, late = (
        ncode.solve(decay, double(1.0, 2.0), start, start + span, save_at=[start, start + span], dense=True, **options)
        for start in (0.0, t0)
    )
    assert torch.equal(now.x, late.x)
    assert torch.equal(now.xs, late.xs)
    assert torch.equal(now(0.0), late(t0))
    assert torch.equal(now.stats.steps, late.stats.steps)
    assert late.t.tolist() == [t0 + span] * 2


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_a_late_start_changes_no_gradient(gradient):
    def gradients(start):
        x0, t0 = double(1.0, 2.0).requires_grad_(), torch.full((2,), start, dtype=DOUBLE, requires_grad=True)
        t1 = (t0.detach() + 1).requires_grad_()
        sol = ncode.solve(decay, x0, t0, t1, gradient=gradient, **TIGHT)
        return torch.autograd.grad(sol.x.square().sum(), [x0, t0, t1])

    close(gradients(1e12), gradients(0.0))


@pytest.mark.parametrize("t0", [1e7, torch.tensor([1e7, 0.0])])
def test_times_that_single_precision_cannot_tell_apart_are_refused_where_dynamics_use_them(t0):
    x0 = torch.ones(2, 1)
    with pytest.raises(InputError, match="let time start at 0"):
        ncode.solve(lambda t, x, theta: t[:, None] - x, x0, t0, t0 + 1.0)
    assert ncode.solve(decay, x0, t0, t0 + 1.0).ok.all()
    assert ncode.solve(lambda t, x, theta: t[:, None] - x, x0.double(), t0, t0 + 1.0).ok.all()


def test_rounded_times_are_refused_where_the_tolerance_asks_for_more():
    x0, forced = torch.ones(2, 1), lambda t, x, theta: -x * (3 * t).cos()[:, None]
    exact = math.exp((math.sin(3e4) - math.sin(3e4 + 3)) / 3)
    with pytest.raises(InputError, match=r"at these tolerances.*loosen rtol"):
        ncode.solve(forced, x0, 1e4, 1e4 + 1.0, rtol=1e-6, atol=1e-6)
    assert abs(float(ncode.solve(forced, x0, 1e4, 1e4 + 1.0).x[0]) - exact) < 1e-2
    assert ncode.solve(forced, x0, 100.0, 101.0, rtol=1e-7, atol=1e-9).ok.all()
    assert ncode.solve(decay, x0, 1e4, 1e4 + 1.0, rtol=1e-6, atol=1e-6).ok.all()


def test_times_that_cannot_be_told_apart_are_refused_where_events_use_them():
    x0, event = double(1.0, 2.0), ncode.Event(lambda t, x, theta: t - 1e15 - 0.3)
    with pytest.raises(InputError, match="let time start at 0"):
        ncode.solve(decay, x0, 1e15, 1e15 + 1, events=event)
    sol = ncode.solve(decay, x0, 1e15, 1e15 + 1, events=ncode.Event(lambda t, x, theta: x[:, 0] - 0.6), **TIGHT)
    close(sol.x[0], double(0.6)[0])


# Times that coincide with t0: the solution there is x0 + (t - t0) f(t0, x0).


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("options", [TIGHT, {"method": "rk4", "dt": 0.01}])
@pytest.mark.parametrize("start", [0.0, 2.0])
def test_a_saved_time_at_t0_has_its_gradient(gradient, options, start):
    x0, t0 = double(1.0, 2.0).requires_grad_(), torch.tensor(start, dtype=DOUBLE, requires_grad=True)
    ts = (torch.tensor([0.0, 0.4, 1.0], dtype=DOUBLE) + start).requires_grad_()
    sol = ncode.solve(decay, x0, t0, start + 1.0, save_at=ts, gradient=gradient, **options)
    ours = torch.autograd.grad(sol.xs.square().sum(), [x0, t0, ts])
    exact = (x0[:, None] * torch.exp(-(ts - t0))[None, :, None]).square().sum()
    close(ours, torch.autograd.grad(exact, [x0, t0, ts]), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_an_interval_of_no_length_has_gradients_of_its_ends(gradient):
    x0 = double(1.0, 2.0).requires_grad_()
    t0, t1 = (torch.tensor(ends, dtype=DOUBLE, requires_grad=True) for ends in ([0.5, 0.0], [0.5, 1.0]))
    sol = ncode.solve(decay, x0, t0, t1, cost=lambda t, x, theta: 3 * x[:, 0], gradient=gradient, **TIGHT)
    ours = torch.autograd.grad(sol.x.sum() + sol.cost.sum(), [x0, t0, t1])
    end = x0 * torch.exp(-(t1 - t0))[:, None]
    exact = torch.autograd.grad(end.sum() + 3 * (x0 - end).sum(), [x0, t0, t1])
    close(ours, exact, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("gradient", ["discrete", "autograd"])
def test_dense_output_of_a_sample_that_stands_still_has_its_gradient(gradient):
    x0, t1 = torch.ones(3, 1, dtype=DOUBLE, requires_grad=True), torch.tensor([1.0, 0.0, 2.0], dtype=DOUBLE)
    sol = ncode.solve(decay, x0, 0.0, t1, dense=True, gradient=gradient, **TIGHT)
    (grad,) = torch.autograd.grad(sol(t1[:, None]).sum(), x0)
    close(grad[:, 0], torch.exp(-t1), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("method", ["dopri5", "heun", "dopri8"])
def test_an_element_that_starts_at_zero_without_absolute_tolerance_moves(dtype, method):
    x0 = torch.tensor([[0.0, 1.0]], dtype=dtype)
    sol = ncode.solve(lambda t, x, theta: torch.cos(t)[:, None].expand_as(x), x0, 0.0, 1.0, atol=0.0, method=method)
    assert sol.status == (Status.OK,)
    assert int(sol.stats.steps) < 60
    close(sol.x.double(), x0.double() + math.sin(1.0), rtol=1e-2, atol=0.0)


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_times_have_their_gradients_with_a_complex_control_of_one_number(gradient):
    x0, theta = (torch.tensor([0.3 + 0.2j, -0.5 + 1j], dtype=torch.complex128) for _ in range(2))
    t1 = torch.tensor([1.0, 1.5], dtype=DOUBLE, requires_grad=True)
    sol = ncode.solve(
        lambda t, x, theta: 1j * x - 0.2 * theta[:, None],
        x0[:, None],
        0.0,
        t1,
        theta=theta,
        feedback=lambda t, x, theta: 1j * theta,
        gradient=gradient,
        **TIGHT,
    )
    (ours,) = torch.autograd.grad(sol.theta.imag.sin().sum(), t1)
    (exact,) = torch.autograd.grad((theta * torch.exp(1j * t1)).imag.sin().sum(), t1)
    close(ours, exact, rtol=1e-6, atol=1e-8)
