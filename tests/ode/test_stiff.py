"""Solves with methods for stiff problems."""

import contextlib
import math
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import ncode
from ncode import InputError, SolveError, Status
from ncode.ode.implicit_tableau import STIFF_METHODS

from .stiff_problems import PROBLEMS, ROBERTSON_RATES, robertson, row, van_der_pol
from .systems import DOUBLE, close, double
from .test_tableau import SYSTEMS, exactly, observed_order

ADAPTIVE_STIFF = tuple(name for name, it in STIFF_METHODS.items() if it.adaptive)
every_method = pytest.mark.parametrize("method", STIFF_METHODS)
every_adaptive = pytest.mark.parametrize("method", ADAPTIVE_STIFF)
STEPS = {1: (50, 100, 200), 2: (50, 100, 200), 5: (20, 40, 80)}


@every_method
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_observed_order_is_the_method_s_also_between_steps(method, system):
    field, exact, start = SYSTEMS[system]
    x0, order = torch.tensor(start, dtype=DOUBLE), STIFF_METHODS[method].order
    errors = []
    for n in STEPS[order]:
        ts = (torch.arange(n, dtype=DOUBLE)[:, None] + double(0.21, 0.5, 1.0).T).flatten() * (2 / n)
        sol = ncode.solve(field, x0, 0.0, 2.0, method=method, dt=2 / n, save_at=ts)
        errors.append(float((sol.xs - exactly(exact, ts, x0)).abs().max()))
    assert observed_order(errors, STEPS[order]) == pytest.approx(order, abs=0.25), errors


@every_method
def test_one_step_multiplies_a_stiff_decay_by_the_stability_function(method):
    sol = ncode.solve(lambda t, x, theta: -1e6 * x, double(1.0), 0.0, 1.0, method=method, dt=1.0)
    assert float(sol.x) == pytest.approx(-1.0 if method == "trapezoid" else 0.0, abs=1e-4)


@every_adaptive
@pytest.mark.parametrize("backward", [False, True])
def test_prothero_and_robinson_s_solution_takes_steps_of_its_own_size(method, backward):
    def field(t, x, theta):
        return -1e6 * (1 if not backward else -1) * (x - t.cos()[:, None]) - t.sin()[:, None]

    t1 = -10.0 if backward else 10.0
    ts = torch.linspace(0, t1, 30, dtype=DOUBLE)
    tolerance = 1e-3 if method == "rosenbrock23" else 1e-5
    sol = ncode.solve(field, double(1.0), 0.0, t1, method=method, rtol=tolerance, atol=tolerance, save_at=ts)
    assert int(sol.stats.steps) < 150
    close(sol.xs[0, :, 0], ts.cos(), rtol=0, atol=30 * tolerance)
    without = ncode.solve(field, double(1.0), 0.0, t1, method=method, rtol=tolerance, atol=tolerance)
    close(without.x[0, 0], ts[-1].cos(), rtol=0, atol=10 * tolerance)


