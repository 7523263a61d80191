"""Times far from 0, such as epoch milliseconds: the solver counts them from t[0]."""

import math

import pytest
import torch

import ncode
from ncode.compat import torchcde
from ncode.compat import torchdiffeq as ours

from .systems import ADAPTIVE, DOUBLE, double

NOW = 1.7e12  # milliseconds; neighbouring doubles are 2.4e-4 apart


def decay(t, y):
    return -y


@pytest.mark.parametrize("method", [*ADAPTIVE, "tsit5"])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("backward", [False, True])
def test_a_late_start_changes_no_value_and_no_gradient(method, dtype, backward):
    results = []
    for begin in (0.0, NOW):
        y0 = torch.ones(2, 1, dtype=dtype, requires_grad=True)
        t = begin + double(0.0, 0.25, 1.0) * (-1 if backward else 1)
        y = ours.odeint(decay, y0, t, method=method, rtol=1e-6, atol=1e-8)
        results.append((y, *torch.autograd.grad(y.sum(), y0)))
    torch.testing.assert_close(*results, rtol=0, atol=1e-6 if dtype == torch.float32 else 1e-14)


@pytest.mark.parametrize("interface", [ours.odeint, ours.odeint_adjoint])
def test_the_gradient_of_late_times_is_that_of_early_ones(interface):
    results = []
    for begin in (0.0, NOW):
        t = (begin + double(0.0, 0.25, 1.0)).requires_grad_()
        y = interface(decay, torch.ones(1, dtype=DOUBLE), t)
        results.append(torch.autograd.grad(y.square().sum(), t)[0])
    torch.testing.assert_close(*results, rtol=0, atol=1e-6)


def test_late_events_and_dense_output_are_right():
    y0 = torch.ones(1, dtype=DOUBLE)
    when, _ = ours.odeint_event(decay, y0, torch.tensor(NOW, dtype=DOUBLE), event_fn=lambda t, y: y - 0.5)
    assert float(when) - NOW == pytest.approx(math.log(2), abs=5e-4)
    y = ours.odeint_dense(decay, y0, torch.tensor(NOW, dtype=DOUBLE), torch.tensor(NOW + 1, dtype=DOUBLE))
    assert float(y(NOW + 0.5)) == pytest.approx(math.exp(-0.5), abs=1e-6)


def test_jumps_at_times_that_are_no_sums_of_binary_fractions_are_seen_from_both_sides():
    def func(t, y):
        return torch.where(t < 0.3, 1.0, -1.0) + 0 * y

    for begin in (0.1, -0.7, 0.0):
        y = ours.odeint(func, torch.zeros(1, dtype=DOUBLE), double(begin, 1.0), options={"jump_t": [0.3]})
        assert float(y[-1]) == pytest.approx(0.3 - begin - 0.7, abs=1e-12)


REFUSED = {
    "doubles at tight tolerances": (double(0, 1) + NOW, DOUBLE, {}, "about 0.00038 in torch.float64.*loosen rtol"),
    "doubles that are nearly equal": (double(0, 0.01) + NOW, DOUBLE, {"rtol": 1e-3}, "let time start at 0"),
    "single precision": (double(0, 60) + 1.7e9, torch.float32, {}, "in torch.float32.*y0 of 64 bits"),
    "fixed steps": (double(0, 60) + 1.7e9, torch.float32, {"method": "rk4"}, "too much for an interval"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("interface", [ours.odeint, ours.odeint_adjoint])
def test_a_func_that_uses_times_which_it_cannot_tell_apart_is_refused_as(case, interface):
    t, dtype, options, sentence = REFUSED[case]
    with pytest.raises(ncode.InputError, match=sentence):
        interface(lambda t, y: -y * torch.cos(t), torch.ones(1, dtype=dtype), t, **options)
    interface(decay, torch.ones(1, dtype=dtype), t, **options)


def test_short_intervals_in_single_precision_are_solved_as_in_torchdiffeq():
    y = ours.odeint(lambda t, y: -y * torch.cos(t / 100), torch.ones(1), torch.tensor([100.0, 100.01]))
    assert float(y[-1]) == pytest.approx(math.exp(-0.01 * math.cos(1)), abs=1e-6)


# --- torchcde


def solve_cde(begin, dtype=DOUBLE, spline=True, tuple_state=False, func=None, **options):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 10, 3, dtype=dtype, generator=generator)
    weight = torch.randn(4, 12, dtype=dtype, generator=generator)
    z0 = torch.randn(2, 4, dtype=dtype, generator=generator)
    t = torch.arange(10, dtype=DOUBLE) + begin
    if spline:
        X = torchcde.CubicSpline(torchcde.natural_cubic_coeffs(x, t - begin), t)
    else:
        X = torchcde.LinearInterpolation(torchcde.linear_interpolation_coeffs(x, t - begin), t)

    def field(t, z):
        return (z @ weight).tanh().view(2, 4, 3)

    func = func or field
    if tuple_state:
        pair = torchcde.TupleControl(X, X)
        return torchcde.cdeint(pair, lambda t, z: (func(t, z[0]), func(t, z[1])), (z0, -z0), t, **options)[1]
    return torchcde.cdeint(X, func, z0, t, **options)


@pytest.mark.parametrize("method", ["dopri5", "rk4"])
@pytest.mark.parametrize("spline", [True, False], ids=["cubic", "linear"])
@pytest.mark.parametrize("tuple_state", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_a_late_path_has_the_solution_of_an_early_one(method, spline, tuple_state, dtype):
    early, late = (
        solve_cde(begin, dtype, spline, tuple_state, method=method, rtol=1e-6, atol=1e-8) for begin in (0.0, NOW)
    )
    torch.testing.assert_close(late, early, rtol=0, atol=1e-5 if dtype == torch.float32 else 1e-12)


def test_a_func_of_a_late_path_is_told_the_users_times():
    seen = []

    def func(t, z):
        seen.append(float(t))
        return z.tanh()[..., None] * torch.ones(3, dtype=DOUBLE)

    solve_cde(1e12, func=func)
    assert 1e12 <= min(seen) < max(seen) <= 1e12 + 12


def test_a_late_path_whose_func_uses_times_that_it_cannot_tell_apart_is_refused():
    def func(t, z):
        return (z * torch.cos(t)).tanh()[..., None] * torch.ones(3, dtype=DOUBLE)

    with pytest.raises(ncode.InputError, match="func uses t"):
        solve_cde(NOW, func=func, rtol=1e-8, atol=1e-8)
