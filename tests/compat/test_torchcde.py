"""The drop-in for torchcde, against closed forms, scipy and `ncode.paths`; torchcde itself is not needed."""

import math

import pytest
import torch
from scipy.interpolate import CubicSpline as ScipySpline
from torch import nn

import ncode
from ncode.compat import torchcde
from ncode.compat.torchcde import solver

DOUBLE, NAN = torch.float64, math.nan
COEFFICIENTS = {
    "linear": (torchcde.linear_interpolation_coeffs, torchcde.LinearInterpolation),
    "hermite": (torchcde.hermite_cubic_coefficients_with_backward_differences, torchcde.CubicSpline),
    "natural": (torchcde.natural_cubic_coeffs, torchcde.CubicSpline),
}


def data(*shape, missing=0.0, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(*shape, generator=g, dtype=DOUBLE)
    return torch.where(torch.rand(*shape, generator=g) < missing, NAN, x)


def times(count, seed=0):
    return torch.rand(count, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE).add(0.1).cumsum(0)


class Field(nn.Module):
    """f(t, z) of two layers, (..., hidden, channels)."""

    def __init__(self, hidden=3, channels=2):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(hidden, 8), nn.Tanh(), nn.Linear(8, hidden * channels)).double()
        self.shape, self.count = (hidden, channels), 0

    def forward(self, t, z):
        self.count += 1
        return self.layers(z).unflatten(-1, self.shape).tanh()


@pytest.mark.parametrize("kind", COEFFICIENTS)
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_an_interpolation_goes_through_the_data_and_has_its_derivative(kind, batch):
    make, interpolation = COEFFICIENTS[kind]
    x, t = data(*batch, 6, 2), times(6)
    path = interpolation(make(x, t), t)
    torch.testing.assert_close(path.evaluate(t), x)
    for at in (t[0] - 0.3, t[2] + 0.05, t[-1] + 0.2):  # also outside of the data
        assert path.evaluate(at).shape == (*batch, 2)
        slope = (path.evaluate(at + 1e-6) - path.evaluate(at - 1e-6)) / 2e-6
        torch.testing.assert_close(path.derivative(at), slope, atol=1e-7, rtol=1e-7)
        torch.testing.assert_close(path.derivative(at.clone().requires_grad_()), path.derivative(float(at)))
        assert torch.equal(path.derivative(at[None, None]), path.derivative(at)[..., None, None, :])
    assert torch.equal(path.interval, t[[0, -1]])
    assert path.grid_points is t


def test_a_natural_spline_is_that_of_scipy():
    x, t = data(7, 1), times(7)
    spline = torchcde.CubicSpline(torchcde.natural_cubic_coeffs(x, t), t)
    expected = ScipySpline(t.numpy(), x[:, 0].numpy(), bc_type="natural")
    at = torch.linspace(float(t[0]), float(t[-1]), 50, dtype=DOUBLE)
    torch.testing.assert_close(spline.evaluate(at)[:, 0], torch.tensor(expected(at.numpy())))
    torch.testing.assert_close(spline.derivative(at)[:, 0], torch.tensor(expected(at.numpy(), 1)))


def test_a_natural_spline_goes_through_the_observations_alone():
    x, t = data(4, 9, 2, missing=0.4), times(9)
    spline = torchcde.CubicSpline(torchcde.natural_cubic_coeffs(x, t), t)
    at = torch.linspace(float(t[0]), float(t[-1]), 40, dtype=DOUBLE)
    for sample in range(4):
        for channel in range(2):
            values = x[sample, :, channel].clone()
            there = values.isnan().logical_not().nonzero()[:, 0]
            values[: there[0]], values[there[-1] :] = values[there[0]].item(), values[there[-1]].item()
            keep = ~values.isnan()
            expected = ScipySpline(t[keep].numpy(), values[keep].numpy(), bc_type="natural")(at.numpy())
            torch.testing.assert_close(spline.evaluate(at)[sample, :, channel], torch.tensor(expected))


def test_a_channel_without_observations_is_zero():
    x = data(2, 5, 2)
    x[0, :, 1] = NAN
    for make, interpolation in COEFFICIENTS.values():
        assert not interpolation(make(x)).evaluate(torch.tensor(2.3))[0, 1].any()


