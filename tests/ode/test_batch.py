import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ncode
from ncode import Status

from .systems import DOUBLE, GRADIENTS, Counted, Everything, close, decay, double, explode

every_gradient = pytest.mark.parametrize("gradient", GRADIENTS)


def speeds(t, x, theta):
    """Each sample turns at its own speed, so each wants its own steps."""
    return theta * torch.stack([x[:, 1], -x[:, 0]], 1)


def circle(*rates):
    x0 = torch.tensor([[1.0, 0.0]] * len(rates), dtype=DOUBLE)
    return x0, double(*rates)


def part(sol, rows):
    """What a solution holds of some samples."""
    return (
        sol.x[rows],
        sol.xs[rows],
        sol.cost[rows],
        sol.stats.steps[rows],
        sol.stats.rejected[rows],
        sol.stats.nfe[rows],
    )


def solve_circle(x0, theta, **options):
    return ncode.solve(
        speeds,
        x0,
        0.0,
        3.0,
        theta=theta,
        cost=lambda t, x, theta: x[:, 0] ** 2,
        save_at=torch.linspace(0, 3, 7, dtype=DOUBLE),
        **options,
    )


@pytest.mark.slow
@pytest.mark.parametrize("method", ["heun", "bosh3", "dopri5", "tsit5", "dopri8"])
def test_companions_change_a_sample_by_rounding_at_most(method):
    x0, theta = circle(0.1, 1.0, 30.0, 3.0, 0.5)
    together = solve_circle(x0, theta, method=method)
    for i in range(len(x0)):
        close(
            part(solve_circle(x0[i : i + 1], theta[i : i + 1], method=method), slice(0, 1)),
            part(together, slice(i, i + 1)),
        )


def test_companions_change_gradients_by_rounding_at_most():
    def grads(rows):
        x0, theta = (leaf[rows].requires_grad_() for leaf in circle(0.1, 1.0, 30.0, 3.0))
        sol = solve_circle(x0, theta)
        return torch.autograd.grad(sol.x.sum() + sol.cost.sum() + sol.xs.square().sum(), [x0, theta])

    whole = grads(torch.arange(4))
    for i in range(4):
        close(grads(torch.tensor([i])), tuple(grad[i : i + 1] for grad in whole))


@every_gradient
@pytest.mark.parametrize("dt", [None, 0.05], ids=["adaptive", "fixed"])
def test_a_companion_that_fails_changes_nothing_for_the_others(gradient, dt):
    def run(*starts):
        x0 = double(*starts).requires_grad_()
        w = torch.tensor(1.0, dtype=DOUBLE, requires_grad=True)
        ok = [i for i, start in enumerate(starts) if start < 1]
        sol = ncode.solve(
            lambda t, x, theta: w * x.square(),
            x0,
            0.0,
            1.0,
            dt=dt,
            save_at=[0.5, 1.0],
            cost=lambda t, x, theta: w * x[:, 0],
            gradient=gradient,
            throw=False,
        )
        loss = (sol.x[ok] + sol.xs[ok, 0]).sum() + sol.cost[ok].sum()
        return sol, ok, torch.autograd.grad(loss, [x0, w])

    alone, _, alone_grads = run(0.2, 0.5)
    both, ok, grads = run(0.2, 1e100, 0.5, 1e200)
    assert [status is Status.OK for status in both.status] == [True, False, True, False]
    close((both.x[ok], both.xs[ok], both.cost[ok]), (alone.x, alone.xs, alone.cost))
    close(grads[0][ok], alone_grads[0], rtol=1e-8)
    close(grads[1], alone_grads[1], rtol=1e-8)
    close(grads[0][[1, 3]], torch.zeros(2, 1, dtype=DOUBLE))


def test_a_stiff_companion_does_not_slow_the_others_down():
    x0, theta = circle(1.0, 50.0, 1.0)
    sol = solve_circle(x0, theta)
    steps = sol.stats.steps.tolist()
    assert steps[0] == steps[2]
    assert steps[1] > 10 * steps[0]
    assert steps[0] == solve_circle(x0[:1], theta[:1]).stats.steps.item()


