import math

import pytest
import torch
from scipy.integrate import quad

import ncode
from ncode.ode import METHODS

from .systems import DOUBLE, GRADIENTS, close, decay, double

TIGHT = {"rtol": 1e-10, "atol": 1e-10}
every_gradient = pytest.mark.parametrize("gradient", GRADIENTS)


def effort(t, x, theta):
    return t.cos() * x[:, 0].square() + t


def effort_of_decay(x0, start, end):
    """The integral of the effort along x0 e^(start - t), by quadrature."""
    return quad(lambda t: math.cos(t) * (x0 * math.exp(start - t)) ** 2 + t, start, end, epsabs=1e-12)[0]


@pytest.mark.parametrize("method", ["dopri5", "tsit5", "dopri8"])
def test_the_running_cost_is_the_integral_of_its_rate(method):
    x0 = double(1.0, -2.0, 0.3)
    sol = ncode.solve(decay, x0, 0.5, 2.0, cost=effort, method=method, **TIGHT)
    assert sol.cost.shape == (3,)
    for i in range(3):
        close(sol.cost[i].item(), effort_of_decay(x0[i].item(), 0.5, 2.0), rtol=1e-8)


def test_each_sample_pays_for_its_own_interval():
    t0, t1 = torch.tensor([0.0, 1.0], dtype=DOUBLE), torch.tensor([2.0, 1.5], dtype=DOUBLE)
    sol = ncode.solve(decay, double(1.0, 3.0), t0, t1, cost=effort, **TIGHT)
    close(sol.cost[0].item(), effort_of_decay(1.0, 0.0, 2.0), rtol=1e-8)
    close(sol.cost[1].item(), effort_of_decay(3.0, 1.0, 1.5), rtol=1e-8)


def test_backward_in_time_the_cost_changes_its_sign():
    there = ncode.solve(decay, double(1.0), 0.0, 1.0, cost=effort, **TIGHT)
    back = ncode.solve(decay, there.x, 1.0, 0.0, cost=effort, **TIGHT)
    close(back.cost, -there.cost, rtol=1e-8)


def test_the_cost_is_integrated_to_the_tolerance_even_where_the_state_is_easy():
    """The state stands still: a solver that looks only at it would take one step, and miss every peak."""
    sol = ncode.solve(
        lambda t, x, theta: 0 * x,
        double(1.0),
        0.0,
        20.0,
        cost=lambda t, x, theta: (20 * t).sin().square(),
        rtol=1e-6,
        atol=1e-6,
    )
    expected = 10 - math.sin(800) / 80
    close(sol.cost.item(), expected, rtol=1e-4)


def test_a_cost_does_not_change_the_state_beyond_the_tolerance():
    plain = ncode.solve(decay, double(1.0, 2.0), 0.0, 1.0, **TIGHT)
    priced = ncode.solve(decay, double(1.0, 2.0), 0.0, 1.0, cost=effort, **TIGHT)
    close(plain.x, priced.x, rtol=1e-8)
    assert plain.cost is None


@pytest.mark.parametrize("method", METHODS)
def test_fixed_steps_integrate_the_cost_with_the_method_s_own_weights(method):
    """A cost is one more state: the same number as a state with that slope."""
    sol = ncode.solve(decay, double(1.0), 0.0, 1.0, cost=lambda t, x, theta: x[:, 0] * t, method=method, dt=0.25)
    both = ncode.solve(
        lambda t, x, theta: torch.stack([-x[:, 0], x[:, 0] * t], 1),
        torch.tensor([[1.0, 0.0]], dtype=DOUBLE),
        0.0,
        1.0,
        method=method,
        dt=0.25,
    )
    close(sol.cost, both.x[:, 1])


