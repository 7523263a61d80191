"""Events: where a function of the state changes its sign, what follows, and the gradients of both."""

import math

import pytest
import torch
from torch import nn

import ncode
from ncode import Event, InputError, SolveError, Status
from ncode.ode.root_finding import find_root, step_bracket

from .systems import DOUBLE, GRADIENTS, close, decay, double

TIGHT = {"rtol": 1e-9, "atol": 1e-11}
BALLS = 7


def fall(t, x, theta):
    """Height and speed under the gravity theta[0]."""
    return torch.stack([x[:, 1], -theta[0]], 1)


def bounce(t, x, theta):
    """Turn the speed, less the loss theta[1]."""
    return torch.stack([torch.zeros_like(x[:, 0]), -theta[1] * x[:, 1]], 1)


def height(t, x, theta):
    return x[:, 0]


def rotate(t, x, theta):
    return torch.stack([x[:, 1], -x[:, 0]], 1)


def balls(count=BALLS):
    generator = torch.Generator().manual_seed(0)
    gravity, drop, loss = torch.rand(3, count, dtype=DOUBLE, generator=generator).unbind()
    return [it.requires_grad_() for it in (9 + gravity, 1 + drop, 0.6 + 0.3 * loss)]


def bounces(gravity, drop, loss, count=5):
    """The closed form of the times at which a ball meets the ground."""
    times, speed = [(2 * drop / gravity).sqrt()], (2 * gravity * drop).sqrt()
    for _ in range(count - 1):
        speed = speed * loss
        times.append(times[-1] + 2 * speed / gravity)
    return torch.stack(times, 1)


def start(drop):
    return torch.stack([drop, torch.zeros_like(drop)], 1)


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("method", ["dopri5", "tsit5", "bosh3"])
def test_bouncing_balls_are_those_of_the_closed_form(gradient, method):
    gravity, drop, loss = inputs = balls()
    event = Event(height, direction=-1, reset=bounce, max_count=5)
    sol = ncode.solve(
        fall, start(drop), 0.0, 100.0, theta=(gravity, loss), events=event, method=method, gradient=gradient, **TIGHT
    )
    expected = bounces(*inputs)
    (found,) = sol.events
    assert found.counts.tolist() == [5] * BALLS
    close(found.ts, expected, atol=1e-8)
    close(sol.t, expected[:, -1], atol=1e-8)
    weights = torch.linspace(0.5, 2, 5, dtype=DOUBLE)
    got = torch.autograd.grad((found.ts * weights).sum(), inputs)
    close(got, torch.autograd.grad((expected * weights).sum(), inputs), rtol=1e-7, atol=1e-8)


def test_the_state_after_events_has_the_gradient_of_the_closed_form():
    """Between the second and the third bounce, where each gradient passes two resets and two event times."""
    gravity, drop, loss = inputs = balls()
    event = Event(height, terminal=False, direction=-1, reset=bounce)
    times = bounces(*inputs)
    t1 = (times[:, 1] + 0.4 * (times[:, 2] - times[:, 1])).detach()
    sol = ncode.solve(fall, start(drop), 0.0, t1, theta=(gravity, loss), events=event, **TIGHT)
    speed = (2 * gravity * drop).sqrt() * loss**2
    since = t1 - times[:, 1]
    expected = torch.stack([speed * since - gravity * since**2 / 2, speed - gravity * since], 1)
    close(sol.x, expected, atol=1e-9)
    for column in range(2):
        got = torch.autograd.grad(sol.x[:, column].sum(), inputs, retain_graph=True)
        close(got, torch.autograd.grad(expected[:, column].sum(), inputs, retain_graph=True), rtol=1e-7, atol=1e-8)