def test_hermite_and_linear_coefficients_are_those_of_paths():
    x, t = data(3, 8, 2, missing=0.3), times(8)
    at = t[0] + 0.5
    for kind, make in (("linear", ncode.paths.linear), ("hermite", ncode.paths.hermite)):
        coefficients, interpolation = COEFFICIENTS[kind]
        path = make(x, t, torch.tensor([8, 8, 8]))
        found = interpolation(coefficients(x, t), t)
        torch.testing.assert_close(found.evaluate(at), path.evaluate(float(at)))
        torch.testing.assert_close(found.derivative(at), path.derivative(float(at)))


@pytest.mark.parametrize("channel", [0, 1])
def test_rectilinear_data_move_in_time_and_then_in_value(channel):
    x = torch.tensor([[0.1, 0.4], [0.2, NAN], [0.9, 1.1]])
    expected = torch.tensor([[0.1, 0.4], [0.2, 0.4], [0.2, 0.4], [0.9, 0.4], [0.9, 1.1]])
    swap = [0, 1] if channel == 0 else [1, 0]
    found = torchcde.linear_interpolation_coeffs(x[:, swap], rectilinear=channel)
    assert torch.equal(found, expected[:, swap])
    with pytest.warns(UserWarning, match="begins with missing values"):
        torchcde.linear_interpolation_coeffs(x.flip(0)[1:], rectilinear=0)
    with pytest.raises(ncode.InputError, match="missing times in channel 1"):
        torchcde.linear_interpolation_coeffs(x, rectilinear=1)


@pytest.mark.parametrize("kind", COEFFICIENTS)
@pytest.mark.parametrize("method", ["dopri5", "rk4"])
@pytest.mark.parametrize("adjoint", [True, False])
def test_dz_equals_z_dx_grows_exponentially(kind, method, adjoint):
    make, interpolation = COEFFICIENTS[kind]
    x = data(2, 6, 1).requires_grad_()
    X = interpolation(make(x))
    z0 = torch.ones(2, 1, dtype=DOUBLE, requires_grad=True)
    more = {"options": {"step_size": 1 / 32, "perturb": True}} if method == "rk4" else {"rtol": 1e-8, "atol": 1e-9}
    z = torchcde.cdeint(
        X, lambda t, z: z[..., None], z0, X.grid_points.detach()[[0, 3, 5]], adjoint, method=method, **more
    )
    expected = (x[:, [0, 3, 5]] - x[:, :1]).exp()
    torch.testing.assert_close(z, expected, rtol=1e-5, atol=1e-6)
    found = torch.autograd.grad(z[:, -1].sum(), (x, z0))
    for a, b in zip(found, (*torch.autograd.grad(expected[:, -1].sum(), x), expected[:, -1]), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kept", [0, 40_000])
def test_with_adjoint_what_exceeds_the_limit_is_computed_again(monkeypatch, kept):
    x = data(4, 8, 2)
    X, z0 = torchcde.CubicSpline(torchcde.natural_cubic_coeffs(x)), torch.zeros(4, 3, dtype=DOUBLE)
    found = []
    for adjoint in (False, True):
        monkeypatch.setattr(solver, "KEPT_BYTES", kept)
        func = Field()
        z = torchcde.cdeint(X, func, z0, X.interval, adjoint=adjoint)
        forward = func.count
        z[:, -1].square().sum().backward()
        found.append((z.detach(), *(p.grad for p in func.parameters())))
        assert (func.count > forward) == adjoint
        assert not adjoint or (func.count < 1.8 * forward) == (kept > 0)
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b)


def test_steps_end_at_the_knots_and_options_of_the_caller_come_first():
    X = torchcde.LinearInterpolation(torchcde.linear_interpolation_coeffs(data(4, 20, 2)))
    z0, errors = torch.zeros(4, 3, dtype=DOUBLE), []
    reference = torchcde.cdeint(X, Field(), z0, X.interval, rtol=1e-10, atol=1e-12)
    for options in (None, {"step_t": torch.tensor([0.5])}):
        z = torchcde.cdeint(X, Field(), z0, X.interval, options=options)
        errors.append(float((z - reference).detach().abs().max()))
    assert errors[0] < 1e-3
    assert errors[0] < 0.1 * errors[1]