# By scipy's Radau with rtol = 1e-12.
REFERENCES = {
    "robertson": (0.0178659211423, 7.27475146854e-08, 0.98213400611),
    "hires": (
        0.000737131257333,
        0.000144248572632,
        5.88872974097e-05,
        0.00117565134328,
        0.00238635619883,
        0.00623896825274,
        0.00284999839519,
        0.00285000160481,
    ),
    "van der pol": (1.70616773217, -0.000892809701025),
    "oregonator": (1.00066146718, 1512.77893735, 10358.5431277),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rodas5p", "kvaerno5"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_problems_of_chemistry_and_electronics_agree_with_scipy(name, method):
    field, x0, t1, theta, atol = PROBLEMS[name]
    sol = ncode.solve(field, x0, 0.0, t1, theta=theta, method=method, rtol=1e-7, atol=atol, max_steps=3000)
    error = (sol.x[0] / torch.tensor(REFERENCES[name], dtype=DOUBLE) - 1).abs().max()
    assert float(error) < 1e-6 * (10 if method == "kvaerno5" else 1)


def spread_rates(batch: int) -> torch.Tensor:
    noise = torch.randn(batch, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    return ROBERTSON_RATES * (0.3 * noise).exp()


def final_product(rates: torch.Tensor, **options) -> torch.Tensor:
    x0 = row(1.0, 0.0, 0.0).expand(len(rates), 3)
    return ncode.solve(robertson, x0, 0.0, 1e5, theta=rates, **options).x[:, 2]


@cache
def gradient_by_differences() -> torch.Tensor:
    """Central differences with respect to the rates, by one tight solve of all shifted ones."""
    rates = spread_rates(3)
    shift = torch.diag_embed(1e-4 * rates)
    moved = torch.stack([rates[:, None] + shift, rates[:, None] - shift])
    plus, minus = final_product(moved.flatten(0, 2), method="rodas5p", rtol=1e-10, atol=1e-14).reshape(2, 3, 3)
    return (plus - minus) / (2e-4 * rates)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rodas5p", "kvaerno5"])
def test_gradients_of_robertson_s_rates_agree_with_finite_differences(method):
    rates, expected = spread_rates(3), gradient_by_differences()
    rates.requires_grad_()
    final_product(rates, method=method, rtol=1e-6, atol=1e-10).sum().backward()
    assert float((rates.grad / expected - 1).abs().max()) < 1e-5


@every_adaptive
def test_a_sample_does_not_depend_on_its_companions(method):
    rates = spread_rates(5)
    together = final_product(rates, method=method, rtol=1e-4, atol=1e-8)
    alone = torch.cat([final_product(rates[i : i + 1], method=method, rtol=1e-4, atol=1e-8) for i in range(5)])
    close(together, alone, rtol=1e-12)


class Controlled(nn.Module):
    """Nonlinear, time-dependent, with a weight and a control."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[-3.0, 1.0], [0.5, -2.0]], dtype=DOUBLE))

    def forward(self, t, x, theta):
        return (x @ self.weight).tanh() * theta + t.cos()[:, None] - 0.1 * x**3


def everything(gradient: str, method: str, dt: float | None, **options) -> list[torch.Tensor]:
    """Gradients with respect to everything that a solve has: state, control, times, saved times, cost, weights."""
    f = Controlled()
    x0 = torch.tensor([[0.3, -0.2], [1.0, 0.5], [-0.4, 0.8]], dtype=DOUBLE, requires_grad=True)
    theta = torch.tensor([[0.7, 1.1], [1.3, 0.2], [0.5, 0.9]], dtype=DOUBLE, requires_grad=True)
    t0 = torch.tensor([0.1, 0.0, 1.0], dtype=DOUBLE, requires_grad=True)
    t1 = torch.tensor([1.0, 0.8, 0.2], dtype=DOUBLE, requires_grad=True)
    place = torch.tensor([0.3, 0.8], dtype=DOUBLE)
    save_at = t0[:, None] + (t1 - t0)[:, None] * place
    sol = ncode.solve(
        f,
        x0,
        t0,
        t1,
        theta=theta,
        feedback=lambda t, x, theta: -0.5 * theta + x.sin(),
        cost=lambda t, x, theta: x.square().sum(1) + t * theta[:, 0],
        save_at=save_at,
        method=method,
        dt=dt,
        gradient=gradient,
        rtol=1e-9,
        atol=1e-9,
        **options,
    )
    loss = (sol.x * row(1.0, 2.0)).sum() + sol.xs.square().sum() + sol.cost.sum() + sol.thetas.sum()
    return list(torch.autograd.grad(loss, [x0, theta, t0, t1, f.weight]))


@every_method
def test_all_gradients_agree_with_an_explicit_method_s(method):
    dt = None if STIFF_METHODS[method].adaptive else 0.1
    if method == "rosenbrock23":
        dt = 0.1  # 1e-9 would take thousands of steps
    found = everything("discrete", method, dt)
    close(found, everything("autograd", method, dt), rtol=1e-6, atol=1e-9)
    close(found, everything("discrete", method, dt, checkpoint_every=3), rtol=1e-9)
    if dt is None:
        expected = everything("discrete", "dopri8", None)
        close(found, expected, rtol=1e-5, atol=1e-6)
        close(everything("adjoint", method, dt), expected, rtol=1e-5, atol=1e-6)


@every_method
@pytest.mark.parametrize("gradient", ["discrete", "adjoint", "autograd"])
def test_dynamics_that_are_the_gradient_of_an_energy_have_gradients(method, gradient):
    """They make a leaf of their own where x needs no gradient, as did stages that Newton's method had found."""

    def descend(t, x, theta):
        graph = torch.is_grad_enabled()
        with torch.enable_grad():
            at = x if x.requires_grad else x.detach().requires_grad_()
            energy = (theta * at.square()).sum() + at.cos().sum()
            (slope,) = torch.autograd.grad(energy, at, create_graph=graph)
        return -slope

    def run(dynamics):
        x0, theta = row(0.5, 1.5).requires_grad_(), row(2.0, 3.0).requires_grad_()
        x = ncode.solve(dynamics, x0, 0.0, 1.0, theta=theta, method=method, dt=0.1, gradient=gradient).x
        return torch.autograd.grad(x.sum(), [x0, theta])

    close(run(descend), run(lambda t, x, theta: x.sin() - 2 * theta * x), rtol=1e-9)


@every_method
def test_gradients_of_fixed_steps_agree_with_finite_differences(method):
    def end(x):
        return ncode.solve(lambda t, x, theta: -x * x - t[:, None], x, 0.0, 1.0, method=method, dt=0.25).x

    assert torch.autograd.gradcheck(end, double(1.0, 2.0).requires_grad_(), atol=1e-7)


@every_method
def test_second_derivatives_are_exact(method):
    def end(x):
        field = lambda t, x, theta: -x * x - t[:, None]  # noqa: E731
        return ncode.solve(field, x, 0.0, 1.0, method=method, dt=0.5, gradient="autograd").x

    assert torch.autograd.gradgradcheck(end, double(1.0, 2.0).requires_grad_(), atol=1e-6)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("method", [*STIFF_METHODS, "auto"])
def test_forward_mode_agrees_with_finite_differences(method):
    def end(x):
        field = lambda t, x, theta: -x * x.flip(1) - t[:, None] * x  # noqa: E731
        return ncode.solve(field, x, 0.0, 1.0, method=method, dt=0.25, gradient="autograd").x

    x0, tangent = torch.tensor([[1.0, 0.5], [0.3, 2.0]], dtype=DOUBLE), torch.ones(2, 2, dtype=DOUBLE)
    with torch.autograd.forward_ad.dual_level():
        dual = end(torch.autograd.forward_ad.make_dual(x0, tangent))
        found = torch.autograd.forward_ad.unpack_dual(dual).tangent
    close(found, (end(x0 + 1e-5 * tangent) - end(x0 - 1e-5 * tangent)) / 2e-5, rtol=1e-6, atol=1e-8)


def falling(t, x, theta):
    return torch.stack([x[:, 1], -9.81 + 0 * x[:, 0]], 1)


@pytest.mark.parametrize("method", [*ADAPTIVE_STIFF, "auto"])
def test_events_are_found_with_their_gradients(method):
    ground = ncode.Event(lambda t, x, theta: x[:, 0])
    x0 = torch.tensor([[1.0, 0.0], [2.0, 0.0]], dtype=DOUBLE, requires_grad=True)
    sol = ncode.solve(falling, x0, 0.0, 10.0, events=ground, method=method, rtol=1e-6, atol=1e-8)
    exact = (2 * x0[:, 0] / 9.81).sqrt()
    close(sol.events[0].ts[:, 0], exact, rtol=1e-8, check_stride=False)
    grads = [torch.autograd.grad(it.sum(), x0)[0][:, 0] for it in (sol.events[0].ts, exact)]
    close(grads[0], grads[1], rtol=1e-6)


@pytest.mark.parametrize("method", [*ADAPTIVE_STIFF, "auto"])
def test_jumps_and_tolerances_per_sample(method):
    rate = double(2.0, 3.0)

    def field(t, x, theta):
        return -theta * x + (t > 0.5).to(x)[:, None]

    rtol = double(1e-7, 1e-4)
    sol = ncode.solve(field, double(1.0, 1.0), 0.0, 1.0, theta=rate, jump_ts=[0.5], method=method, rtol=rtol, atol=1e-9)
    exact = (-rate).exp() + (1 - (-rate / 2).exp()) / rate
    assert int(sol.stats.steps[0]) > int(sol.stats.steps[1])
    close(sol.x[:1], exact[:1], rtol=1e-5)
    close(sol.x[1:], exact[1:], rtol=1e-3)


def test_the_jacobian_leaves_out_a_control_that_was_computed_from_the_state():
    x0 = double(0.5, 1.0).requires_grad_()
    dynamics = lambda t, x, theta: -theta * x  # noqa: E731
    grads = []
    for gradient in ("discrete", "autograd"):
        sol = ncode.solve(dynamics, x0, 0.0, 1.0, theta=x0, method="rodas5p", rtol=1e-8, atol=1e-8, gradient=gradient)
        close(sol.x, x0 * (-x0).exp(), rtol=1e-7)
        grads.append(torch.autograd.grad(sol.x.sum(), x0)[0])
    close(grads[0], ((1 - x0) * (-x0).exp()).detach(), rtol=1e-6, atol=1e-8)
    close(grads[0], grads[1], rtol=1e-10)


@every_adaptive
def test_states_of_any_shape_one_step_size_and_dense_output(method):
    x0 = torch.linspace(0.5, 1.5, 12, dtype=DOUBLE).reshape(2, 3, 2)
    options = {"method": method, "rtol": 1e-6, "atol": 1e-9}
    sol = ncode.solve(lambda t, x, theta: -50 * (x - 1), x0, 0.0, 1.0, step="batch", dense=True, **options)
    assert sol.stats.steps[0] == sol.stats.steps[1]
    ts = torch.tensor([0.013, 0.4], dtype=DOUBLE)
    exact = 1 + (x0 - 1)[:, None] * (-50 * ts).exp()[:, None, None]
    close(sol(ts), exact, rtol=0, atol=3e-4 if method == "rosenbrock23" else 1e-5)


def test_a_supplied_jacobian_replaces_automatic_differentiation():
    class Decay:
        calls = 0

        def __call__(self, t, x, theta):
            return theta * x.cos() * t[:, None]

        def jacobian(self, t, x, theta):
            self.calls += 1
            return torch.diag_embed(-theta * x.sin() * t[:, None])

    f, x0, theta = Decay(), row(0.5, 1.0), row(-2.0, 3.0).requires_grad_()
    sol = ncode.solve(f, x0, 0.0, 2.0, theta=theta, method="rodas5p", rtol=1e-6)
    assert f.calls > 0
    own = torch.autograd.grad(sol.x.sum(), theta)[0]
    sol = ncode.solve(lambda *given: f(*given), x0, 0.0, 2.0, theta=theta, method="rodas5p", rtol=1e-6)
    close(own, torch.autograd.grad(sol.x.sum(), theta)[0], rtol=1e-9)


class Cubic:
    """Coupled dynamics with a Jacobian; `cut` hides them from autograd, as NumPy would."""

    def __init__(self, cut=False):
        self.cut, self.calls = cut, 0

    def __call__(self, t, x, theta):
        x = x.detach() if self.cut else x
        return -theta * x**3 + t[:, None] * x[:, [1, 0]]

    def jacobian(self, t, x, theta):
        self.calls += 1
        coupling = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=DOUBLE)
        return torch.diag_embed(-3 * theta * x**2) + t[:, None, None] * coupling


@pytest.mark.parametrize("method", ["rodas5p", "kvaerno5"])
@pytest.mark.parametrize("gradient", ["discrete", "adjoint", "autograd"])
def test_a_supplied_jacobian_is_used_beside_a_cost(method, gradient):
    def solve(f):
        theta = torch.tensor([[2.0, 5.0], [1.0, 300.0]], dtype=DOUBLE, requires_grad=True)
        x0 = torch.tensor([[1.0, 0.5], [0.3, 2.0]], dtype=DOUBLE)
        options = {"theta": theta, "cost": lambda t, x, theta: t * (theta * x**2).sum(1)}
        sol = ncode.solve(f, x0, 0.0, 1.0, method=method, gradient=gradient, **options)
        return sol.x, sol.cost, torch.autograd.grad((sol.x.sum(1) + sol.cost).sum(), theta)[0]

    f = Cubic()
    own = solve(f)
    assert f.calls > 0
    close(own, solve(lambda *given: f(*given)), rtol=1e-9)


@pytest.mark.parametrize("method", ["rodas5p", "kvaerno5"])
def test_dynamics_without_a_graph_can_have_a_jacobian_and_a_cost(method):
    x0, theta = torch.tensor([[1.0, 0.5]], dtype=DOUBLE), torch.tensor([[2.0, 50.0]], dtype=DOUBLE)
    options = {"theta": theta, "method": method, "rtol": 1e-8, "atol": 1e-9}
    cut, seen = (
        ncode.solve(Cubic(cut), x0, 0.0, 1.0, cost=lambda t, x, theta: (x**2).sum(1), **options)
        for cut in (True, False)
    )
    close((cut.x, cut.cost), (seen.x, seen.cost), rtol=1e-6)
    with pytest.raises(InputError, match="autograd cannot follow"):
        ncode.solve(Cubic(True), x0, 0.0, 1.0, cost=lambda t, x, theta: (x**2).sum(1).detach(), **options)


@pytest.mark.parametrize("dynamics", [ncode.dynamics.Linear(3), ncode.dynamics.SparseLinear(3, nonzeros=2)])
def test_linear_dynamics_supply_their_jacobian(dynamics, monkeypatch):
    calls = []
    supplied = dynamics.jacobian
    monkeypatch.setattr(dynamics, "jacobian", lambda *given: calls.append(1) or supplied(*given))
    shape = dynamics.control_shapes["weight"]
    theta = {"weight": torch.linspace(-1.0, 1.5, 2 * shape[0] * shape[1], dtype=DOUBLE).reshape(2, *shape)}
    x0 = torch.tensor([[1.0, 0.5, -0.3], [0.2, -1.0, 0.4]], dtype=DOUBLE)
    ends = [
        ncode.solve(dynamics, x0, 0.0, 1.0, theta=theta, method=method, rtol=1e-8, atol=1e-9).x
        for method in ("rodas5p", "dopri8")
    ]
    assert calls
    close(ends[0], ends[1], rtol=1e-6)


def test_a_jacobian_of_a_wrong_shape_is_refused():
    class Wrong:
        def __call__(self, t, x, theta):
            return -x

        def jacobian(self, t, x, theta):
            return torch.eye(2, dtype=DOUBLE)

    with pytest.raises(InputError, match=r"jacobian\(t, x, theta\) returned \(2, 2\).* expected a tensor \(3, 2, 2\)"):
        ncode.solve(Wrong(), torch.ones(3, 2, dtype=DOUBLE), 0.0, 1.0, method="rodas5p")


def test_dynamics_whose_backward_cannot_be_batched_are_differentiated_row_by_row():
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            assert float(grad.sum()) < 1e9  # reads a value, which vmap forbids
            return 2 * x * grad

    sol = ncode.solve(lambda t, x, theta: -Square.apply(x), row(1.0, 2.0), 0.0, 1.0, method="rodas5p", rtol=1e-8)
    close(sol.x, row(1 / 2, 2 / 3), rtol=1e-6)


def test_a_singular_matrix_is_a_status_of_its_sample():
    rates = double(1.0, -1.0)  # 1 - dt * rate = 0 for the first
    for method in ("implicit_euler", "trapezoid"):
        dt = 1.0 if method == "implicit_euler" else 2.0
        options = {"theta": rates, "method": method, "dt": dt, "throw": False}
        sol = ncode.solve(lambda t, x, theta: theta * x, double(1.0, 1.0), 0.0, 4.0, **options)
        assert sol.status == (Status.SINGULAR_MATRIX, Status.OK)
        assert sol.x.isnan().flatten().tolist() == [True, False]


def test_newton_s_failure_is_a_status_of_its_sample():
    # x = x0 + dt x^2 has no real solution for x0 = dt = 1.
    options = {"method": "implicit_euler", "dt": 1.0, "throw": False}
    sol = ncode.solve(lambda t, x, theta: x * x, double(1.0, -1.0), 0.0, 1.0, **options)
    assert sol.status == (Status.NEWTON_FAILED, Status.OK)
    assert float(sol.x[1]) == pytest.approx((1 - 5**0.5) / 2)
    with pytest.raises(SolveError, match=r"NEWTON_FAILED: Newton's method did not converge; .*use a smaller dt"):
        ncode.solve(lambda t, x, theta: x * x, double(1.0), 0.0, 1.0, method="implicit_euler", dt=1.0)


@pytest.mark.parametrize("options", [{"method": "implicit_euler", "dt": 0.1}, {"method": "trapezoid", "dt": 0.1}, {}])
def test_dynamics_that_become_nan_are_no_failure_of_newton_s_method(options):
    def field(t, x, theta):
        return torch.where(t[:, None] > theta[:, None], torch.nan, -x)

    options = {"method": "kvaerno5", "throw": False, "theta": double(0.55, 2.0)[:, 0], **options}
    sol = ncode.solve(field, double(1.0, 1.0), 0.0, 1.0, **options)
    assert sol.status == (Status.NOT_FINITE, Status.OK)


@every_adaptive
def test_a_blow_up_ends_its_sample_alone(method):
    sol = ncode.solve(lambda t, x, theta: x * x, double(2.0, 0.5), 0.0, 1.0, method=method, throw=False)
    assert sol.status[0] != Status.OK
    assert sol.status[1] == Status.OK
    assert float(sol.t[0]) == pytest.approx(0.5, abs=1e-2)


@pytest.mark.parametrize("method", ["rosenbrock23", "rodas5p", "kvaerno5", "auto"])
def test_the_sentence_at_a_blow_up_names_it(method):
    """kvaerno5 only advised a smaller dt, which adaptive steps do not have."""
    with pytest.raises(SolveError, match="may blow up"):
        ncode.solve(lambda t, x, theta: x * x, double(2.0), 0.0, 1.0, method=method)


def test_evaluations_of_newton_s_method_are_counted():
    calls = 0

    def field(t, x, theta):
        nonlocal calls
        calls += 1
        return -x * x

    sol = ncode.solve(field, double(1.0), 0.0, 1.0, method="kvaerno5")
    assert int(sol.stats.nfe) == calls


@every_method
def test_complex_states_are_refused(method):
    with pytest.raises(InputError, match=r"needs Jacobians, which exist for real states only"):
        ncode.solve(
            lambda t, x, theta: 1j * x, torch.ones(1, 1, dtype=torch.complex128), 0.0, 1.0, method=method, dt=0.1
        )


def test_samples_that_depend_on_each_other_are_refused():
    for gradient, dt in (("discrete", None), ("autograd", 0.1)):
        with pytest.raises(
            InputError, match=r"samples depend on each other.*'rodas5p' needs the Jacobian of each sample"
        ):
            ncode.solve(
                lambda t, x, theta: x.mean(0) - x,
                double(1.0, 2.0),
                0.0,
                1.0,
                method="rodas5p",
                gradient=gradient,
                dt=dt,
            )


def test_fixed_step_methods_need_a_step_size():
    with pytest.raises(
        InputError, match=r'"trapezoid" has no error estimate: give a step size dt, or use one of .*rodas'
    ):
        ncode.solve(lambda t, x, theta: -x, double(1.0), 0.0, 1.0, method="trapezoid")


def test_transforms_of_torch_func_are_refused():
    def end(x):
        return ncode.solve(lambda t, x, theta: -x, x, 0.0, 1.0, method="rodas5p", dt=0.5, gradient="autograd").x.sum()

    with pytest.raises(InputError, match=r"does not work inside torch.func transforms"):
        torch.func.grad(end)(double(1.0))


def test_float32_is_solved_in_float32():
    x0 = torch.tensor([[2.0, 0.0]])
    sol = ncode.solve(van_der_pol, x0, 0.0, 20.0, theta=torch.tensor([[10.0]]), method="rodas5p", rtol=1e-4)
    exact = ncode.solve(van_der_pol, x0.double(), 0.0, 20.0, theta=row(10.0), method="dopri8", rtol=1e-9, atol=1e-9)
    assert sol.x.dtype == torch.float32
    close(sol.x.double(), exact.x, rtol=2e-2, atol=2e-3)


def test_auto_takes_the_steps_of_tsit5_where_nothing_is_stiff():
    x0, options = row(2.0, 0.0), {"theta": row(0.1), "rtol": 1e-6, "atol": 1e-6}
    found, explicit = (ncode.solve(van_der_pol, x0, 0.0, 5.0, method=name, **options) for name in ("auto", "tsit5"))
    close(found.x, explicit.x, rtol=1e-13)
    assert found.stats.steps == explicit.stats.steps


def test_auto_solves_stiff_and_other_samples_side_by_side():
    mu, x0 = double(0.1, 1000.0), row(2.0, 0.0).expand(2, 2)
    options = {"method": "auto", "rtol": 1e-6, "atol": 1e-8}
    sol = ncode.solve(van_der_pol, x0, 0.0, 100.0, theta=mu, **options)
    exact = ncode.solve(van_der_pol, x0, 0.0, 100.0, theta=mu, method="rodas5p", rtol=1e-10, atol=1e-12)
    assert int(sol.stats.steps[1]) < 150
    close(sol.x, exact.x, rtol=1e-4, atol=1e-6)
    for i in range(2):
        alone = ncode.solve(van_der_pol, x0[:1], 0.0, 100.0, theta=mu[i : i + 1], **options)
        close(sol.x[i : i + 1], alone.x, rtol=1e-12)


def test_gradients_of_auto_are_those_of_its_steps():
    grads = []
    for gradient in ("discrete", "autograd", "reference"):
        mu = double(0.1, 200.0).requires_grad_()
        options = {"method": "auto", "rtol": 1e-7, "atol": 1e-9, "gradient": gradient}
        if gradient == "reference":
            options = {"method": "rodas5p", "rtol": 1e-10, "atol": 1e-12}
        ts = torch.tensor([0.1, 1.0, 7.0], dtype=DOUBLE)
        sol = ncode.solve(van_der_pol, row(2.0, 0.0).expand(2, 2), 0.0, 10.0, theta=mu, save_at=ts, **options)
        grads.append(torch.autograd.grad(sol.x[:, 0].sum() + sol.xs.square().sum(), mu)[0])
    close(grads[0], grads[1], rtol=1e-8)
    close(grads[0], grads[2], rtol=1e-4, atol=1e-9)


def test_auto_sees_a_fast_component_before_errors_in_it_have_grown():
    """At tight tolerances explicit steps are accurate where they are unstable already, and their gradients explode."""
    grads, steps = [], []
    for method in ("auto", "rodas5p"):
        rates = ROBERTSON_RATES.clone().requires_grad_()
        sol = ncode.solve(robertson, row(1.0, 0.0, 0.0), 0.0, 40.0, theta=rates, method=method, rtol=1e-8, atol=1e-12)
        grads.append(torch.autograd.grad(sol.x[:, 2].sum(), rates)[0])
        steps.append(int(sol.stats.steps))
    assert steps[0] < 1.5 * steps[1]
    close(grads[0], grads[1], rtol=1e-6)


@pytest.mark.parametrize("name", PROBLEMS)
def test_an_explicit_method_that_runs_out_of_steps_says_that_the_problem_is_stiff(name):
    field, x0, t1, theta, _ = PROBLEMS[name]
    with pytest.raises(SolveError, match=r'STIFF: .* because the problem is stiff: .* use method="rodas5p"'):
        ncode.solve(field, x0, 0.0, t1, theta=theta, rtol=1e-4, atol=1e-8, max_steps=1000)


@pytest.mark.parametrize(
    "field",
    [
        lambda t, x, theta: torch.stack([x[:, 1], -1e4 * x[:, 0]], 1),  # oscillates
        lambda t, x, theta: -x + (100 * t).cos()[:, None],  # is driven fast
        lambda t, x, theta: 0 * x + (100 * t).cos()[:, None],  # does not depend on x
    ],
)
def test_a_problem_that_only_needs_many_steps_is_not_called_stiff(field):
    sol = ncode.solve(field, row(1.0, 0.5), 0.0, 1000.0, max_steps=200, throw=False)
    assert sol.status == (Status.MAX_STEPS,)


def test_a_block_with_a_plastic_control_and_an_implicit_method_uses_the_solver():
    ends = []
    for method in ("trapezoid", "rk4"):
        torch.manual_seed(0)
        block = ncode.NCODE(ncode.dynamics.Recurrent(3), ncode.Hebbian(), t1=0.5, method=method, dt=0.01)
        ends.append(block(torch.full((2, 3), 0.4)))
    close(ends[0], ends[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", ["kvaerno5", "trapezoid"])
def test_newton_s_method_is_not_compiled(method):
    with pytest.raises(InputError, match=r"iterates until each sample has converged, which cannot be compiled"):
        ncode.solve(robertson, row(1.0, 0.0, 0.0), 0.0, 1.0, theta=ROBERTSON_RATES, method=method, dt=0.1, compile=True)


@pytest.mark.slow
def test_a_compiled_solve_equals_the_eager_one():
    rates = spread_rates(3)
    found = []
    for compile in (False, True):
        leaf = rates.clone().requires_grad_()
        options = {"method": "rosenbrock23", "rtol": 1e-3, "atol": 1e-6, "compile": compile}
        sol = ncode.solve(robertson, row(1.0, 0.0, 0.0).expand(3, 3), 0.0, 0.1, theta=leaf, **options)
        found.append((sol.x.detach(), torch.autograd.grad(sol.x[:, 2].sum(), leaf)[0], sol.stats.nfe))
    np.testing.assert_array_equal(found[0][2], found[1][2])
    close(found[0][:2], found[1][:2], rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["rodas5p", "kvaerno5", "auto"])
def test_the_adjoint_of_robertson_s_rates_agrees_with_finite_differences(method):
    """Solved back, the state would explode: the adjoint reads it from the dense output of the forward pass."""
    rates, expected = spread_rates(3), gradient_by_differences()
    rates.requires_grad_()
    sol = final_product(rates, method=method, rtol=1e-7, atol=1e-11, gradient="adjoint")
    sol.sum().backward()
    assert float((rates.grad / expected - 1).abs().max()) < 2e-5


def relaxation(gradient: str, method: str, scale: float = 1.0, **options) -> list[torch.Tensor]:
    """Gradients of everything of stiff, driven samples, one of which is solved backward in time."""
    rate = double(1e2, 1e3, 2.0).requires_grad_()
    weight = torch.tensor(0.7, dtype=DOUBLE, requires_grad=True)
    x0 = torch.tensor([[0.3, 0.8], [1.0, 0.1], [0.2, 0.4]], dtype=DOUBLE, requires_grad=True)
    t0 = torch.tensor([0.0, 0.2, 1.0], dtype=DOUBLE, requires_grad=True)
    t1 = torch.tensor([1.0, 0.9, 0.3], dtype=DOUBLE, requires_grad=True)

    def field(t, x, theta):
        fast, slow = x.unbind(1)
        return torch.stack([-theta[:, 0] * (fast - slow.cos()), weight * fast * t - slow**2], 1)

    save_at = t0[:, None] + (t1 - t0)[:, None] * torch.tensor([0.4, 0.9], dtype=DOUBLE)
    options = {"rtol": 1e-8, "atol": 1e-10, "method": method, "gradient": gradient, **options}
    sol = ncode.solve(
        field, x0, t0, t1, theta=rate, cost=lambda t, x, theta: weight * x.square().sum(1), save_at=save_at, **options
    )
    loss = sol.x.square().sum() + sol.xs.sum() + sol.cost.sum()
    return list(torch.autograd.grad(scale * loss, [x0, rate, t0, t1, weight]))


@pytest.mark.parametrize("method", ["rodas5p", "kvaerno5", "auto"])
def test_the_adjoint_of_a_stiff_problem_equals_the_discrete_gradient(method):
    expected = relaxation("discrete", "rodas5p", rtol=1e-10, atol=1e-12)
    close(relaxation("adjoint", method), expected, rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize("method", ["rodas5p", "dopri5"])
def test_the_adjoint_is_as_exact_for_a_loss_of_any_scale(method):
    """It is linear: a mean over a million samples must not fall below the tolerance."""

    def gradient(scale):
        x0 = double(1.0, 2.0).requires_grad_()
        sol = ncode.solve(lambda t, x, theta: -x * x, x0, 0.0, 1.0, method=method, gradient="adjoint")
        return torch.autograd.grad(scale * sol.x.sum(), x0)[0] / scale

    close(gradient(1e-9), gradient(1.0), rtol=1e-10)


@pytest.mark.parametrize("method", ["rodas5p", "dopri5"])
def test_the_adjoint_of_a_solve_in_single_precision_is_solved_in_it(method):
    seen = set()

    def field(t, x, theta):
        seen.add((t.dtype, x.dtype))
        return -x * (x + t[:, None])

    x0 = torch.tensor([[1.0], [2.0]], requires_grad=True)
    grads = [
        torch.autograd.grad(ncode.solve(field, x0, 0.0, 1.0, rtol=1e-5, method=method, gradient=gradient).x.sum(), x0)[
            0
        ]
        for gradient in ("adjoint", "discrete")
    ]
    close(grads[0], grads[1], rtol=1e-2, atol=1e-4)
    assert seen == {(torch.float32, torch.float32)}


def test_the_adjoint_of_a_stiff_method_uses_a_supplied_jacobian():
    calls = []

    class Relax(nn.Module):
        def forward(self, t, x, theta):
            return -theta * (x - torch.cos(t)[:, None])

        def jacobian(self, t, x, theta):
            calls.append(len(x))
            return -theta[:, :, None]

    rate = double(1e3, 1.0).requires_grad_()
    sol = ncode.solve(Relax(), double(0.0, 0.0), 0.0, 1.0, theta=rate, method="rodas5p", gradient="adjoint")
    forward = len(calls)
    sol.x.sum().backward()
    assert len(calls) > forward > 0


def test_the_adjoint_of_a_stiff_method_leaves_failed_samples_out():
    weight = torch.tensor(0.5, dtype=DOUBLE, requires_grad=True)

    def field(t, x, theta):  # the second sample blows up before t = 1
        return weight * x + theta * x**2

    options = {"method": "rodas5p", "gradient": "adjoint", "throw": False, "rtol": 1e-8, "atol": 1e-8}
    sol = ncode.solve(field, double(1.0, 1.0), 0.0, 2.0, theta=double(0.0, 1.0), **options)
    assert sol.ok.tolist() == [True, False]
    sol.x[0].sum().backward()
    close(weight.grad, torch.tensor(2 * math.e, dtype=DOUBLE), rtol=1e-6)


@pytest.mark.parametrize("save_at", [None, [0.25, 0.5, 0.75]])
def test_an_adjoint_that_loses_its_state_on_the_way_back_warns(save_at):
    """Errors of 1e-3 grow by exp(20), unless the state starts anew from saved times."""

    def decay(t, x, theta):
        return -theta * (x - torch.cos(t)[:, None])

    rate = torch.tensor([[20.0], [0.1]], dtype=DOUBLE, requires_grad=True)
    x0 = torch.ones(2, 1, dtype=DOUBLE)
    sol = ncode.solve(decay, x0, 0.0, 1.0, theta=rate, gradient="adjoint", save_at=save_at)
    lost = pytest.warns(UserWarning, match=r"1 of 2 samples \(the first is 0\) may be wrong")
    with lost if save_at is None else contextlib.nullcontext():
        sol.x.sum().backward()


CUT = {
    "no_grad": lambda t, x, theta: _without_graph(x),
    "detach": lambda t, x, theta: -x.detach(),
    "NumPy": lambda t, x, theta: torch.from_numpy(-x.detach().numpy()),
    "out": lambda t, x, theta: torch.mul(x, -1, out=torch.empty_like(x)),
}


@torch.no_grad()
def _without_graph(x):
    return -x


@pytest.mark.parametrize("name", CUT)
@pytest.mark.parametrize("options", [{"method": "rodas5p"}, {"method": "rosenbrock23", "dt": 0.25}])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_dynamics_whose_jacobian_autograd_cannot_see_are_refused(name, options, mode):
    if name == "out" and mode is torch.enable_grad:
        return  # torch refuses it at the first evaluation
    with mode(), pytest.raises(InputError, match="autograd cannot follow the dynamics"):
        ncode.solve(CUT[name], double(1.0, 2.0), 0.0, 1.0, **options)


@pytest.mark.parametrize("method", ["rosenbrock23", "rodas5p", "kvaerno5", "implicit_euler"])
@pytest.mark.parametrize("extra", ["cost", "feedback"])
def test_a_graph_of_the_cost_or_the_feedback_does_not_hide_that_the_dynamics_have_none(method, extra):
    x0 = double(1.0, 2.0)
    followed = {"cost": {"cost": lambda t, x, theta: x[:, 0] ** 2}}
    followed["feedback"] = {"theta": torch.zeros_like(x0), "feedback": lambda t, x, theta: x - theta}
    with torch.no_grad(), pytest.raises(InputError, match="autograd cannot follow the dynamics"):
        ncode.solve(CUT["no_grad"], x0, 0.0, 1.0, method=method, dt=0.25, **followed[extra])


def test_dynamics_that_do_not_depend_on_the_state_need_no_graph():
    sol = ncode.solve(lambda t, x, theta: torch.ones_like(x), double(1.0, 2.0), 0.0, 1.0, method="rodas5p")
    close(sol.x, double(2.0, 3.0))


@pytest.mark.parametrize("method", ["rosenbrock23", "rodas5p", "kvaerno5", "implicit_euler", "auto"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_parts_that_depend_on_the_state_do_not_make_others_need_a_graph(method, mode):
    """The rates of the other parts, copied without their graph, were taken for some that autograd cannot follow."""
    options = {"method": method, "dt": None if method == "auto" else 0.25}
    x0 = double(1.0, 2.0)
    with mode():
        line = ncode.solve(
            lambda t, x, theta: 0 * x.detach() + 1, x0, 0.0, 1.0, cost=lambda t, x, theta: x[:, 0], **options
        )
        pair = ncode.solve(lambda t, x, theta: (-x[0], torch.ones_like(x[1])), (x0, x0), 0.0, 1.0, **options)
    close(line.x, x0 + 1)
    close(line.cost, x0[:, 0] + 0.5, rtol=0.2)
    close(pair.x[1], x0 + 1)


@pytest.mark.parametrize(
    "options", [{"method": "rodas5p"}, {"method": "kvaerno5"}, {"method": "auto"}, {"method": "trapezoid", "dt": 0.1}]
)
def test_a_stiff_method_gives_the_same_under_inference_mode(options):
    rate = double(1.0, 2.0)
    expected = ncode.solve(lambda t, x, theta: -rate * x, double(1.0, 2.0), 0.0, 1.0, **options)
    with torch.inference_mode():
        x0, t1 = double(1.0, 2.0), torch.tensor(1.0)
        found = ncode.solve(lambda t, x, theta: -rate * x, x0, 0.0, t1, **options)
    assert torch.equal(found.x, expected.x)


def test_a_tensor_of_inference_mode_that_a_jacobian_needs_gets_a_sentence():
    with torch.inference_mode():
        rate = double(1.0, 2.0)
        with pytest.raises(InputError, match="made under torch"):
            ncode.solve(lambda t, x, theta: rate * -x, double(1.0, 2.0), 0.0, 1.0, method="rodas5p")


@pytest.mark.parametrize("rtol", [1e-5, 2e-6])
def test_newtons_method_ends_at_the_rounding_of_single_precision(rtol):
    """It asked for more than float32 can give, and took thousands of steps that were no better."""

    def evaluations(dtype):
        x0 = torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=dtype)
        sol = ncode.solve(
            lambda t, x, theta: torch.cos(x).flip(1) - x, x0, 0.0, 3.0, method="kvaerno5", rtol=rtol, atol=rtol / 100
        )
        return sol.stats.nfe.max().item()

    assert evaluations(torch.float32) < 2 * evaluations(DOUBLE)


@pytest.mark.parametrize("method", ["rosenbrock23", "rodas5p", "kvaerno5"])
def test_a_jacobian_that_overflows_is_a_failure(method):
    """The slope is finite in float32, and its derivative is not: the sample stood still, with status OK."""
    x0 = torch.tensor([[-0.085], [0.0]])
    sol = ncode.solve(lambda t, x, theta: torch.exp(-1e3 * x), x0, 0.0, 1e-3, method=method, throw=False)
    assert [status == Status.OK for status in sol.status] == [False, True]
