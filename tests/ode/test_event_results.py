"""What a solution with events returns: control, dense output, saved values, times of steps and counts agree."""

import pytest
import torch

import ncode
from ncode import Event, InputError, Status

from .systems import DOUBLE, close


def vector(*values):
    return torch.tensor(values, dtype=DOUBLE)


ENDS = Event(lambda t, x, theta: x[:, 0] - 0.5)


def grow(t, x, theta):
    return theta * torch.ones_like(x)


def rotate(t, x, theta):
    return theta * torch.stack([x[:, 1], -x[:, 0]], 1)


def crossings(**options):
    return Event(lambda t, x, theta: x[:, 0] - 0.5, **options)


def solve_rotation(direction=1.0, **options):
    x0 = vector(1.0, 0.0, 0.3, 0.8, 2.0, 0.1).reshape(3, 2).requires_grad_()
    theta = vector(1.0, 1.3, 0.7)[:, None].requires_grad_()
    sol = ncode.solve(rotate, x0, 0.0, 6.0 * direction, theta=theta, **options)
    return sol, (x0, theta)


EVENTS = {
    "terminal": crossings(),
    "recorded": crossings(terminal=False),
    "with a reset": crossings(terminal=False, reset=lambda t, x, theta: (x * vector(1.0, 0.5), 1.1 * theta)),
}


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_steps_are_as_many_as_were_accepted_and_end_at_the_events(name, direction):
    sol, _ = solve_rotation(direction, events=EVENTS[name], save_steps=True)
    assert (~sol.steps.isnan()).sum(1).tolist() == (sol.stats.steps + 1).tolist()
    ts = sol.events[0].ts.detach()
    distances = (sol.steps[:, :, None] - ts[:, None]).abs().nan_to_num(1.0).amin(1)
    assert (distances[~ts.isnan()] == 0).all()
    last = sol.steps.nan_to_num(0.0).abs().amax(1)
    assert torch.equal(last, sol.t.abs())


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_dense_output_reaches_the_events_and_agrees_with_saved_values(name, direction):
    sol, inputs = solve_rotation(direction, events=EVENTS[name], dense=True)
    close(sol(sol.t[:, None])[:, 0], sol.x, rtol=0.0, atol=1e-8)
    ts = sol.events[0].ts.detach()
    at_events = sol(torch.where(ts.isnan(), 0.0, ts))[..., 0]
    close(at_events[~ts.isnan()], torch.full_like(ts[~ts.isnan()], 0.5), rtol=0.0, atol=1e-5)
    times = torch.linspace(0.0, 0.999999, 400, dtype=DOUBLE) * sol.t.detach()[:, None]
    saved, others = solve_rotation(direction, events=EVENTS[name], save_at=times)
    close(sol(times), saved.xs, rtol=1e-12, atol=1e-12)
    mine, expected = (
        torch.autograd.grad(xs.sin().sum(), leaves) for xs, leaves in ((sol(times), inputs), (saved.xs, others))
    )
    close(mine, expected, rtol=1e-9, atol=1e-9)


def test_dense_output_near_an_event_is_as_exact_as_elsewhere():
    """At a loose tolerance the Newton step to the event is long enough to be seen."""
    sol, _ = solve_rotation(events=ENDS, dense=True)
    exact, _ = solve_rotation(events=ENDS, dense=True, rtol=1e-10, atol=1e-12)
    without, _ = solve_rotation(dense=True)
    times = torch.linspace(0.0, 0.999, 300, dtype=DOUBLE) * sol.t.detach()[:, None]
    error, usual = ((it(times) - exact(times)).abs().max() for it in (sol, without))
    assert error <= 1.5 * usual


