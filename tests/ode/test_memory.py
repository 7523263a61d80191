import gc

import pytest
import torch
from torch import nn

import ncode

from .meter import Meter
from .systems import DOUBLE, GRADIENTS, Everything, close

STATES = {"keep": "states"}  # the memory of a kept graph: test_kept_graph.py
every_gradient = pytest.mark.parametrize("gradient", GRADIENTS)


def mlp():
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 4))


def peak(gradient, steps, **options):
    """The most that a solve with its backward holds at once."""
    net, x0 = mlp(), torch.randn(32, 4)
    with Meter() as meter:
        sol = ncode.solve(
            lambda t, x, theta: net(x), x0, 0.0, 1.0, dt=1 / steps, method="rk4", gradient=gradient, **STATES, **options
        )
        sol.x.sum().backward()
    return meter.peak


def test_the_meter_sees_what_lives_and_what_is_gone():
    with Meter() as meter:
        kept = torch.zeros(1000)
        torch.zeros(5000)
        view = kept[:10]
        assert meter.live == 4000
        assert meter.peak == 20000 + 4000
        assert sorted(meter.made) == [4000, 20000]
        del kept
        assert meter.live == 4000
        del view
        assert meter.live == 0


def test_the_meter_sees_what_a_graph_holds():
    x = torch.ones(1000, requires_grad=True)
    with Meter() as meter:
        y = x.exp().exp().sum()
        assert meter.live >= 8000
        y.backward()
        del y
        assert meter.live == 4000, "the gradient alone"


@pytest.mark.slow
def test_discrete_at_100_steps_holds_less_than_a_quarter_of_autograd():
    assert peak("discrete", 100) < peak("autograd", 100) / 4


@pytest.mark.slow
def test_adaptive_discrete_holds_less_than_a_quarter_of_autograd():
    def adaptive(gradient):
        net, x0 = mlp(), torch.randn(32, 4)
        with Meter() as meter:
            sol = ncode.solve(
                lambda t, x, theta: net(x) + (60 * t).sin()[:, None],
                x0,
                0.0,
                5.0,
                gradient=gradient,
                rtol=1e-4,
                **STATES,
            )
            sol.x.sum().backward()
        assert sol.stats.steps.min() >= 50
        return meter.peak

    assert adaptive("discrete") < adaptive("autograd") / 4


@pytest.mark.slow
def test_discrete_holds_one_state_a_step():
    state = 32 * 4 * 4
    growth = (peak("discrete", 200) - peak("discrete", 100)) / 100
    # Beside the state: its time, its step size and a few counts.
    assert state <= growth < 4 * state


def uneven(end, every):
    """Steps of all samples and peak bytes, where each sample takes a different number of steps."""
    x0, rates = torch.randn(8, 1000).requires_grad_(), torch.linspace(1, 3, 8)[:, None]
    with Meter() as meter:
        sol = ncode.solve(
            lambda t, x, theta: theta * x.cos() * (9 * t).sin()[:, None],
            x0,
            0.0,
            end,
            theta=rates,
            checkpoint_every=every,
            rtol=1e-4,
            **STATES,
        )
        sol.x.sum().backward()
    return int(sol.stats.steps.sum()), meter.peak


@pytest.mark.slow
@pytest.mark.parametrize(("every", "most"), [(1, 3.0), (10, 0.4)])
def test_discrete_holds_a_few_states_a_step_where_samples_differ(every, most):
    (few, low), (many, high) = uneven(3.0, every), uneven(12.0, every)
    assert many > 2 * few
    assert (high - low) / (many - few) < most * 1000 * 4


@pytest.mark.slow
def test_the_adjoint_holds_as_much_however_many_steps_it_takes():
    assert peak("adjoint", 100) < 1.2 * peak("adjoint", 25)


WIDE = 10_000


