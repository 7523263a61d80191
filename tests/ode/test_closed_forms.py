import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

import ncode
from ncode.ode import METHODS

from .systems import ADAPTIVE, DOUBLE, close, double

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
high_order = pytest.mark.parametrize("method", ["dopri5", "tsit5", "dopri8"])


@pytest.mark.parametrize("method", ADAPTIVE)
def test_the_open_loop_of_proposition_1_reaches_x0_times_one_minus_t(method):
    x0 = double(-1.0, 0.5, 2.0)
    sol = ncode.solve(lambda t, x, theta: theta, x0, 0.0, 3.0, theta=-x0, method=method)
    # The slope is constant, so every method is exact whatever the tolerance.
    close(sol.x, x0 * (1 - 3.0))


@high_order
def test_the_closed_loop_of_proposition_1_is_x0_cos_t(method):
    x0 = double(-1.0, 0.5, 2.0)
    ts = torch.linspace(0, 2 * math.pi, 17, dtype=DOUBLE)
    sol = ncode.solve(
        lambda t, x, theta: theta,
        x0,
        0.0,
        2 * math.pi,
        theta=torch.zeros_like(x0),
        feedback=lambda t, x, theta: -x,
        save_at=ts,
        method=method,
        **TIGHT,
    )
    close(sol.xs[..., 0], x0 * ts.cos(), atol=1e-8)
    close(sol.thetas[..., 0], -x0 * ts.sin(), atol=1e-8)
    close(sol.x, x0, atol=1e-8)
    close(sol.theta, torch.zeros_like(x0), atol=1e-8)


@high_order
def test_linear_dynamics_follow_the_matrix_exponential(method):
    theta = torch.randn(4, 3, 3, dtype=DOUBLE)
    x0 = torch.randn(4, 3, dtype=DOUBLE)
    sol = ncode.solve(
        lambda t, x, theta: (theta @ x[:, :, None])[:, :, 0], x0, 0.0, 1.5, theta=theta, method=method, **TIGHT
    )
    close(sol.x, (torch.matrix_exp(1.5 * theta) @ x0[:, :, None])[:, :, 0], rtol=1e-7, atol=1e-8)


@pytest.mark.slow
@high_order
def test_the_van_der_pol_oscillator_agrees_with_scipy(method):
    mu = 5.0
    x0 = torch.tensor([[2.0, 0.0], [0.5, -1.0]], dtype=DOUBLE)
    ts = torch.linspace(0.5, 12.0, 24, dtype=DOUBLE)

    def field(t, x, theta):
        return torch.stack([x[:, 1], mu * (1 - x[:, 0] ** 2) * x[:, 1] - x[:, 0]], 1)

    def reference(start):
        def scalar(t, y):
            return [y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]]

        return solve_ivp(scalar, (0, 12), start.numpy(), method="DOP853", rtol=1e-13, atol=1e-13, t_eval=ts.numpy()).y.T

    sol = ncode.solve(field, x0, 0.0, 12.0, save_at=ts, method=method, rtol=1e-9, atol=1e-9)
    close(sol.xs, torch.from_numpy(np.stack([reference(start) for start in x0])), rtol=0, atol=2e-5)


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float32, 1e-4), (torch.float64, 1e-8)])
def test_single_and_double_precision_keep_their_dtype_and_their_digits(dtype, digits):
    x0 = torch.tensor([[1.0], [2.0]], dtype=dtype)
    seen = set()

    def field(t, x, theta):
        seen.update((t.dtype, x.dtype))
        return -t[:, None] * x

    sol = ncode.solve(
        field,
        x0,
        0.0,
        2.0,
        save_at=[1.0],
        dense=True,
        cost=lambda t, x, theta: x[:, 0],
        rtol=digits / 10,
        atol=digits / 10,
    )
    assert seen == {dtype}
    assert {sol.x.dtype, sol.xs.dtype, sol.cost.dtype, sol(0.5).dtype} == {dtype}
    close(sol.x, x0 * math.exp(-2), rtol=digits, atol=digits)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_solve_backward_in_time_undoes_one_forward(method):
    def field(t, x, theta):
        return torch.sin(x) + t[:, None]

    x0 = double(0.3, 1.0, -2.0)
    fixed = None if METHODS[method].order > 2 else 1e-3
    options = {"method": method, "dt": fixed or (0.01 if method == "rk4" else None), "rtol": 1e-9, "atol": 1e-9}
    there = ncode.solve(field, x0, -0.5, 1.0, **options)
    back = ncode.solve(field, there.x, 1.0, -0.5, **options)
    close(back.x, x0, rtol=0, atol=1e-2 if method == "euler" else 1e-5)
    assert not torch.allclose(there.x, x0, atol=0.1)