@every_gradient
def test_the_cost_has_the_gradient_of_the_integral(gradient):
    """l = p x^2 + q theta along x = x0 e^((theta - 1) t), all differentiated by hand."""
    x0 = double(0.7).requires_grad_()
    theta = double(0.4).requires_grad_()
    p, q = (torch.tensor(v, dtype=DOUBLE, requires_grad=True) for v in (1.5, -0.6))
    t1 = torch.tensor(1.2, dtype=DOUBLE, requires_grad=True)
    sol = ncode.solve(
        lambda t, x, theta: (theta - 1) * x,
        x0,
        0.0,
        t1,
        theta=theta,
        cost=lambda t, x, theta: (p * x.square() + q * theta)[:, 0],
        gradient=gradient,
        **TIGHT,
    )
    got = torch.autograd.grad(sol.cost.sum(), [x0, theta, p, q, t1])
    rate = 2 * (0.4 - 1)
    grown = math.exp(rate * 1.2)
    area = (grown - 1) / rate  # of (x / x0)^2
    area_slope = (1.2 * grown * rate - (grown - 1)) / rate**2 * 2  # with respect to theta
    expected = (
        2 * 1.5 * 0.7 * area,
        1.5 * 0.49 * area_slope - 0.6 * 1.2,
        0.49 * area,
        0.4 * 1.2,
        1.5 * 0.49 * grown - 0.6 * 0.4,
    )
    close([float(grad.sum()) for grad in got], list(expected), rtol=1e-6)


@pytest.mark.slow
@every_gradient
def test_terminal_running_and_saved_losses_add_up(gradient):
    """The gradient of a sum of losses is the sum of their gradients, each asked for alone."""
    x0 = double(0.5, -1.0).requires_grad_()
    w = torch.tensor(0.8, dtype=DOUBLE, requires_grad=True)

    def parts():
        sol = ncode.solve(
            lambda t, x, theta: (w * x).sin() - t[:, None],
            x0,
            0.0,
            1.5,
            cost=lambda t, x, theta: w * x[:, 0].square(),
            save_at=[0.3, 0.9, 1.5],
            gradient=gradient,
            **TIGHT,
        )
        return sol.x.cos().sum(), sol.cost.square().sum(), sol.xs.sin().sum()

    together = torch.autograd.grad(sum(parts()), [x0, w])
    alone = [torch.autograd.grad(parts()[i], [x0, w]) for i in range(3)]
    close(list(together), [sum(grads) for grads in zip(*alone, strict=True)], rtol=1e-7)


@pytest.mark.slow
@every_gradient
def test_a_running_cost_equals_a_saved_loss_on_a_fine_grid(gradient):
    x0 = double(0.9).requires_grad_()
    ts = torch.linspace(0, 1, 51, dtype=DOUBLE)
    sol = ncode.solve(
        decay,
        x0,
        0.0,
        1.0,
        cost=lambda t, x, theta: x[:, 0].square(),
        save_at=ts,
        gradient=gradient,
        method="dopri8",
        **TIGHT,
    )
    integral = torch.trapezoid(sol.xs[..., 0].square(), ts, dim=1)
    close(sol.cost, integral, rtol=1e-3)
    close(
        torch.autograd.grad(sol.cost.sum(), x0, retain_graph=True)[0],
        torch.autograd.grad(integral.sum(), x0)[0],
        rtol=1e-3,
    )


@every_gradient
def test_parameters_of_the_cost_alone_get_their_gradient(gradient):
    """Nothing else wants a gradient, and the cost's parameter does not touch the state."""
    price = torch.tensor(2.0, dtype=DOUBLE, requires_grad=True)
    sol = ncode.solve(
        decay, double(1.0), 0.0, 1.0, cost=lambda t, x, theta: price * x[:, 0], gradient=gradient, **TIGHT
    )
    (grad,) = torch.autograd.grad(sol.cost.sum(), price)
    close(grad.item(), 1 - math.exp(-1), rtol=1e-7)


def test_the_cost_of_a_failed_sample_is_nan():
    sol = ncode.solve(
        lambda t, x, theta: x.square(),
        double(2.0, 0.1),
        0.0,
        1.0,
        cost=lambda t, x, theta: x[:, 0],
        throw=False,
        rtol=1e-6,
    )
    assert sol.cost.isnan().tolist() == [True, False]
    close(sol.cost[1].item(), -math.log(0.9), rtol=1e-5)


def test_a_cost_that_is_not_finite_fails_its_sample():
    sol = ncode.solve(
        decay,
        double(1.0, 2.0),
        0.0,
        1.0,
        cost=lambda t, x, theta: torch.where((x[:, 0] < 0.5) & (t > 0.3), torch.nan, x[:, 0]),
        throw=False,
        method="bosh3",
    )
    assert [status.name for status in sol.status] == ["NOT_FINITE", "OK"]