def solve_wide(steps, gradient, *, wide=True, adaptive=False, backward=True):
    theta = torch.randn(8, WIDE if wide else 4).requires_grad_()
    x0 = torch.randn(8, 4)
    end = steps / 10 if adaptive else 1.0
    with Meter() as meter:
        sol = ncode.solve(
            lambda t, x, theta: theta[:, :4] * x.cos() * (9 * t).sin()[:, None],
            x0,
            0.0,
            end,
            theta=theta,
            dt=None if adaptive else 1 / steps,
            gradient=gradient,
            **STATES,
        )
        if backward:
            sol.x.sum().backward()
    return meter


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("adaptive", [False, True])
def test_a_constant_control_is_not_copied_at_a_step(gradient, adaptive):
    size = 8 * WIDE * 4

    def copies(steps):
        meter = solve_wide(steps, gradient, adaptive=adaptive, backward=False)
        return sum(made >= size for made in meter.made)

    assert copies(10) == copies(50)


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["discrete", "adjoint"])
def test_a_constant_control_is_not_kept_at_a_step(gradient):
    """Backward must add up a gradient of that size, but holds a few at a time and no more with more steps."""
    size = 8 * WIDE * 4
    few, many = (solve_wide(steps, gradient).peak for steps in (10, 50))
    assert many - few < size
    assert many < solve_wide(50, gradient, wide=False).peak + 10 * size


@every_gradient
def test_the_error_of_x_does_not_depend_on_the_size_of_a_driven_control(gradient):
    """A control of 10,000 values that hardly moves must not hide the error of a state of one value."""

    def run(width):
        theta = {"rate": torch.full((2, 1), 8.0, dtype=DOUBLE), "wide": torch.full((2, width), 1e3, dtype=DOUBLE)}
        return ncode.solve(
            lambda t, x, theta: theta["rate"] * x.cos(),
            torch.tensor([[0.3], [2.0]], dtype=DOUBLE),
            0.0,
            4.0,
            theta=theta,
            feedback=lambda t, x, theta: {"rate": 0 * theta["rate"], "wide": 0 * theta["wide"]},
            gradient=gradient,
        )

    narrow, wide = run(1), run(10_000)
    close(wide.x, narrow.x, rtol=1e-6)
    assert torch.equal(wide.stats.steps, narrow.stats.steps)


def test_the_error_of_x_does_not_depend_on_the_size_of_a_constant_control():
    def run(theta):
        x0 = torch.tensor([[0.3], [2.0]], dtype=DOUBLE)
        return ncode.solve(lambda t, x, theta: 8 * x.cos(), x0, 0.0, 4.0, theta=theta)

    without, wide = run(None), run(torch.full((2, 10_000), 1e6, dtype=DOUBLE))
    assert torch.equal(wide.x, without.x)
    assert torch.equal(wide.stats.steps, without.stats.steps)


@pytest.mark.slow
@every_gradient
@pytest.mark.parametrize("backward", [True, False])
def test_memory_is_freed_with_the_solution_without_a_garbage_collection(gradient, backward):
    def use():
        system = Everything()
        sol = ncode.solve(**system.arguments(), gradient=gradient)
        if backward:
            system.loss(sol).backward()
        for parameter in system.inputs.values():
            parameter.grad = None

    use()  # what is made once for all solves
    gc.collect()
    gc.disable()
    try:
        with Meter() as meter:
            use()
            assert meter.peak > 0
            assert meter.live == 0
    finally:
        gc.enable()


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["discrete", "autograd"])
def test_dense_output_is_freed_with_its_solution(gradient):
    def use():
        x0 = torch.randn(4, 3, requires_grad=True)
        sol = ncode.solve(lambda t, x, theta: -x, x0, 0.0, 1.0, dense=True, gradient=gradient)
        sol(0.5).sum().backward()

    use()
    gc.collect()
    gc.disable()
    try:
        with Meter() as meter:
            use()
            assert meter.live == 0
    finally:
        gc.enable()


def test_a_failed_solve_is_freed_with_its_error():
    def use():
        with pytest.raises(ncode.SolveError):
            ncode.solve(lambda t, x, theta: x.square(), torch.full((2, 1), 2.0, requires_grad=True), 0.0, 1.0)

    use()
    with Meter() as meter:
        use()
        gc.collect()  # an exception and its traceback hold each other
        assert meter.live == 0


@pytest.mark.slow
def test_backward_frees_the_tape_though_the_solution_lives_on():
    net, x0 = mlp(), torch.randn(32, 4)
    with Meter() as meter:
        sol = ncode.solve(lambda t, x, theta: net(x), x0, 0.0, 1.0, dt=1 / 200, method="rk4", **STATES)
        before = meter.live
        sol.x.sum().backward()
        assert before > 200 * 32 * 4 * 4
        assert meter.live < before / 4
