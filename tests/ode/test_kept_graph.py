"""The graph of a short eager solve, kept for the "discrete" gradient: the gradient of the tape, and its memory."""

import gc

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import ncode
from ncode.ode.gradients.kept import HELD

from .meter import Meter
from .systems import DOUBLE, Counted, close, double

RATES = double(1.0, 100.0, 1.0, 1.0, 50.0, 3.0, 0.1, 0.2)
SOLVES = {
    "adaptive": {"rtol": 1e-5, "atol": 1e-7},
    "one step size": {"step": "batch"},
    "fixed": {"method": "rk4", "dt": 0.01},
    "low order": {"method": "bosh3", "rtol": 1e-2},
    "high order": {"method": "dopri8"},
    "saved times": {"save_at": [0.0, 0.01, 0.02, 0.5, 1.0]},
    "dense": {"dense": True},
}


class System(nn.Module):
    """Shared weights, a control of each sample, its feedback and a cost; samples take 4 to 40 steps."""

    def __init__(self, driven=True):
        super().__init__()
        torch.manual_seed(0)
        self.f, self.g, self.driven = nn.Linear(2, 2, dtype=DOUBLE), nn.Linear(2, 1, dtype=DOUBLE), driven
        self.x0 = torch.randn(8, 2, dtype=DOUBLE).requires_grad_()
        self.theta = RATES.clone().requires_grad_()

    def solve(self, **options):
        return ncode.solve(
            lambda t, x, theta: torch.tanh(self.f(x)) - theta * (x - t.cos()[:, None]),
            self.x0,
            0.0,
            1.0,
            theta=self.theta,
            feedback=(lambda t, x, theta: self.g(x) - theta) if self.driven else None,
            cost=lambda t, x, theta: x.square().sum(1),
            **options,
        )

    def gradients(self, sol, **options):
        loss = sol.x.square().sum() + sol.cost.sum()
        for more in ([] if sol.xs is None else [sol.xs.cos().sum()]) + ([sol(0.3).sum()] if sol.dense else []):
            loss = loss + more
        leaves = [self.x0, self.theta, *self.f.parameters(), *(self.g.parameters() if self.driven else ())]
        return torch.autograd.grad(loss, leaves, **options)


@pytest.mark.parametrize("name", SOLVES)
@pytest.mark.parametrize("driven", [True, False])
def test_the_graph_has_the_gradients_of_the_tape(name, driven):
    system, found = System(driven), {}
    for keep in ("graph", "states"):
        sol = system.solve(**SOLVES[name], keep=keep)
        found[keep] = sol.x.detach(), system.gradients(sol)
        assert bool((sol.stats.nfe_backward == 1).all()) == (keep == "graph"), "one evaluation, to check the function"
    close(found["graph"], found["states"], rtol=1e-9, atol=1e-12)
    assert name in ("one step size", "fixed") or sol.stats.steps.max() > 2 * sol.stats.steps.min()
    assert all(grad.abs().max() > 1e-6 for grad in found["graph"][1]), "a test of zeros"


def test_a_graph_can_be_used_twice():
    system = System()
    sol = system.solve()
    first = system.gradients(sol, retain_graph=True)
    close(system.gradients(sol), first, rtol=0, atol=0)
    assert sol.stats.nfe_backward[0] == 1


def test_a_rejected_step_without_a_finite_derivative_spoils_no_gradient():
    """Where a step goes below 0 it is rejected; there the square root, though masked, has the derivative nan."""
    weight, found = double(0.1).requires_grad_(), []

    def dynamics(t, x, theta):
        rate = torch.where(t > 0.5, 2000.0, 0.0)[:, None]
        return -rate * x - weight * torch.where(x > 0, x.sqrt(), 0.0)

    for keep in ("states", "graph"):
        x0 = double(1.0, 2.0).requires_grad_()
        sol = ncode.solve(dynamics, x0, 0.0, 0.502, keep=keep)
        assert sol.stats.rejected.min() > 0
        found.append(torch.autograd.grad(sol.x.sum(), [x0, weight]))
        assert sol.stats.nfe_backward.min() > 1, "the tape has taken over"
    assert all(grad.isfinite().all() for grad in found[0])
    close(found[1], found[0])


def test_a_hook_that_is_registered_after_the_solve_sees_the_sum_of_all_steps_once():
    system, seen = System(), []
    expected = system.gradients(system.solve())[2]
    sol = system.solve()
    handle = system.f.weight.register_hook(seen.append)
    close(system.gradients(sol)[2], expected, rtol=1e-9)
    handle.remove()
    assert len(seen) == 1
    close(seen[0], expected, rtol=1e-9)