def test_a_state_may_be_a_tuple_and_func_may_have_a_product():
    xa, xb = data(2, 6, 2), data(6, 1)
    a, b = (torchcde.CubicSpline(torchcde.natural_cubic_coeffs(x)) for x in (xa, xb))
    X = torchcde.TupleControl(a, b)

    def func(t, z):
        return z[0].sigmoid()[..., None].expand(2, 3, 2), z[1].tanh()[..., None]

    z0 = torch.zeros(2, 3, dtype=DOUBLE), torch.ones(5, dtype=DOUBLE, requires_grad=True)
    z = torchcde.cdeint(X=X, func=func, z0=z0, t=X.interval, adjoint_params=())
    assert [leaf.shape for leaf in z] == [(2, 2, 3), (2, 5)]
    alone = torchcde.cdeint(b, lambda t, z: func(t, (z0[0], z))[1], z0[1], b.interval)
    torch.testing.assert_close(z[1], alone, rtol=1e-3, atol=1e-5)

    class Product:
        def prod(self, t, z, dXdt):
            assert (t.shape, z.shape, dXdt.shape) == ((), (2, 3), (2, 2))
            return -z * dXdt.sum(-1, keepdim=True)

    z = torchcde.cdeint(a, Product(), torch.ones(2, 3, dtype=DOUBLE), a.interval)
    growth = -(xa[:, -1] - xa[:, 0]).sum(-1)
    torch.testing.assert_close(z[:, 1, 0], growth.exp(), rtol=1e-3, atol=1e-5)


def test_gradients_reach_the_times_of_the_data_and_of_the_solution():
    x, t = data(1, 5, 2), times(5).requires_grad_()
    ends = t.detach()[[0, -1]].clone().requires_grad_()
    func = Field()

    def end(t, ends):
        X = torchcde.CubicSpline(torchcde.natural_cubic_coeffs(x, t), t)
        options = {"step_size": 0.05}
        return torchcde.cdeint(X, func, torch.zeros(1, 3).double(), ends, method="rk4", options=options)[:, -1].sum()

    found = torch.autograd.grad(end(t, ends), (t, ends))
    for i, gradient in enumerate(found):
        step = 1e-6 * torch.randn(gradient.shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(i))
        later, earlier = [t.detach(), ends.detach()], [t.detach(), ends.detach()]
        later[i], earlier[i] = later[i] + step, earlier[i] - step
        expected = (end(*later) - end(*earlier)).detach() / 2
        torch.testing.assert_close((gradient * step).sum(), expected, rtol=1e-3, atol=1e-12)


def test_an_interpolation_moves_between_dtypes_with_its_times():
    X = torchcde.LinearInterpolation(torchcde.linear_interpolation_coeffs(data(3, 4, 1)), times(4))
    before = X.derivative(torch.tensor(0.7))
    assert X.float().derivative(torch.tensor(0.7)).dtype == torch.float32
    torch.testing.assert_close(X.derivative(torch.tensor(0.7)).double(), before, rtol=1e-5, atol=1e-5)
    assert sorted(X.state_dict()) == ["_t", "_terms"]


def test_bad_input_is_refused_with_a_sentence():
    x = data(2, 5, 2)
    X, z0 = torchcde.LinearInterpolation(x), torch.zeros(2, 3, dtype=DOUBLE)
    cases = [
        (lambda: torchcde.linear_interpolation_coeffs(x[0, 0]), "length, channels"),
        (lambda: torchcde.linear_interpolation_coeffs(x[:, :1]), "length of at least 2"),
        (lambda: torchcde.natural_cubic_coeffs(x, times(4)), r"t must be \(5,\)"),
        (lambda: torchcde.natural_cubic_coeffs(x, -times(5)), "increase"),
        (lambda: torchcde.linear_interpolation_coeffs(x, rectilinear=2), "rectilinear must be a channel"),
        (lambda: torchcde.CubicSpline(x), "4 channels"),
        (lambda: torchcde.LinearInterpolation(x, times(4)), r"t must be \(5,\)"),
        (lambda: torchcde.cdeint(x, Field(), z0, X.interval), "method derivative"),
        (lambda: torchcde.cdeint(X, Field(), z0, X.interval, backend="torchsde"), "torchdiffeq"),
        (lambda: torchcde.cdeint(X, Field(channels=3), z0, X.interval), r"returned \(2, 3, 3\); expected \(2, 3, 2\)"),
        (lambda: torchcde.cdeint(X, Field(), z0[:1], X.interval), "the batch, must agree"),
        (lambda: torchcde.cdeint(X, Field(), None, X.interval), "z0 must be a tensor"),
        (lambda: torchcde.cdeint(X, Field(), z0, torch.tensor(1.0)), "times"),
        (lambda: torchcde.TupleControl(), "one or more"),
        (lambda: torchcde.TupleControl(X, torchcde.LinearInterpolation(x[:, 1:])), "the same interval"),
    ]
    for call, message in cases:
        with pytest.raises(ncode.InputError, match=message):
            call()
