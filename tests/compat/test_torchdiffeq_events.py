"""Events of the torchdiffeq interface."""

import math

import pytest
import torch
from torch import nn

import ncode
from ncode.compat import torchdiffeq as ours

from .systems import DOUBLE, FIXED, TIGHT, Counted, flat, start, times

theirs = pytest.importorskip("torchdiffeq")


class Fall(nn.Module):
    """A ball in the air, with drag so that dopri5 is not exact."""

    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.tensor(9.81, dtype=DOUBLE))
        self.drag = nn.Parameter(torch.tensor(0.1, dtype=DOUBLE))
        self.count = 0

    def forward(self, t, y):
        self.count += 1
        _, speed = y
        return speed, -self.g - self.drag * speed * speed.abs() + 0.1 * torch.sin(t)


def ball(height: float = 10.0, speed: float = 1.0):
    return (
        torch.tensor([height], dtype=DOUBLE, requires_grad=True),
        torch.tensor([speed], dtype=DOUBLE, requires_grad=True),
    )


@pytest.mark.slow
@pytest.mark.parametrize("interface", ["odeint", "odeint_adjoint"])
def test_a_falling_ball_lands_when_and_how_torchdiffeq_says_with_its_gradients(interface):
    fall, (height, speed), t0 = Fall(), ball(), times(0.3)[0]
    inputs, results = (height, speed, *fall.parameters()), []
    for library in (ours, theirs):
        t, y = library.odeint_event(
            fall,
            (height, speed),
            t0,
            event_fn=lambda t, y: y[0],
            odeint_interface=getattr(library, interface),
            rtol=1e-11,
            atol=1e-11,
        )
        assert t.shape == ()
        assert [leaf.shape for leaf in y] == [(2, 1), (2, 1)]
        values = torch.stack([t, y[0][-1, 0], y[1][-1, 0]])
        grads = [flat(torch.autograd.grad(value, inputs, retain_graph=True)) for value in (t, y[1][-1, 0])]
        results.append(torch.cat([values, *grads]))
    torch.testing.assert_close(*results, rtol=0, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_an_event_agree_with_finite_differences(reverse):
    # A tilted ground that moves: event_fn has a parameter of its own and depends on time.
    def event(y0, t0, w, ground):
        def func(t, y):
            return torch.stack([y[1], -torch.sin(y[0] * w) - 0.1 * t])

        def reaches(t, y):
            return y[0] - ground * (1 + 0.1 * t) + 0.2 * y[1]

        t, y = ours.odeint_event(func, y0, t0, event_fn=reaches, reverse_time=reverse, rtol=1e-12, atol=1e-12)
        return torch.cat([t[None], y[-1]])

    inputs = (
        torch.tensor([1.2, 0.1], dtype=DOUBLE),
        torch.tensor(0.2, dtype=DOUBLE),
        torch.tensor(1.3, dtype=DOUBLE),
        torch.tensor(-0.4, dtype=DOUBLE),
    )
    assert torch.autograd.gradcheck(
        event, [tensor.requires_grad_() for tensor in inputs], eps=1e-5, atol=1e-6, rtol=1e-6
    )


def test_a_bouncing_ball_is_torchdiffeqs_through_three_bounces():
    results = []
    for library in (ours, theirs):
        fall, y, t = Fall(), ball(), times(0.0)[0]
        heard = []
        for _ in range(3):
            t, trace = library.odeint_event(fall, y, t, event_fn=lambda t, y: y[0], rtol=1e-10, atol=1e-10)
            heard.append(t)
            position, velocity = (leaf[-1] for leaf in trace)
            y = (position.clamp_min(0) + 1e-7, -0.8 * velocity)
        heard = torch.stack(heard)
        results.append(
            torch.cat([heard, *(g.reshape(-1) for g in torch.autograd.grad(heard.sum(), fall.parameters()))])
        )
    torch.testing.assert_close(*results, rtol=1e-5, atol=0)


def test_the_state_at_an_event_is_on_the_event_even_at_loose_tolerances():
    _, y = ours.odeint_event(Fall(), ball(), times(0.0)[0], event_fn=lambda t, y: y[0], rtol=1e-2, atol=1e-2)
    assert abs(float(y[0][-1].detach())) < 1e-12


def test_the_first_of_several_events_counts():
    def event_fn(t, y):
        return torch.stack([y[0][0] - 3, t - 1.9, y[1][0] + 100])

    results = []
    for library in (ours, theirs):
        t, y = library.odeint_event(Fall(), ball(), times(0.0)[0], event_fn=event_fn, rtol=1e-9, atol=1e-9)
        results.append(torch.stack([t, y[0][-1, 0], y[1][-1, 0]]))
    torch.testing.assert_close(*results, rtol=0, atol=1e-6)
    assert float(results[0][0].detach()) < 1.9  # it was the height


def test_an_event_of_time_alone_has_a_constant_time():
    y0 = start(2)
    t, y = ours.odeint_event(Counted(), y0, times(0.0)[0], event_fn=lambda t, y: t - 0.75)
    assert float(t.detach()) == pytest.approx(0.75, abs=1e-15)
    (grad,) = torch.autograd.grad(y[-1].sum() + t, y0)
    reference = ours.odeint(Counted(), y0, times(0, 0.75))[-1]
    torch.testing.assert_close(grad, *torch.autograd.grad(reference.sum(), y0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("interface", ["odeint", "odeint_adjoint"])
def test_event_fn_in_odeint_returns_time_and_state_without_a_gradient_of_the_time(interface):
    y0 = start(2)
    results = []
    for library in (ours, theirs):
        t, y = getattr(library, interface)(
            Counted(), y0, times(0, 1), event_fn=lambda t, y: y[0] - y0[0].detach() - 0.2, **TIGHT
        )
        assert y.shape == (2, 2)
        results.append(torch.cat([t[None].detach(), y.reshape(-1), *torch.autograd.grad(y[-1].sum(), y0)]))
    torch.testing.assert_close(*results, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", FIXED)
def test_fixed_steps_find_events_too(method):
    t, y = ours.odeint_event(
        Fall(), ball(), times(0.0)[0], event_fn=lambda t, y: y[0], method=method, options={"step_size": 0.003}
    )
    reference, _ = theirs.odeint_event(
        Fall(), ball(), times(0.0)[0], event_fn=lambda t, y: y[0], method=method, options={"step_size": 0.003}
    )
    assert float(t.detach()) == pytest.approx(float(reference.detach()), abs=1e-5)
    assert abs(float(y[0][-1].detach())) < 1e-12


def test_an_event_before_a_blow_up_is_found():
    # y = 1 / (1 - t) leaves the numbers at t = 1.
    t, _ = ours.odeint_event(
        lambda t, y: y * y,
        torch.ones(1, dtype=DOUBLE),
        torch.zeros((), dtype=DOUBLE),
        event_fn=lambda t, y: y - 4,
    )
    assert float(t) == pytest.approx(0.75, abs=1e-6)


def test_an_event_far_away_is_found():
    t, _ = ours.odeint_event(
        lambda t, y: 1e-3 + 0 * y, torch.zeros(1, dtype=DOUBLE), torch.zeros(()), event_fn=lambda t, y: y - 5
    )
    assert float(t) == pytest.approx(5000, rel=1e-6)


def test_an_event_at_the_start_happens_there():
    t, y = ours.odeint_event(Counted(), start(2), times(0.5)[0], event_fn=lambda t, y: t - 0.5)
    assert float(t.detach()) == 0.5
    assert torch.equal(y[0], y[1])


def test_torchdiffeqs_own_odeint_fits_as_interface():
    t, _ = ours.odeint_event(Fall(), ball(), times(0.0)[0], event_fn=lambda t, y: y[0], odeint_interface=theirs.odeint)
    reference, _ = theirs.odeint_event(Fall(), ball(), times(0.0)[0], event_fn=lambda t, y: y[0])
    assert float(t.detach()) == pytest.approx(float(reference.detach()), abs=1e-12)


@pytest.mark.parametrize("method", ["dopri5", "bosh3", "adaptive_heun", "rk4", "euler"])
@pytest.mark.parametrize("interface", ["odeint", "odeint_adjoint"])
def test_events_take_the_evaluations_of_torchdiffeq(method, interface):
    counts = []
    options = {"step_size": 0.1} if method in FIXED else {}
    for library in (ours, theirs):
        fall = Fall()
        t, _ = library.odeint_event(
            fall,
            ball(),
            times(0.0)[0],
            event_fn=lambda t, y: y[0],
            odeint_interface=getattr(library, interface),
            method=method,
            options=options,
            rtol=1e-5,
            atol=1e-6,
        )
        forward = fall.count
        t.backward()
        counts.append((forward, fall.count - forward))
    # torchdiffeq evaluates the slope at the event in backward, we do it in forward.
    assert sum(counts[0]) == sum(counts[1])
    assert counts[0][0] == counts[1][0] + 1


@pytest.mark.parametrize("interp", ["linear", "cubic"])
@pytest.mark.parametrize("reverse", [False, True])
def test_events_of_fixed_steps_are_torchdiffeqs(interp, reverse):
    results = []
    for library in (ours, theirs):
        t0, y0 = times(0.2), start(2)
        begin = y0.detach()
        t, y = library.odeint_event(
            Counted(),
            y0,
            t0,
            event_fn=lambda t, y, begin=begin: (y - begin).abs().sum() - 0.4,
            reverse_time=reverse,
            method="rk4",
            options={"step_size": 0.07, "interp": interp},
            atol=1e-12,
        )
        grads = torch.autograd.grad(t + y[-1].sum(), (y0, t0))
        results.append(flat([t, y, *grads]))
    torch.testing.assert_close(*results, rtol=0, atol=1e-6)


def test_an_event_where_a_function_becomes_zero_is_at_the_first_such_time():
    # As in torchdiffeq's example learn_physics.py: zero from some time on.
    def event_fn(t, y):
        return torch.zeros_like(t) if t > 0.75 else torch.ones_like(t)

    t, _ = ours.odeint(Counted(), start(2), times(0, 1), event_fn=event_fn, rtol=1e-3, atol=1e-3)
    assert float(t) == pytest.approx(0.75, abs=1e-14)


def test_a_blow_up_before_the_event_is_named():
    with pytest.raises(ncode.SolveError, match="event_fn had not changed its sign"):
        ours.odeint(lambda t, y: y * y, torch.ones(2), torch.tensor([0.0, 2.0]), event_fn=lambda t, y: y + 1)


def test_an_event_without_a_derivative_gets_a_sentence_only_if_its_gradient_is_asked_for():
    def event_fn(t, y):
        return (y.sum() > 0.5).to(y.dtype) - 0.5

    y0, t0 = torch.ones(1, dtype=DOUBLE), torch.zeros((), dtype=DOUBLE)
    t, _ = ours.odeint_event(lambda t, y: -y, y0, t0, event_fn=event_fn)
    assert float(t) == pytest.approx(math.log(2), abs=1e-6)
    t, y = ours.odeint_event(lambda t, y: -y, y0.requires_grad_(), t0, event_fn=lambda t, y: event_fn(t, y) + 0 * y)
    assert float(t.detach()) == pytest.approx(math.log(2), abs=1e-6)
    for value in (t.sum(), y[-1].sum()):
        with pytest.raises(ncode.InputError, match="has no derivative"):
            value.backward(retain_graph=True)


def test_second_derivatives_of_an_event_get_a_sentence():
    height, speed = ball()
    t, _ = ours.odeint_event(Fall(), (height, speed), times(0.0)[0], event_fn=lambda t, y: y[0])
    with pytest.raises(ncode.InputError, match="first derivatives only"):
        torch.autograd.grad(t, height, create_graph=True)