def test_a_graph_is_not_kept_where_activations_are_checkpointed():
    system = System()
    expected = system.gradients(system.solve())
    sol = system.solve()
    x = checkpoint(lambda x0: ncode.solve(lambda t, x, _: system.f(x), x0, 0.0, 1.0).x, system.x0, use_reentrant=False)
    (through,) = torch.autograd.grad(x.sum(), system.x0)
    (plain,) = torch.autograd.grad(ncode.solve(lambda t, x, _: system.f(x), system.x0, 0.0, 1.0).x.sum(), system.x0)
    close(through, plain)
    close(system.gradients(sol), expected)


def test_a_state_that_stays_has_the_gradient_that_arrives():
    x0 = torch.ones(3, 2, requires_grad=True)
    sol = ncode.solve(lambda t, x, theta: torch.zeros_like(x), x0, 0.0, 1.0)
    sol.x.sum().backward()
    assert torch.equal(x0.grad, torch.ones(3, 2))
    (grad,) = torch.autograd.grad(ncode.solve(lambda t, x, theta: -x, x0, 0.0, torch.zeros(3)).x.sum(), x0)
    assert torch.equal(grad, torch.ones(3, 2))


def test_a_result_that_the_dynamics_remember_is_no_capture():
    net, memory = nn.Linear(2, 2, dtype=DOUBLE), []

    def dynamics(t, x, theta):
        memory[:] = [net(x)]
        return memory[0]

    x0 = torch.ones(3, 2, dtype=DOUBLE)
    ncode.solve(dynamics, x0, 0.0, 1.0, keep="graph").x.sum().backward()
    expected = torch.autograd.grad(ncode.solve(dynamics, x0, 0.0, 1.0, keep="states").x.sum(), net.weight)[0]
    close(net.weight.grad, expected)


# Memory


def wide(keep, steps=20, batch=64):
    """A solve whose graph is large compared with its states."""
    torch.manual_seed(0)
    net, x0 = nn.Sequential(nn.Linear(4, 256), nn.Tanh(), nn.Linear(256, 4)), torch.randn(batch, 4)
    field = Counted(lambda t, x, theta: net(x) + theta)
    control = torch.zeros(batch, 4, requires_grad=True)
    return ncode.solve(field, x0, 0.0, 1.0, theta=control, dt=1 / steps, method="rk4", keep=keep), control


def test_the_size_of_a_graph_is_estimated():
    before = HELD.bytes
    with Meter() as meter:
        sol, _ = wide("graph")
        estimate = HELD.bytes - before
        assert 0.8 * meter.live < estimate < 1.25 * meter.live
    del sol


def test_a_graph_that_does_not_fit_is_not_kept():
    peaks, found = {}, {}
    for keep in ("graph", "states", 2**20):
        with Meter() as meter:
            sol, control = wide(keep, steps=100)
            (found[keep],) = torch.autograd.grad(sol.x.sum(), control)
        peaks[keep] = meter.peak
    assert peaks[2**20] == peaks["states"] < peaks["graph"] / 8, "known from the number of steps"
    close(found[2**20], found["graph"], rtol=1e-5)
    close(found["states"], found["graph"], rtol=1e-5)


@pytest.mark.parametrize("name", ["adaptive", "saved times", "dense"])
def test_a_graph_that_grows_beyond_its_limit_is_dropped(name):
    system = System()
    sol = system.solve(**SOLVES[name], keep="graph")
    expected = system.gradients(sol)
    before = HELD.bytes
    with Meter() as meter:
        sol = system.solve(**SOLVES[name], keep=20_000)
        assert HELD.bytes == before
        assert meter.peak > 15_000
    close(system.gradients(sol), expected, rtol=1e-9, atol=1e-12)
    assert sol.stats.nfe_backward.max() > 20


def test_the_limit_is_one_for_all_solves_that_wait_for_backward():
    gc.collect()
    before, system = HELD.bytes, System()
    first = system.solve()
    limit = int(before + 1.5 * (HELD.bytes - before))
    sol = system.solve(keep=limit)
    system.gradients(sol)
    assert sol.stats.nfe_backward.max() > 1
    del first
    sol = system.solve(keep=limit)
    system.gradients(sol)
    assert sol.stats.nfe_backward.max() == 1


@pytest.mark.parametrize("backward", [True, False])
def test_memory_of_a_graph_is_given_back(backward):
    gc.collect()
    before, system = HELD.bytes, System()
    sol = system.solve()
    assert HELD.bytes > before
    if backward:
        system.gradients(sol)
    else:
        del sol
    assert HELD.bytes == before


@pytest.mark.parametrize("bad", ["all", 0, -1, 2.5, None, torch.ones(2)])
def test_other_values_of_keep_are_refused(bad):
    with pytest.raises(ncode.InputError, match="keep"):
        ncode.solve(lambda t, x, theta: -x, torch.ones(1, 1), 0.0, 1.0, keep=bad)