@pytest.mark.parametrize("order", [1, -1])
def test_a_sample_that_ends_at_an_event_ends_before_resets_of_its_control(order):
    reset = crossings(terminal=False, reset=lambda t, x, theta: (x - 0.5, 7 * theta))
    x0, theta = torch.zeros(2, 1, dtype=DOUBLE), torch.ones(2, 1, dtype=DOUBLE)
    sol = ncode.solve(grow, x0, 0.0, 1.0, theta=theta, events=[reset, ENDS][::order], save_at=[0.25, 0.5])
    close(sol.x, torch.full_like(x0, 0.5))
    assert torch.equal(sol.theta, theta)
    assert torch.equal(sol.thetas[:, 0], theta)


def test_a_sample_with_too_many_events_keeps_the_control_that_belongs_to_its_state():
    reset = crossings(terminal=False, max_count=2, reset=lambda t, x, theta: (x - 0.5, 2 * theta))
    x0, theta = torch.zeros(1, 1, dtype=DOUBLE), torch.ones(1, 1, dtype=DOUBLE)
    sol = ncode.solve(grow, x0, 0.0, 9.0, theta=theta, events=reset, keep_last=True, throw=False)
    assert sol.status == (Status.MAX_EVENTS,)
    close(sol.x, torch.full_like(x0, 0.5))  # before the third reset
    close(sol.theta, 4 * theta)


@pytest.mark.parametrize("compile", [False, True])
def test_a_reset_to_nan_is_a_failure_of_its_sample(compile, traced):
    reset = crossings(reset=lambda t, x, theta: torch.where(x > 0.4, torch.nan, x))
    x0, theta = torch.zeros(2, 1, dtype=DOUBLE), vector(1.0, 0.1)[:, None]
    sol = ncode.solve(grow, x0, 0.0, 1.0, theta=theta, events=reset, throw=False, compile=compile)
    assert sol.status == (Status.NOT_FINITE, Status.OK)


def test_evaluations_of_a_step_that_is_taken_again_are_counted():
    counted = [0]

    def stiff(t, x, theta):
        counted[0] += 1
        return torch.stack([-1e4 * (x[:, 0] - torch.cos(t)), torch.ones_like(t)], 1)

    event = Event(lambda t, x, theta: x[:, 1] - 2.0)
    options = {"method": "auto", "max_steps": 300}
    sol = ncode.solve(stiff, vector(1.0, 0.0)[None], 0.0, 3.0, events=event, **options)
    seen = counted[0]
    counted[0] = 0
    whole = ncode.solve(stiff, vector(1.0, 0.0)[None], 0.0, 2.0, **options)
    # A Jacobian and the slope beside it are one evaluation; checks at the start are not counted in either.
    assert int(sol.stats.nfe) - int(whole.stats.nfe) <= seen - counted[0] + 1
    assert int(sol.stats.nfe) > int(whole.stats.nfe)


def test_a_kernel_has_no_events_and_says_so():
    arguments = {"x0": torch.zeros(2, 1), "t0": 0.0, "t1": 1.0, "theta": torch.ones(2, 1), "events": ENDS}
    assert ncode.explain(grow, compile="kernel", **arguments).why_not == {"kernel": "events are given"}
    with pytest.raises(InputError, match='compile="kernel" does not fit: events are given'):
        ncode.solve(grow, compile="kernel", **arguments)
    with pytest.raises(InputError, match=r"must be an ncode\.Event"):
        ncode.explain(grow, compile=True, **{**arguments, "events": 5})


def test_resets_at_one_time_are_applied_in_order_and_none_where_one_ends_the_sample():
    def meets(reset=None):
        return Event(lambda t, x, theta: x[:, 0] - 1.0, reset=reset)

    add, double, end = meets(lambda t, x, theta: x + 10), meets(lambda t, x, theta: 2 * x), meets()
    for events, x, t in (([add, double], 23.0, 2.0), ([double, add], 13.0, 2.0), ([add, end], 1.0, 1.0)):
        sol = ncode.solve(lambda t, x, theta: torch.ones_like(x), vector(0.0)[None], 0.0, 2.0, events=events)
        torch.testing.assert_close((sol.x.item(), sol.t.item()), (x, t))
        assert [int(record.counts) for record in sol.events] == [1, 1]