def test_an_event_with_a_reset_goes_on_unless_told_otherwise():
    """A ball between walls at 0 and 1 with speed 1 meets one at 0.5, 1.5, 2.5, ..."""

    def move(t, x, theta):
        return torch.stack([x[:, 1], torch.zeros_like(t)], 1)

    def walls(t, x, theta):
        return x[:, 0] * (1 - x[:, 0])

    def turn(t, x, theta):
        return x * torch.tensor([1.0, -1.0], dtype=DOUBLE)

    x0 = torch.tensor([[0.5, 1.0]], dtype=DOUBLE)
    for options, count, reached in [
        ({}, 4, 4.0),
        ({"max_count": 2}, 2, 1.5),
        ({"terminal": True}, 1, 0.5),
        ({"terminal": False, "max_count": 9}, 4, 4.0),
    ]:
        event = Event(walls, direction=-1, reset=turn, **options)
        sol = ncode.solve(move, x0, 0.0, 4.0, events=event, max_dt=0.4)
        assert sol.events[0].counts.tolist() == [count]
        close(sol.t, torch.tensor([reached], dtype=DOUBLE), atol=1e-9)
        assert sol.events[0].ended.tolist() == [reached < 4.0]


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_gradients_of_nonlinear_events_agree_with_finite_differences(gradient):
    """The event's level, a weight of the dynamics, x0 and t0, through a reset, at a time-dependent system."""
    weight, level = torch.tensor(1.3, dtype=DOUBLE), torch.tensor(0.2, dtype=DOUBLE)
    x0, t0 = torch.tensor([[1.0, 0.1], [0.8, -0.3]], dtype=DOUBLE), torch.tensor(0.1, dtype=DOUBLE)
    inputs = [weight, level, x0, t0]

    def loss(weight, level, x0, t0):
        def dynamics(t, x, theta):
            return torch.stack([x[:, 1], -weight * torch.sin(x[:, 0]) + 0.1 * torch.cos(t)], 1)

        event = Event(
            lambda t, x, theta: x[:, 0].square() - level * (1 + 0.1 * t),
            terminal=False,
            direction=-1,
            reset=lambda t, x, theta: x * torch.stack([torch.ones_like(t), -0.8 + 0.05 * t], 1),
        )
        options = {"rtol": 1e-11, "atol": 1e-12, "gradient": gradient}
        sol = ncode.solve(dynamics, x0, t0, 3.0, events=event, save_at=[1.5, 2.9], **options)
        assert sol.events[0].counts.min() >= 1
        return sol.x.square().sum() + sol.xs.sum() + sol.events[0].ts.nansum()

    leaves = [it.clone().requires_grad_() for it in inputs]
    got = torch.autograd.grad(loss(*leaves), leaves)
    step = 1e-6
    for number, tensor in enumerate(inputs):
        numeric = torch.zeros_like(tensor).flatten()
        for i in range(tensor.numel()):
            ends = []
            for sign in (1, -1):
                moved = [it.clone() for it in inputs]
                moved[number].view(-1)[i] += sign * step
                with torch.no_grad():
                    ends.append(loss(*moved))
            numeric[i] = (ends[0] - ends[1]) / (2 * step)
        close(got[number].flatten(), numeric, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize(("direction", "expected"), [(0, [1, 3, 5, 7]), (-1, [1, 5]), (1, [3, 7])])
def test_a_direction_selects_the_changes_of_sign(direction, expected):
    """cos(t) meets 0 at odd multiples of pi / 2."""
    event = Event(height, terminal=False, direction=direction)
    sol = ncode.solve(rotate, torch.tensor([[1.0, 0.0]], dtype=DOUBLE), 0.0, 12.0, events=event, **TIGHT)
    close(sol.events[0].ts[0], torch.tensor(expected, dtype=DOUBLE) * math.pi / 2, atol=1e-8)
    close(sol.x[0, 0], torch.tensor(math.cos(12.0), dtype=DOUBLE), atol=1e-7)


@pytest.mark.parametrize("method", ["bosh3", "dopri5", "rodas5p"])
@pytest.mark.parametrize("direction", [0, -1])
@pytest.mark.parametrize("end", [6.0, -6.0])
def test_each_crossing_counts_once(method, direction, end):
    """Re(z) of dz/dt = (a + i w) z is 0 where its angle is: after an event, rounding is no crossing of its own."""
    a, w, angle = torch.rand(3, 200, dtype=DOUBLE).unbind()
    a, w, angle = a - 0.5, 0.5 + 3 * w, 6 * angle

    def spiral(t, x, theta):
        return torch.stack([a * x[:, 0] - w * x[:, 1], w * x[:, 0] + a * x[:, 1]], 1)

    event = Event(height, terminal=False, direction=direction)
    x0 = torch.stack([angle.cos(), angle.sin()], 1)
    sol = ncode.solve(spiral, x0, 0.0, end, events=event, method=method, rtol=1e-6, max_dt=0.4)
    turns = (torch.arange(-20, 20) + 0.5) * math.pi
    times = (turns - angle[:, None]) / w[:, None] / end
    falls = torch.sin(turns) * end > 0
    expected = ((times > 0) & (times < 1) & (falls | (direction == 0))).sum(1)
    assert sol.events[0].counts.tolist() == expected.tolist()


def test_events_work_backward_in_time():
    event = Event(height, terminal=False)
    x0 = torch.tensor([[math.cos(12.0), -math.sin(12.0)]], dtype=DOUBLE)
    sol = ncode.solve(rotate, x0, 12.0, 0.0, events=event, **TIGHT)
    close(sol.events[0].ts[0], torch.tensor([7, 5, 3, 1], dtype=DOUBLE) * math.pi / 2, atol=1e-8)


@pytest.mark.parametrize("options", [{"method": "rk4", "dt": 0.01}, {"method": "dopri8", **TIGHT}, {"rtol": 1e-6}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_terminal_event_ends_each_sample_at_its_own_time(options, dtype):
    """exp(-t) x0 = 1/2 at log(2 x0)."""
    x0 = torch.tensor([[1.0], [2.0], [4.0], [0.1]], dtype=dtype)
    event = Event(lambda t, x, theta: x[:, 0] - 0.5)
    sol = ncode.solve(decay, x0, 0.0, 3.0, events=event, **options)
    expected = (2 * x0[:3, 0]).log().double()
    close(sol.t[:3], expected, atol=1e-5 if dtype == torch.float32 else 1e-6)
    close(sol.x[:3, 0], torch.full_like(x0[:3, 0], 0.5), atol=1e-6)
    assert sol.events[0].counts.tolist() == [1, 1, 1, 0]
    assert sol.t[3] == 3.0
    assert all(status is Status.OK for status in sol.status)


def test_saved_times_and_dense_output_are_on_their_side_of_a_reset():
    """x falls by 1 per time and is lifted by 1 at every 0: a sawtooth. Before the reset at a time, after it behind."""
    event = Event(height, terminal=False, reset=lambda t, x, theta: x + 1)
    times = [0.0, 0.25, 0.5, 0.75, 1.5, 2.0, 2.6]
    x0 = double(0.5, 0.75)
    sol = ncode.solve(lambda t, x, theta: -torch.ones_like(x), x0, 0.0, 3.0, events=event, save_at=times, dense=True)
    rows = [[0.5, 0.25, 0.0, 0.75, 0.0, 0.5, 0.9], [0.75, 0.5, 0.25, 0.0, 0.25, 0.75, 0.15]]
    expected = torch.tensor(rows, dtype=DOUBLE)
    close(sol.xs[:, :, 0], expected, atol=1e-9)
    close(sol(torch.tensor(times))[:, :, 0], expected, atol=1e-6)
    close(sol.events[0].ts, torch.tensor([[0.5, 1.5, 2.5], [0.75, 1.75, 2.75]]).double(), atol=1e-12)


@pytest.mark.parametrize("gradient", ["discrete", "autograd"])
@pytest.mark.parametrize("method", ["bosh3", "rodas5p"])
def test_dense_output_between_resets_has_the_gradient_of_saved_values(method, gradient):
    """The step that ends at a bounce begins later if the bounce before it does."""
    times = torch.linspace(0.1, 1.7, 17, dtype=DOUBLE)
    options = {"method": method, "gradient": gradient, "events": Event(height, direction=-1, reset=bounce)}
    found = []
    for how in ({"dense": True}, {"save_at": times}):
        gravity, drop, loss = inputs = balls()
        sol = ncode.solve(fall, start(drop), 0.0, 1.7, theta=(gravity, loss), **options, **how, **TIGHT)
        values = sol(times) if "dense" in how else sol.xs
        weights = torch.linspace(1, 2, values.numel(), dtype=DOUBLE).view_as(values)
        found.append(torch.autograd.grad((weights * values).sum(), inputs))
    close(found[0], found[1], rtol=1e-8)


def test_nothing_is_known_after_a_terminal_event():
    event = Event(lambda t, x, theta: x[:, 0] - 0.5)
    sol = ncode.solve(decay, double(1.0, 0.1), 0.0, 2.0, events=event, save_at=[0.5, 1.0, 2.0], dense=True, **TIGHT)
    assert sol.xs[0, 1:].isnan().all()
    assert not sol.xs[0, 0].isnan()
    assert not sol.xs[1].isnan().any()
    assert sol(1.5)[0].isnan()
    assert not sol(1.5)[1].isnan()


def test_several_events_are_recorded_apart_and_the_first_one_counts():
    """One event is met on the way, another ends the sample."""
    half, quarter = (Event(lambda t, x, theta, v=v: x[:, 0] - v, terminal=v == 0.25) for v in (0.5, 0.25))
    sol = ncode.solve(decay, double(1.0, 0.4), 0.0, 9.0, events=[quarter, half], **TIGHT)
    close(sol.t, torch.tensor([4.0, 1.6]).double().log(), atol=1e-7)
    assert sol.events[0].counts.tolist() == [1, 1]
    assert sol.events[1].counts.tolist() == [1, 0]
    close(sol.events[1].ts[0, 0], torch.tensor(2.0).double().log(), atol=1e-8)
    assert sol.events[1].ts[1].isnan().all()


def test_events_at_the_same_time_all_happen():
    first, second = (Event(lambda t, x, theta, by=by: by * (x[:, 0] - 0.5), terminal=False) for by in (1.0, -3.0))
    sol = ncode.solve(decay, double(1.0), 0.0, 2.0, events=(first, second), **TIGHT)
    assert [it.counts.item() for it in sol.events] == [1, 1]
    close(sol.events[0].ts, sol.events[1].ts)


def test_resets_at_the_same_time_follow_each_other():
    """The first sets the control, the second x; the control stays as the first has set it."""
    level = lambda t, x, theta: x[:, 0] - 0.5  # noqa: E731
    first = Event(level, terminal=False, reset=lambda t, x, theta: (x, theta * 0))
    second = Event(level, terminal=False, reset=lambda t, x, theta: x + 1 + theta)
    field = lambda t, x, theta: -theta  # noqa: E731
    sol = ncode.solve(field, double(1.0), 0.0, 2.0, theta=double(1.0), events=[first, second])
    close(sol.x, double(1.5), atol=1e-9)
    close(sol.theta, double(0.0), atol=0)


@pytest.mark.parametrize("gradient", ["discrete", "adjoint"])
def test_the_result_of_a_sample_does_not_depend_on_its_companions(gradient):
    gravity, drop, loss = balls()
    event = Event(height, terminal=False, direction=-1, reset=bounce)

    def solved(rows):
        given = [it[rows].detach().requires_grad_() for it in (gravity, drop, loss)]
        sol = ncode.solve(
            fall, start(given[1]), 0.0, 2.0, theta=(given[0], given[2]), events=event, gradient=gradient, rtol=1e-6
        )
        grads = torch.autograd.grad(sol.x.sum() + sol.events[0].ts.nansum(), given)
        return sol.x, sol.events[0].counts, sol.stats.steps, sol.stats.nfe, *grads

    whole = solved(torch.arange(BALLS))
    for row in range(BALLS):
        for one, many in zip(solved(torch.tensor([row])), whole, strict=True):
            close(one[0], many[row], rtol=1e-12)


def test_functions_may_hold_one_row_per_sample():
    """They are then called with the whole batch, also where only some samples go on."""
    levels, lifts = torch.tensor([0.5, 0.9, 0.1], dtype=DOUBLE), torch.tensor([[1.0], [2.0], [3.0]], dtype=DOUBLE)
    event = Event(lambda t, x, theta: x[:, 0] - levels, terminal=False, reset=lambda t, x, theta: x + lifts)
    sol = ncode.solve(decay, double(1.0, 1.0, 1.0), 0.0, 4.0, events=event, **TIGHT)
    level, lift = levels, lifts[:, 0]
    first = -level.log()
    period = ((level + lift) / level).log()
    counts = 1 + ((4 - first) / period).floor()
    assert sol.events[0].counts.tolist() == counts.int().tolist()
    close(sol.events[0].ts[:, 0], first, atol=1e-7)
    close(sol.x[:, 0], (level + lift) * (-(4 - first - (counts - 1) * period)).exp(), atol=1e-7)


def test_cost_and_feedback_go_on_through_a_reset():
    """theta counts time by dtheta/dt = 1, and the reset may set it; the cost is the integral of 1."""
    event = Event(height, terminal=False, reset=lambda t, x, theta: (x + 1, theta * 0))
    sol = ncode.solve(
        lambda t, x, theta: -torch.ones_like(x),
        double(0.5, 0.8),
        0.0,
        2.0,
        theta=torch.zeros(2, 1, dtype=DOUBLE),
        feedback=lambda t, x, theta: torch.ones_like(theta),
        cost=lambda t, x, theta: torch.ones_like(t),
        events=event,
    )
    close(sol.cost, torch.full((2,), 2.0, dtype=DOUBLE))
    close(sol.theta, double(0.5, 0.2), atol=1e-9)


def test_a_reset_may_change_a_constant_control():
    """A thermostat: x moves towards theta, which changes at 18 and 22."""

    def switch(to):
        return lambda t, x, theta: (x, torch.full_like(theta, to))

    cold = Event(lambda t, x, theta: x[:, 0] - 18, terminal=False, direction=-1, reset=switch(30.0))
    warm = Event(lambda t, x, theta: x[:, 0] - 22, terminal=False, direction=1, reset=switch(10.0))
    sol = ncode.solve(
        lambda t, x, theta: theta - x,
        double(20.0, 21.0),
        0.0,
        5.0,
        theta=double(10.0, 10.0),
        events=[cold, warm],
        save_at=[0.0, 0.5, 5.0],
        **TIGHT,
    )
    first, cycle = (torch.tensor([20.0, 21.0]).double() - 10).log() - math.log(8), 2 * math.log(12 / 8)
    close(sol.events[0].ts[:, 0], first, atol=1e-7)
    assert sol.thetas[:, :2, 0].tolist() == [[10.0, 30.0], [10.0, 30.0]]
    assert torch.equal(sol.thetas[:, 2], sol.theta)
    close(
        sol.events[0].ts[:, 1:] - sol.events[0].ts[:, :-1], torch.full_like(sol.events[0].ts[:, 1:], cycle), atol=1e-7
    )


def test_parameters_of_the_event_get_their_gradient():
    level = nn.Parameter(torch.tensor(0.5, dtype=DOUBLE))
    sol = ncode.solve(decay, double(1.0, 2.0), 0.0, 5.0, events=Event(lambda t, x, theta: x[:, 0] - level), **TIGHT)
    sol.events[0].ts.sum().backward()  # t = log(x0 / level)
    close(level.grad, torch.tensor(-4.0, dtype=DOUBLE), atol=1e-7)


def test_more_events_than_max_count_are_a_status():
    event = Event(height, terminal=False, max_count=3)
    x0 = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=DOUBLE)
    sol = ncode.solve(rotate, x0, 0.0, 50.0, events=event, throw=False)
    assert sol.status == (Status.MAX_EVENTS, Status.OK)
    assert sol.x[0].isnan().all()
    assert not sol.x[1].isnan().any()
    with pytest.raises(SolveError, match="raise max_count"):
        ncode.solve(rotate, x0, 0.0, 50.0, events=event)


def test_a_failed_sample_leaves_the_gradients_of_the_others_alone():
    scale = torch.tensor(1.0, dtype=DOUBLE, requires_grad=True)
    event = Event(lambda t, x, theta: x[:, 0] - 3 * scale, reset=lambda t, x, theta: x / scale, terminal=False)
    x0 = double(1.0, 0.2)
    sol = ncode.solve(lambda t, x, theta: x.square(), x0, 0.0, 2.0, events=event, throw=False, **TIGHT)
    assert not sol.ok[0]
    assert sol.ok[1]
    sol.x[1].sum().backward()
    assert scale.grad.isfinite()


def test_a_sample_that_starts_on_the_event_does_not_meet_it_there():
    up, down = Event(height, direction=-1), Event(height, direction=1)
    x0 = torch.tensor([[0.0, 1.0]], dtype=DOUBLE)
    sol = ncode.solve(fall, x0, 0.0, 9.0, theta=(torch.full((1,), 2.0, dtype=DOUBLE),), events=[up, down], **TIGHT)
    close(sol.t, torch.ones(1, dtype=DOUBLE), atol=1e-9)
    assert [it.counts.item() for it in sol.events] == [1, 0]


@pytest.mark.slow
def test_compiled_solves_meet_the_same_events(traced):
    gravity, drop, loss = inputs = balls()
    event = Event(height, terminal=False, direction=-1, reset=bounce)

    def solved(compile):
        sol = ncode.solve(fall, start(drop), 0.0, 2.0, theta=(gravity, loss), events=event, compile=compile, **TIGHT)
        return sol.x, sol.events[0].ts, *torch.autograd.grad(sol.x.sum() + sol.events[0].ts.nansum(), inputs)

    for eager, compiled in zip(solved(False), solved(True), strict=True):
        close(compiled, eager, equal_nan=True)


def test_the_time_of_an_event_without_derivative_has_no_gradient():
    event = Event(lambda t, x, theta: (x[:, 0] - 0.5).sign())
    x0 = double(1.0)
    sol = ncode.solve(decay, x0, 0.0, 2.0, events=event, **TIGHT)
    close(sol.t, torch.tensor([2.0]).double().log(), atol=1e-8)
    with pytest.raises(InputError, match="no gradient"):
        ncode.solve(decay, x0.requires_grad_(), 0.0, 2.0, events=event)


@pytest.mark.parametrize("length", [1.0, 1000.0])
@pytest.mark.parametrize("direction", [-1, 0, 1])
@pytest.mark.parametrize("rtol", [1e-3, 1e-9])
def test_an_indicator_has_each_crossing_once(rtol, direction, length):
    """Its value where the shortened step ends may still be that of before, since dense output has an error."""

    def slow_rotation(t, x, theta):
        return rotate(t, x, theta) / length

    phase = torch.linspace(0, 6, 40, dtype=DOUBLE)
    x0 = torch.stack([phase.sin(), phase.cos()], 1)
    functions = (lambda t, x, theta: torch.where(x[:, 0] > 0.3, 1.0, -1.0).double(), lambda t, x, theta: x[:, 0] - 0.3)
    events = [Event(each, terminal=False, direction=direction) for each in functions]
    given, smooth = (
        ncode.solve(slow_rotation, x0, 0.0, 9.0 * length, events=it, rtol=rtol, atol=rtol).events[0] for it in events
    )
    assert torch.equal(given.counts, smooth.counts)
    close(given.ts, smooth.ts, rtol=30 * rtol, atol=0.0, equal_nan=True)


def test_evaluations_are_counted():
    class Field(nn.Module):
        calls = 0

        def forward(self, t, x, theta):
            self.calls += 1
            return -x

    field, x0 = Field(), double(1.0).requires_grad_()
    sol = ncode.solve(field, x0, 0.0, 3.0, events=Event(lambda t, x, theta: x[:, 0] - 0.5, terminal=False))
    assert sol.stats.nfe.item() == field.calls
    assert sol.stats.nfe_backward is None
    before = field.calls
    sol.x.sum().backward()
    assert sol.stats.nfe_backward.item() == field.calls - before


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Event(3.0), "must be a function of"),
        (lambda: Event(height, direction=2), "must be -1, 0 or 1; given 2"),
        (lambda: Event(height, max_count=0), "max_count must be at least 1"),
        (lambda: Event(height, reset=1.0), "the reset of an Event must be a function"),
        (lambda: ncode.solve(decay, double(1.0), 0.0, 1.0, events=height), "events must be an ncode.Event or a list"),
        (
            lambda: ncode.solve(decay, double(1.0), 0.0, 1.0, events=Event(lambda t, x, theta: x - 0.5)),
            r"one real number per sample, a tensor of shape \(1,\); returned torch.float64 \(1, 1\)",
        ),
        (
            lambda: ncode.solve(
                decay, double(1.0), 0.0, 2.0, events=Event(lambda t, x, theta: x[:, 0] - 0.5, False, reset=height)
            ),
            "must return x, or",
        ),
        (
            lambda: ncode.solve(decay, double(1.0), 0.0, 1.0, step="batch", events=Event(height)),
            'use step="sample"',
        ),
    ],
)
def test_what_cannot_be_an_event_is_refused(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()


def test_a_block_meets_events_with_its_control_by_name():
    """dx/dt = theta x with theta = -x0: x meets half of its start at log(2) / x0."""
    f, x = ncode.dynamics.Function(lambda t, x, theta: theta["u"] * x, {"u": (1,)}), double(1.0, 2.0)
    block = ncode.NCODE(f, t1=9.0).double()
    event = Event(lambda t, x, theta: (x + theta["u"] / 2)[:, 0])
    sol = block.solve(x, theta=-x, events=event, **TIGHT)
    close(sol.t, math.log(2) / torch.tensor([1.0, 2.0], dtype=DOUBLE), atol=1e-8)
    stop = Event(event.function, reset=lambda t, x, theta: (x, theta), terminal=False)
    with pytest.raises(InputError, match="x alone"):
        block.solve(x, theta=-x, events=stop)


ROOTS = {
    "line": (lambda x, r: x - r, 4),
    "parabola": (lambda x, r: (x - r) * (x + 3), 6),
    "two roots": (lambda x, r: x * (x - r), 8),  # 0 at the start, as after a reset
    "steep": (lambda x, r: torch.expm1(30 * (x - r)), 25),
    "cube": (lambda x, r: (x - r) ** 3, 60),
    "jump": (lambda x, r: torch.where(x < r, -1.0, 1.0).to(x), 60),
    "kink": (lambda x, r: torch.where(x < r, 0.01 * (x - r), 100 * (x - r)), 90),
}


@pytest.mark.parametrize("name", ROOTS)
def test_roots_in_either_half_of_a_step_are_found_to_rounding(name):
    function, most = ROOTS[name]
    root = torch.tensor([0.013, 0.2, 0.499, 0.501, 0.77, 0.9999], dtype=DOUBLE)
    calls = [0]

    def counted(x):
        calls[0] += 1
        return function(x, root)

    values = [function(torch.full_like(root, place), root) for place in (0.0, 0.5, 1.0)]
    found = find_root(counted, step_bracket(root < 0.5, *values))
    close(found, root, rtol=0, atol=2e-12)
    assert calls[0] <= most


def test_a_sample_that_has_bounced_is_not_searched_any_more():
    """Each bounce: a look into the middle and at the end of four steps or so, some guesses, and a correction."""
    gravity, drop, loss = balls(1)
    calls = [0]

    def counted(t, x, theta):
        calls[0] += 1
        return x[:, 0]

    event = Event(counted, direction=-1, reset=bounce, max_count=5)
    ncode.solve(fall, start(drop), 0.0, 100.0, theta=(gravity, loss), events=event, rtol=1e-6, atol=1e-8)
    assert calls[0] < 5 * 20


def test_an_empty_batch_has_records_without_rows():
    event = ncode.Event(lambda t, x, theta: x[:, 0])
    sol = ncode.solve(lambda t, x, theta: -x, torch.ones(0, 2), 0.0, 1.0, events=[event, event], rtol=torch.ones(1, 2))
    assert len(sol.events) == 2
    assert [tuple(it.shape) for it in (sol.events[0].counts, sol.events[0].ts, sol.events[0].xs)] == [
        (0,),
        (0, 1),
        (0, 1, 2),
    ]


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_a_batch_without_events_has_records_of_nan_and_gradients_of_zero(gradient):
    """So that training goes on where by chance no sample of a batch meets the event."""
    x0 = double(1.0, 2.0).requires_grad_()
    record = ncode.solve(decay, x0, 0.0, 0.1, events=Event(height), gradient=gradient).events[0]
    assert record.ts[:, 0].isnan().all()
    assert record.xs[:, 0].isnan().all()
    assert record.counts.tolist() == [0, 0]
    (record.ts.nansum() + record.xs.nansum()).backward()
    close(x0.grad, torch.zeros_like(x0))


@pytest.mark.parametrize("options", [{"jump_ts": [0.5]}, {"events": ncode.Event(lambda t, x, theta: x[:, 0] - 0.7)}])
@pytest.mark.parametrize("gradient", ["discrete", "adjoint", "autograd"])
def test_no_saved_times_are_as_many_with_events_and_jumps(options, gradient):
    x0 = torch.ones(3, 2, dtype=torch.float64, requires_grad=True)
    sol = ncode.solve(lambda t, x, theta: -x, x0, 0.0, 1.0, theta=x0, save_at=[], gradient=gradient, **options)
    assert sol.xs.shape == sol.thetas.shape == (3, 0, 2)
    sol.x.sum().backward()


def _down(t, x, theta):
    return -torch.ones_like(x)


UNDEFINED = {
    "nan after x = 0.3, without a root before": lambda t, x, theta: (x[:, 0] - 0.3).sqrt() + 0.1,
    "nan after t = 0.2": lambda t, x, theta: torch.where(t > 0.2, torch.nan, 1.0) * (1 + x[:, 0].abs()),
    "nan at the start": lambda t, x, theta: (x[:, 0] - 2).log(),
}


@pytest.mark.parametrize("name", UNDEFINED)
@pytest.mark.parametrize("options", [{}, {"method": "rk4", "dt": 0.125}, {"method": "rodas5p"}])
@pytest.mark.parametrize("direction", [0, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_event_function_that_becomes_nan_is_a_failure_and_no_event(name, options, direction, dtype):
    x0 = torch.tensor([[1.0], [50.0]], dtype=dtype)
    event = ncode.Event(UNDEFINED[name], direction=direction)
    sol = ncode.solve(_down, x0, 0.0, 2.0, events=event, throw=False, **options)
    if "x = " in name:  # the other sample does not get there
        assert sol.status[1] is Status.OK
    assert sol.status[0] is Status.NOT_FINITE
    assert sol.events[0].counts.tolist() == [0, 0]
    assert not sol.x[0].isfinite().any()


@pytest.mark.parametrize("options", [{}, {"method": "rk4", "dt": 0.125}, {"method": "rodas5p"}])
@pytest.mark.parametrize("terminal", [True, False])
def test_a_root_before_a_function_becomes_nan_is_found(options, terminal):
    event = ncode.Event(lambda t, x, theta: x[:, 0].log() + 1, terminal=terminal)
    sol = ncode.solve(_down, torch.ones(2, 1, dtype=DOUBLE), 0.0, 2.0 if terminal else 0.9, events=event, **options)
    close(sol.events[0].ts[:, 0], torch.full((2,), 1 - math.exp(-1), dtype=DOUBLE), 1e-9)


def test_a_function_that_is_nan_only_behind_a_terminal_event_does_no_harm():
    events = [ncode.Event(lambda t, x, theta: x[:, 0]), ncode.Event(lambda t, x, theta: x[:, 0].sqrt() + 1)]
    sol = ncode.solve(_down, torch.ones(1, 1, dtype=DOUBLE), 0.0, 2.0, events=events)
    assert sol.events[0].counts.tolist() == [1]
    assert sol.t.tolist() == pytest.approx([1.0], abs=1e-12)


@pytest.mark.parametrize("method", ["midpoint", "dopri5", "tsit5"])
@pytest.mark.parametrize("event", [{"terminal": False}, {"reset": lambda t, x, theta: x - 1}, {}])
def test_events_are_the_same_in_inference_mode(method, event):
    x0 = torch.tensor([[0.5], [0.7]], dtype=DOUBLE)
    watched = ncode.Event(lambda t, x, theta: x[:, 0] - 0.013, **event)
    expected = ncode.solve(_down, x0, 0.0, 0.9, events=watched, method=method)
    with torch.inference_mode():
        found = ncode.solve(_down, x0.clone(), 0.0, 0.9, events=watched, method=method)
        assert torch.equal(found.events[0].counts, expected.events[0].counts)
        assert torch.equal(found.events[0].ts, expected.events[0].ts)
        assert torch.equal(found.x, expected.x)


def test_an_event_that_uses_a_tensor_of_inference_mode_gets_a_sentence():
    with torch.inference_mode():
        level, x0 = torch.ones(1, dtype=DOUBLE), torch.tensor([[0.5], [0.7]], dtype=DOUBLE)
        with pytest.raises(InputError, match="made under torch"):
            ncode.solve(_down, x0, 0.0, 0.9, events=ncode.Event(lambda t, x, theta: (level * x).sqrt()[:, 0] - 0.013))


def test_a_reset_that_works_in_place_changes_only_its_own_samples():
    def in_place(t, x, theta):
        x[:, 1] *= -1
        return x

    def move(t, x, theta):
        return torch.stack([x[:, 1], torch.zeros_like(t)], 1)

    x0 = torch.tensor([[0.5, 1.0], [0.2, 0.1]], dtype=DOUBLE)  # the second one meets no wall
    plain = lambda t, x, theta: torch.stack([x[:, 0], -x[:, 1]], 1)  # noqa: E731
    runs = []
    for reset in (in_place, plain):
        wall = ncode.Event(lambda t, x, theta: 1 - x[:, 0], direction=-1, reset=reset)
        runs.append(ncode.solve(move, x0, 0.0, 1.2, events=wall, max_dt=0.2))
    assert torch.equal(runs[0].x, runs[1].x)
    assert torch.equal(runs[0].events[0].xs[0], runs[1].events[0].xs[0])


@pytest.mark.parametrize(
    "reset", [lambda t, x, theta: x + x.mean() + 1, lambda t, x, theta: x.flip(0), lambda t, x, theta: x - x.amax(0)]
)
def test_a_reset_that_mixes_samples_is_refused(reset):
    event = ncode.Event(lambda t, x, theta: x[:, 0], direction=-1, reset=reset)
    with pytest.raises(InputError, match=r'samples depend on each other.*step="batch" has no events'):
        ncode.solve(_down, torch.tensor([[0.5], [0.2], [0.9]], dtype=DOUBLE), 0.0, 1.0, events=event)


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_a_reset_without_derivative_elsewhere_spoils_no_gradient(gradient):
    """The square root has none at 0, where the second sample stays without an event."""
    scale = torch.tensor(1.0, dtype=DOUBLE, requires_grad=True)
    x0 = double(1.0, 0.0, 3.0).requires_grad_()
    event = ncode.Event(lambda t, x, theta: x[:, 0] - 2.0, reset=lambda t, x, theta: (scale * x).sqrt() / 2)
    sol = ncode.solve(lambda t, x, theta: x, x0, 0.0, 1.0, events=event, gradient=gradient, rtol=1e-9, atol=1e-9)
    assert sol.events[0].counts.tolist() == [1, 0, 0]
    got = torch.autograd.grad(sol.x.sum(), [x0, scale])
    # Behind the event x = sqrt(2 scale) / 2 x0 / 2 e^t.
    after = math.sqrt(2) / 4 * math.e
    close(got[0], double(after, math.e, math.e), rtol=1e-4)  # at 0 steps are as long as atol lets them
    close(got[1].item(), after / 2, rtol=1e-6)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_sample_goes_on_with_its_step_after_an_event(sign):
    """Half turns of an oscillator: a step size chosen anew would start small, and grow for several steps."""
    x0, rates = double(1.0, 1.0).repeat(1, 2), torch.tensor([1.0, 3.0], dtype=DOUBLE)

    def turn(t, x, theta):
        return sign * theta[:, None] * torch.stack([x[:, 1], -x[:, 0]], 1)

    def run(**options):
        return ncode.solve(turn, x0, 0.0, 20.0 * sign, theta=rates, rtol=1e-6, atol=1e-8, **options)

    sol = run(events=ncode.Event(lambda t, x, theta: x[:, 0], terminal=False))
    assert sol.events[0].counts.tolist() == [6, 19]
    close(sol.events[0].ts[0, :6], sign * (0.75 + torch.arange(6, dtype=DOUBLE)) * math.pi, rtol=1e-5)
    assert (sol.stats.steps <= run().stats.steps + sol.events[0].counts).all()