def test_time_is_told_to_each_sample_as_its_own():
    t0 = torch.tensor([0.0, 1.0, -2.0], dtype=DOUBLE)
    t1 = torch.tensor([1.0, 4.0, -3.0], dtype=DOUBLE)
    x0 = double(1.0, 1.0, 1.0)
    sol = ncode.solve(lambda t, x, theta: 2 * t[:, None] + 0 * x, x0, t0, t1)
    close(sol.x[:, 0], 1 + t1**2 - t0**2)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (2, 1, 4, 3)])
def test_a_state_may_have_any_shape(shape):
    x0 = torch.randn(3, *shape, dtype=DOUBLE)
    sol = ncode.solve(lambda t, x, theta: -x, x0, 0.0, 1.0, save_at=[0.25, 1.0], dense=True, **TIGHT)
    close(sol.x, x0 * math.exp(-1), rtol=1e-8)
    close(sol.xs, torch.stack([x0 * math.exp(-0.25), x0 * math.exp(-1)], 1), rtol=1e-8)
    close(sol(0.25), x0 * math.exp(-0.25), rtol=1e-8)


def test_a_control_may_be_nested_as_one_likes():
    x0 = double(1.0, 2.0)
    theta = {"rate": (x0, [2 * x0]), "unused": {"deep": torch.ones(2, 4, dtype=DOUBLE)}}
    seen = []

    def field(t, x, theta):
        seen.append(theta)
        return -theta["rate"][0] * theta["rate"][1][0] * x

    sol = ncode.solve(field, x0, 0.0, 0.5, theta=theta, save_at=[0.1, 0.2, 0.5], **TIGHT)
    close(sol.x, x0 * (-(x0**2)).exp(), rtol=1e-8)
    assert all(isinstance(given["rate"], tuple) and isinstance(given["rate"][1], list) for given in seen)
    assert sol.theta is theta
    assert sol.thetas["unused"]["deep"].shape == (2, 3, 4)
    close(sol.thetas["rate"][0], x0[:, None].expand(2, 3, 1))


def test_feedback_drives_every_leaf_of_a_nested_control():
    x0 = double(1.0, -2.0)
    theta = {"a": torch.zeros(2, 1, dtype=DOUBLE), "b": (torch.ones(2, 1, dtype=DOUBLE),)}

    def feedback(t, x, theta):
        return {"b": (-theta["b"][0],), "a": -x}  # the order in which a dict is written down has no meaning

    sol = ncode.solve(
        lambda t, x, theta: theta["a"], x0, 0.0, 1.0, theta=theta, feedback=feedback, save_at=[1.0], **TIGHT
    )
    close(sol.x, x0 * math.cos(1), rtol=1e-7)
    close(sol.theta["a"], -x0 * math.sin(1), rtol=1e-7)
    close(sol.theta["b"][0], torch.full_like(x0, math.exp(-1)), rtol=1e-7)
    close(sol.thetas["b"][0][:, 0], sol.theta["b"][0])


def test_without_a_control_the_dynamics_are_given_none():
    given = []

    def field(t, x, theta):
        given.append(theta)
        return -x

    sol = ncode.solve(field, double(1.0), 0.0, 1.0, save_at=[0.5])
    assert set(given) == {None}
    assert sol.theta is None
    assert sol.thetas is None


