import math

import pytest
import torch
from torch import nn

import ncode
from ncode.costs import ControlNorm, ControlSpeed, JacobianNorm, KineticEnergy, System

from .differences import assert_gradients_agree

DOUBLE = torch.float64
EVERY = [KineticEnergy(0.5), JacobianNorm(0.3), ControlNorm(0.2), ControlSpeed(0.7)]


def decay(rate=2.0):
    return ncode.NCODE(ncode.dynamics.Function(lambda t, x, theta: -rate * x), rtol=1e-9, atol=1e-12)


def loops():
    trunk = nn.Sequential(nn.Linear(2, 3), nn.Tanh())
    return ncode.ClosedLoop(ncode.control.Feedback(trunk, scale=1.0))


def test_kinetic_energy_of_a_decay_is_known():
    x = torch.tensor([[1.0, 2.0]], dtype=DOUBLE)
    cost = decay().solve(x, cost=KineticEnergy(0.5)).cost
    # |dx/dt|^2 = 4 |x0|^2 exp(-4 t)
    torch.testing.assert_close(cost, torch.tensor([0.5 * 5.0 * (1 - math.exp(-4))], dtype=DOUBLE))


def test_the_kinetic_energy_of_a_complex_state_is_real():
    x0 = torch.tensor([[1.0 + 0.0j, 0.0 + 2.0j]])

    def turn(t, x, theta):
        return 1j * x

    sol = ncode.solve(turn, x0, 0.0, 1.0, cost=KineticEnergy().on(System(turn), x0), rtol=1e-6)
    torch.testing.assert_close(sol.cost, torch.tensor([5.0]), rtol=1e-4, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("noise", ["rademacher", "gaussian"])
def test_the_jacobian_norm_is_right_on_average(noise):
    w = torch.randn(3, 3, dtype=DOUBLE)
    block = ncode.NCODE(ncode.dynamics.Function(lambda t, x, theta: x @ w.T))
    x = torch.randn(2, 3, dtype=DOUBLE)
    cost = block.solve(x, cost=JacobianNorm(samples=1000, noise=noise)).cost
    torch.testing.assert_close(cost, w.square().sum().expand(2), rtol=0.2, atol=0.0)


def test_noise_is_drawn_once_a_solve_and_follows_the_seed():
    block = ncode.NCODE(ncode.dynamics.MLP(3, controlled=())).double()
    x, costs = torch.randn(2, 3, dtype=DOUBLE), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        costs.append(block.solve(x, cost=JacobianNorm(noise="gaussian")).cost)
    assert torch.equal(costs[0], costs[1])
    assert not torch.equal(costs[0], costs[2])


def test_the_jacobian_norm_of_a_field_that_ignores_x_is_zero():
    block = ncode.NCODE(ncode.dynamics.Function(lambda t, x, theta: theta, (2,)))
    assert block.solve(torch.ones(3, 2), cost=JacobianNorm()).cost.tolist() == [0.0] * 3


@pytest.mark.parametrize(
    ("controller", "moves"),
    [
        (ncode.Static, False),
        (lambda: ncode.OpenLoop(nn.Linear(2, 3)), False),
        (lambda: ncode.TimeVarying("fourier"), True),
        (loops, True),
    ],
)
def test_control_speed_is_zero_where_the_control_stands_still(controller, moves):
    block = ncode.NCODE(ncode.dynamics.MLP(2), controller())
    cost = block.solve(torch.ones(3, 2), cost=ControlSpeed()).cost
    assert bool((cost > 0).all()) == moves


@pytest.mark.parametrize("controller", [lambda: ncode.TimeVarying("polynomial", 3), loops])
def test_control_speed_is_the_derivative_of_the_control(controller):
    block = ncode.NCODE(ncode.dynamics.MLP(2, hidden=2), controller(), rtol=1e-8).double()
    x, ts = torch.randn(2, 2, dtype=DOUBLE), torch.linspace(0, 1, 401, dtype=DOUBLE)
    sol = block.solve(x, cost=ControlSpeed(), save_at=ts)
    speed = sum((theta.diff(dim=1) * 400).square().flatten(2).sum(2) for theta in sol.thetas.values())
    torch.testing.assert_close(sol.cost, speed.mean(1), rtol=1e-3, atol=1e-6)


def test_the_control_norm_of_a_constant_control_is_its_square():
    block, x = ncode.NCODE(ncode.dynamics.MLP(2)), torch.ones(3, 2)
    expected = sum(p.square().sum() for p in block.parameters())
    torch.testing.assert_close(block.solve(x, cost=ControlNorm(2.0)).cost, (2 * expected).expand(3))


def test_costs_of_a_list_add_up_and_ones_own_see_the_control_by_name():
    block, x = ncode.NCODE(ncode.dynamics.MLP(2), loops(), rtol=1e-7).double(), torch.randn(3, 2, dtype=DOUBLE)

    def own(t, x, theta):
        return theta["bias_2"].sum(1) + x[:, 0]

    parts = [block.solve(x, cost=part).cost for part in (KineticEnergy(), own)]
    both = block.solve(x, cost=[KineticEnergy(), own]).cost
    torch.testing.assert_close(both, parts[0] + parts[1], rtol=1e-5, atol=1e-6)


class Priced:
    """A block whose result is its cost."""

    def __init__(self, block, cost):
        self.block, self.cost = block, cost
        self.zero_grad, self.named_parameters = block.zero_grad, block.named_parameters

    def solve(self, x, **options):
        torch.manual_seed(3)
        sol = self.block.solve(x, cost=self.cost, **options)
        return type("Priced", (), {"x": sol.cost + 0 * sol.x.sum()})


every_cost = pytest.mark.parametrize(
    "cost", [*EVERY, EVERY], ids=lambda c: "all" if isinstance(c, list) else type(c).__name__
)


@pytest.mark.slow
@every_cost
def test_gradients_of_a_cost_agree_with_finite_differences(cost):
    block = ncode.NCODE(ncode.dynamics.MLP(2, hidden=1), loops(), method="rk4", dt=0.5).double()
    assert_gradients_agree(Priced(block, cost), torch.randn(2, 2, dtype=DOUBLE), rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@every_cost
def test_all_three_gradients_of_a_cost_agree(cost):
    block = ncode.NCODE(ncode.dynamics.MLP(2, hidden=2), loops(), rtol=1e-8, atol=1e-10).double()
    x, grads = torch.randn(2, 2, dtype=DOUBLE), []
    for gradient in ("discrete", "adjoint", "autograd"):
        block.zero_grad()
        Priced(block, cost).solve(x, gradient=gradient).x.sum().backward()
        grads.append([p.grad.clone() for p in block.parameters()])
    for other in grads[1:]:
        for mine, theirs in zip(grads[0], other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-7)


def test_a_cost_that_asks_for_the_velocity_does_not_double_the_evaluations():
    calls = []

    def f(t, x, theta):
        calls.append(None)
        return -x

    block, x = ncode.NCODE(ncode.dynamics.Function(f), method="rk4", dt=0.25), torch.ones(2, 1)
    block(x)
    without = len(calls)
    block.solve(x, cost=KineticEnergy())
    assert len(calls) == 2 * without


def test_a_cost_works_with_solve_itself():
    def f(t, x, theta):
        return theta["rate"] * x

    x, theta = torch.ones(2, 1), {"rate": -torch.ones(2, 1)}
    for cost, expected in ((KineticEnergy(), (1 - math.exp(-2)) / 2), (ControlNorm(), 1.0), (ControlSpeed(), 0.0)):
        sol = ncode.solve(f, x, 0.0, 1.0, theta=theta, cost=cost.on(System(f), x), rtol=1e-6)
        torch.testing.assert_close(sol.cost, torch.full((2,), expected), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("wrong", [[], 3, [KineticEnergy(), "kinetic"]])
def test_what_is_no_cost_is_refused(wrong):
    with pytest.raises(ncode.InputError, match="cost"):
        decay().solve(torch.ones(1, 1), cost=wrong)


@pytest.mark.parametrize(
    "make",
    [lambda: KineticEnergy(-1.0), lambda: JacobianNorm(samples=0), lambda: JacobianNorm(noise="gausian")],
)
def test_what_makes_no_regulariser_is_refused(make):
    with pytest.raises(ncode.InputError):
        make()