def test_finished_samples_are_no_longer_evaluated():
    x0, theta = circle(*[1.0] * 15, 60.0)
    field = Counted(speeds)
    ncode.solve(field, x0, 0.0, 3.0, theta=theta)
    assert field.rows[0] == 16
    # Of all the rows that were evaluated, nearly all belong to the one sample that needs them.
    assert field.rows[-1] == 1
    assert field.rows.count(1) > 0.8 * field.calls


@pytest.mark.parametrize("every", [1, 4])
def test_finished_samples_are_not_evaluated_in_backward_either(every):
    x0, theta = circle(*[1.0] * 15, 60.0)
    field = Counted(speeds)
    sol = ncode.solve(field, x0.requires_grad_(), 0.0, 3.0, theta=theta, checkpoint_every=every, keep="states")
    field.rows.clear()
    sol.x.sum().backward()
    assert field.rows.count(1) > 0.8 * field.calls


@every_gradient
def test_each_sample_may_have_times_of_its_own(gradient):
    t0 = torch.tensor([0.0, 1.0, 2.0, 0.5], dtype=DOUBLE)
    t1 = torch.tensor([1.0, 1.5, -1.0, 0.5], dtype=DOUBLE)
    inside = torch.linspace(0, 1, 5, dtype=DOUBLE)
    save_at = t0[:, None] + (t1 - t0)[:, None] * inside
    x0 = double(1.0, 2.0, 3.0, 4.0).requires_grad_()
    sol = ncode.solve(decay, x0, t0, t1, save_at=save_at, gradient=gradient, rtol=1e-9, atol=1e-9)
    close(sol.x[:, 0], x0[:, 0] * (t0 - t1).exp(), rtol=1e-7)
    close(sol.xs[..., 0], x0 * (t0[:, None] - save_at).exp(), rtol=1e-7)
    close(sol.ts, save_at)
    assert sol.stats.steps[3] == 0
    (grad,) = torch.autograd.grad(sol.x.sum() + sol.xs.sum(), x0)
    close(grad[:, 0], (t0 - t1).exp() + (t0[:, None] - save_at).exp().sum(1), rtol=1e-6)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_a_batch_in_which_some_have_no_way_to_go_solves_the_others(ahead):
    t1 = torch.zeros(4, dtype=DOUBLE)
    t1[:ahead] = 1.0
    sol = ncode.solve(decay, double(1.0, 1.0, 1.0, 1.0), 0.0, t1, rtol=1e-9, atol=1e-9)
    close(sol.x[:, 0], (-t1).exp(), rtol=1e-7)
    assert (sol.stats.nfe > 0).tolist() == [i < ahead for i in range(4)]