@pytest.mark.parametrize("method", METHODS)
def test_dense_output_passes_through_the_saved_values(method):
    x0 = double(0.5, 1.5, 3.0)
    ts = torch.linspace(0.0, 2.0, 41, dtype=DOUBLE)
    dt = None if METHODS[method].adaptive else 0.1
    sol = ncode.solve(
        lambda t, x, theta: x.cos() - t[:, None], x0, 0.0, 2.0, save_at=ts, dense=True, method=method, dt=dt
    )
    close(sol(ts), sol.xs)
    close(sol(2.0), sol.x)
    close(sol(0.0), x0)


def test_dense_output_takes_one_time_or_many_or_a_sample_s_own():
    x0 = double(1.0, 2.0)
    sol = ncode.solve(lambda t, x, theta: -x, x0, 0.0, 1.0, dense=True, **TIGHT)
    own = torch.tensor([[0.1, 0.9, 0.3], [0.2, 0.2, 1.0]], dtype=DOUBLE)  # in any order
    close(sol(own)[..., 0], x0 * (-own).exp(), rtol=1e-7)
    close(sol(own[0])[1, :, 0], 2 * (-own[0]).exp(), rtol=1e-7)
    close(sol(torch.tensor(0.5)), sol(0.5))
    assert sol(0.5).shape == (2, 1)


def test_dense_output_follows_samples_with_times_of_their_own_in_both_directions():
    t0 = torch.tensor([0.0, 2.0, 1.0], dtype=DOUBLE)
    t1 = torch.tensor([1.0, 0.0, 1.0], dtype=DOUBLE)
    x0 = double(1.0, 1.0, 7.0)
    sol = ncode.solve(lambda t, x, theta: -x, x0, t0, t1, dense=True, **TIGHT)
    places = torch.linspace(0, 1, 9, dtype=DOUBLE)
    ts = t0[:, None] + (t1 - t0)[:, None] * places
    close(sol(ts)[..., 0], x0 * (t0[:, None] - ts).exp(), rtol=1e-7)


def test_saved_times_may_repeat_and_include_both_ends():
    x0 = double(1.0, 2.0)
    sol = ncode.solve(lambda t, x, theta: -x, x0, 0.0, 1.0, save_at=[0.0, 0.0, 0.5, 0.5, 1.0, 1.0], **TIGHT)
    close(sol.xs[:, 0], x0)
    close(sol.xs[:, 1], x0)
    close(sol.xs[:, 2], sol.xs[:, 3])
    close(sol.xs[:, 5], sol.x)
    close(sol.xs[..., 0], x0 * (-sol.ts).exp(), rtol=1e-7)


def test_saved_times_are_returned_for_every_sample():
    sol = ncode.solve(lambda t, x, theta: -x, double(1.0, 2.0), 0.0, 1.0, save_at=[0.25, 0.5])
    close(sol.ts, torch.tensor([[0.25, 0.5]] * 2, dtype=DOUBLE))


@pytest.mark.slow
@pytest.mark.parametrize("t0", [0.0, 1e3, 12345.6, -1e5])
@pytest.mark.parametrize("dt", [0.1, 0.01, 1 / 3, 0.001])
def test_fixed_steps_end_exactly_at_t1_wherever_time_begins(t0, dt):
    t1 = t0 + 1.0
    save_at = torch.tensor([t1], dtype=DOUBLE)
    sol = ncode.solve(lambda t, x, theta: -x, double(1.0), t0, t1, dt=dt, method="heun", save_at=save_at)
    assert sol.t.item() == t1
    close(sol.xs[:, -1], sol.x)
    assert sol.stats.steps.item() == math.ceil(1 / dt - 1e-6)


