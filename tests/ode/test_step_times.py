"""`sol.steps`: the times of each sample's accepted steps."""

import pytest
import torch

import ncode

from .systems import DOUBLE, GRADIENTS, close, decay, double, explode


def rates(t, x, theta):
    return theta * x.cos()


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("span", [1.0, -1.0])
@pytest.mark.parametrize("options", [{}, {"method": "rk4", "dt": 0.1}, {"step": "batch"}])
def test_they_begin_at_t0_end_at_t1_and_are_as_many_as_the_steps(gradient, span, options):
    theta = double(1.0, 9.0, 30.0).requires_grad_()
    x0, t0 = torch.zeros(3, 1, dtype=DOUBLE), 0.3
    sol = ncode.solve(rates, x0, t0, t0 + span, theta=theta, gradient=gradient, save_steps=True, **options)
    there = ~sol.steps.isnan()
    assert (there.sum(1) - 1).tolist() == sol.stats.steps.tolist()
    assert sol.steps[:, 0].tolist() == [t0] * 3
    for times, count in zip(sol.steps, sol.stats.steps.tolist(), strict=True):
        assert times[count].item() == t0 + span
        assert times[count + 1 :].isnan().all()
        assert ((times[1 : count + 1] - times[:count]) * span > 0).all()
    if "dt" in options:
        close(sol.steps[0], t0 + span * torch.linspace(0, 1, 11, dtype=DOUBLE))


def test_they_are_those_of_a_callback_though_samples_are_dropped():
    theta = torch.cat([torch.full((9,), 0.01, dtype=DOUBLE), double(40.0, 7.0)[:, 0]])[:, None]
    seen = []
    sol = ncode.solve(
        rates,
        torch.zeros(11, 1, dtype=DOUBLE),
        0.0,
        1.0,
        theta=theta,
        save_steps=True,
        callback=lambda t, x, accepted: seen.append((t, accepted)),
    )
    for i in range(11):
        expected = [0.0, *(t[i].item() for t, accepted in seen if accepted[i])]
        assert sol.steps[i][: len(expected)].tolist() == expected


def test_they_can_be_saved_times_of_another_solve():
    first = ncode.solve(decay, double(1.0, 40.0), 0.0, 3.0, save_steps=True)
    second = ncode.solve(decay, double(1.0, 40.0), 0.0, 3.0, save_at=first.steps)
    close(second.xs[..., 0], double(1.0, 40.0) * (-first.steps).exp(), rtol=1e-2, equal_nan=True)
    for row, count in zip(second.xs, first.stats.steps.tolist(), strict=True):
        assert row[: count + 1].isfinite().all()


def test_they_end_where_a_sample_failed():
    sol = ncode.solve(explode, double(0.1, 2.0), 0.0, 1.0, save_steps=True, throw=False, max_steps=40)
    last = sol.steps[1][~sol.steps[1].isnan()][-1]
    assert last == sol.t[1]


def test_they_go_through_events_and_jumps():
    fall = ncode.Event(lambda t, x, theta: x[:, 0] - 0.5, terminal=False)
    sol = ncode.solve(decay, double(1.0, 0.6, 0.1), 0.0, 1.0, events=[fall], jump_ts=[0.25], save_steps=True)
    for i in range(3):
        times = sol.steps[i][~sol.steps[i].isnan()]
        assert (times[1:] > times[:-1]).all()
        assert times[0].item() == 0.0
        assert times[-1].item() == 1.0
        assert (times - 0.25).abs().min() < 1e-12
    close((sol.steps[0] - sol.events[0].ts[0, 0]).nan_to_num(1.0).abs().min().item(), 0.0, atol=1e-9)


def test_without_the_option_nothing_is_kept():
    assert ncode.solve(decay, double(1.0), 0.0, 1.0).steps is None


def test_a_block_returns_them():
    block = ncode.NCODE(ncode.dynamics.Linear(2))
    sol = block.solve(torch.ones(3, 2), save_steps=True)
    assert sol.steps.shape == (3, 1 + sol.stats.steps.max())