def rows_of(kind, rates):
    """One rate per sample, held in different ways outside of the arguments."""
    if kind == "tensor":
        return lambda: rates
    if kind == "computed":
        computed = rates.clone().requires_grad_() * 1.0
        return lambda: computed
    if kind == "parameter":
        parameter = nn.Parameter(rates)
        return lambda: parameter
    if kind == "buffer of a module":
        module = nn.Module()
        module.register_buffer("rates", rates)
        return lambda: module.rates
    series = torch.stack([rates, rates])  # (T, batch, 1): rows are not its first dimension
    return lambda: series[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tensor", "computed", "parameter", "buffer of a module", "series"])
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_a_tensor_of_a_closure_may_have_a_row_a_sample(kind, gradient):
    x0, theta = circle(*[1.0] * 7, 60.0)
    rates = rows_of(kind, theta)
    x0.requires_grad_()
    grads = []
    for control in (theta, None):
        sol = ncode.solve(
            lambda t, x, theta: speeds(t, x, rates() if theta is None else theta),
            x0,
            0.0,
            1.0,
            theta=control,
            gradient=gradient,
            rtol=1e-6,
        )
        grads.append((sol.x.detach(), torch.autograd.grad(sol.x.square().sum() + sol.x.sum(), x0)[0]))
    close(*grads, rtol=1e-6, atol=1e-9)


def test_one_step_for_the_batch_is_one_step_for_the_batch():
    x0, theta = circle(1.0, 5.0, 20.0)
    seen = []

    def field(t, x, theta):
        seen.append(t)
        return speeds(t, x, theta)

    sol = ncode.solve(field, x0, 0.0, 2.0, theta=theta, step="batch")
    assert len(set(sol.stats.steps.tolist())) == 1
    assert len(set(sol.stats.rejected.tolist())) == 1
    # The first two evaluations, per sample, give the slope at the start and choose the first step.
    assert all(bool((t == t[0]).all()) for t in seen[2:])


def test_one_step_for_the_batch_is_chosen_as_if_the_batch_were_one_sample():
    """The mean error of equal samples is that of one of them, whose steps are those of a batch of one."""
    x0, theta = circle(3.0, 3.0, 3.0)
    together = solve_circle(x0, theta, step="batch")
    close(part(together, slice(0, 1)), part(solve_circle(x0[:1], theta[:1]), slice(0, 1)))
    # And of different ones it is the root mean square, as in one long state: torchdiffeq's rule.
    x0, theta = circle(3.0, 1.0, 9.0)
    together = ncode.solve(speeds, x0, 0.0, 2.0, theta=theta, step="batch")
    one = ncode.solve(
        lambda t, x, theta: speeds(t, x[0], theta[0])[None], x0[None], 0.0, 2.0, theta=theta[None], step="sample"
    )
    assert together.stats.steps[0].item() == pytest.approx(one.stats.steps.item(), abs=2)
    close(together.x, one.x[0], rtol=1e-2)


def test_one_step_for_the_batch_survives_a_sample_that_fails():
    sol = ncode.solve(explode, double(0.2, 1e200, 0.5), 0.0, 1.0, step="batch", throw=False, rtol=1e-8, atol=1e-8)
    assert [status.name for status in sol.status] == ["OK", "NOT_FINITE", "OK"]
    close(sol.x[[0, 2]], double(0.2 / 0.8, 1.0), rtol=1e-5)


def test_a_batch_is_solved_in_the_order_in_which_it_was_given():
    x0, theta = circle(0.1, 1.0, 30.0, 3.0, 0.5)
    turn = torch.tensor([3, 0, 4, 1, 2])
    close(part(solve_circle(x0[turn], theta[turn]), slice(None)), part(solve_circle(x0, theta), turn))


@pytest.mark.slow
@given(st.lists(st.floats(0.1, 40.0), min_size=1, max_size=7), st.integers(1, 5))
@settings(max_examples=15)
def test_any_mixture_of_samples_is_solved_as_each_alone(rates, every):
    def run(rates):
        x0, theta = circle(*rates)
        x0.requires_grad_()
        sol = ncode.solve(speeds, x0, 0.0, 1.0, theta=theta, save_at=[0.3, 1.0], checkpoint_every=every)
        (grad,) = torch.autograd.grad(sol.x.sum() + sol.xs.sin().sum(), x0)
        return sol.x.detach(), sol.xs.detach(), grad, sol.stats.steps, sol.stats.rejected, sol.stats.nfe

    together = run(rates)
    alone = [run([rate]) for rate in rates]
    close(together, tuple(torch.cat(leaves) for leaves in zip(*alone, strict=True)), rtol=1e-7, atol=1e-10)


def test_a_batch_of_one_is_a_batch():
    sol = ncode.solve(decay, double(1.0), 0.0, 1.0, rtol=1e-9, atol=1e-9)
    close(sol.x.item(), math.exp(-1), rtol=1e-7)


def test_the_same_solve_gives_the_same_bits():
    system = Everything()
    first, second = (ncode.solve(**system.arguments()) for _ in range(2))
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.xs, second.xs)


@pytest.mark.parametrize("layout", ["expanded", "transposed", "strided"])
def test_the_layout_of_x0_in_memory_does_not_matter(layout):
    plain = torch.randn(4, 3, dtype=DOUBLE)
    x0 = {
        "expanded": plain[:1].expand(4, 3),
        "transposed": plain.T.contiguous().T,
        "strided": torch.stack([plain, plain], 2)[:, :, 0],
    }[layout]
    theta = double(1.0, 1.0, 1.0, 40.0)
    same, other = (
        ncode.solve(lambda t, x, theta: -theta * x.sin(), start, 0.0, 2.0, theta=theta, save_at=[1.0])
        for start in (x0, x0.clone().contiguous())
    )
    close((same.x, same.xs), (other.x, other.xs))