@pytest.mark.parametrize("gradient", ["discrete", "autograd", "adjoint"])
def test_an_interval_far_shorter_than_a_fixed_step_is_one_step(gradient):
    sol = ncode.solve(lambda t, x, theta: -x, double(1.0), 0.0, 1e-30, dt=1.0, method="rk4", gradient=gradient)
    assert sol.stats.steps.item() == 1
    close(sol.x, double(1.0))


def test_a_fixed_step_longer_than_the_interval_is_cut_to_it():
    sol = ncode.solve(lambda t, x, theta: torch.ones_like(x), double(0.0), 0.0, 0.25, dt=1.0, method="euler")
    assert sol.stats.steps.item() == 1
    close(sol.x, double(0.25))


def test_a_last_fixed_step_is_shortened_to_reach_t1():
    seen = []

    def field(t, x, theta):
        seen.append(t.item())
        return -x

    ncode.solve(field, double(1.0), 0.0, 1.0, dt=0.4, method="euler")
    assert sorted(set(seen)) == pytest.approx([0.0, 0.4, 0.8])


@pytest.mark.parametrize("gradient", ["discrete", "autograd", "adjoint"])
@pytest.mark.parametrize("dt", [None, 0.1])
def test_a_solve_of_no_length_returns_x0(gradient, dt):
    x0 = double(1.0, 2.0).requires_grad_()
    theta = torch.ones_like(x0)
    sol = ncode.solve(
        lambda t, x, theta: -x,
        x0,
        0.5,
        0.5,
        theta=theta,
        feedback=lambda t, x, theta: -x,
        cost=lambda t, x, theta: x[:, 0],
        save_at=[0.5, 0.5],
        gradient=gradient,
        dt=dt,
    )
    close(sol.x, x0)
    close(sol.theta, theta)
    close(sol.cost, torch.zeros(2, dtype=DOUBLE))
    close(sol.xs, x0[:, None].expand(2, 2, 1))
    assert sol.stats.steps.tolist() == [0, 0]
    (grad,) = torch.autograd.grad(sol.x.sum() + sol.xs.sum(), x0)
    close(grad, torch.full_like(x0, 3.0))


def test_a_solve_of_no_length_can_be_called():
    sol = ncode.solve(lambda t, x, theta: -x, double(1.0, 2.0), 0.5, 0.5, dense=True)
    close(sol(0.5), double(1.0, 2.0))


def test_the_result_is_no_view_of_the_input():
    x0 = double(1.0)
    for gradient in ("discrete", "autograd"):
        for dt in (None, 0.1):
            sol = ncode.solve(lambda t, x, theta: -x, x0, 0.0, 0.0, dt=dt, gradient=gradient)
            sol.x.mul_(5)
            assert x0.item() == 1.0


@pytest.mark.parametrize("safety", [0.5, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("tolerance", [1e-3, 1e-5])
def test_whatever_the_margin_of_safety_few_steps_are_refused(safety, tolerance):
    # Of many ends some are a little farther than the last step should be long.
    ends, x0 = torch.linspace(0.5, 5.0, 1000, dtype=DOUBLE), double(*[0.5] * 1000)
    pid = ncode.PID(safety=safety)
    sol = ncode.solve(lambda t, x, theta: x.cos(), x0, 0.0, ends, rtol=tolerance, atol=tolerance, step_rule=pid)
    assert (sol.stats.rejected <= sol.stats.steps).all()


@given(span=st.floats(0.5, 20.0))
def test_no_solve_ends_with_a_sliver(span):
    times: list[float] = []

    def field(t, x, theta):
        times.append(float(t[0].detach()))
        return -0.2 * x

    sol = ncode.solve(field, double(1.0), 0.0, span, rtol=1e-6, atol=1e-6)
    # dopri5 looks at the end of a step twice.
    ends = [0.0, *(now for now, after in pairwise(times) if now == after > 0)]
    steps = [after - now for now, after in pairwise(ends)]
    assert len(steps) == int(sol.stats.steps)
    assert len(steps) == 1 or steps[-1] > 0.09 * steps[-2]
