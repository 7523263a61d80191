"""`keep_last=True`: samples that fail keep their last accepted state, its time and its gradients."""

import math

import pytest
import torch

import ncode
from ncode import SolveError, Status

from .systems import DOUBLE, GRADIENTS, Everything, close, decay, double, explode, gradients, numeric

TIGHT = {"rtol": 1e-9, "atol": 1e-9}
KEEP = {"throw": False, "keep_last": True}
every_gradient = pytest.mark.parametrize("gradient", GRADIENTS)


@pytest.mark.parametrize("span", [3.0, -3.0])
@pytest.mark.parametrize("options", [{"max_steps": 7}, {"max_steps": 7, "method": "rk4", "dt": 1 / 8}])
@every_gradient
def test_at_max_steps_the_last_state_and_its_time_are_returned(span, options, gradient):
    x0 = double(1.0, 2.0)
    sol = ncode.solve(decay, x0, 0.5, 0.5 + span, gradient=gradient, **TIGHT, **options, **KEEP)
    assert sol.status == (Status.MAX_STEPS, Status.MAX_STEPS)
    assert sol.t[0].item() != 0.5 + span
    if "dt" in options:
        close(sol.t, torch.full((2,), 0.5 + math.copysign(7 / 8, span), dtype=DOUBLE))
    close(sol.x[:, 0], x0[:, 0] * (0.5 - sol.t).exp(), rtol=1e-5)
    assert sol.stats.steps.max() <= 7


@every_gradient
@pytest.mark.parametrize("compile", [False, True], ids=["eager", "traced"])
def test_samples_that_fail_keep_their_state_and_its_gradient(gradient, compile, traced):
    """dx/dt = r x^2, for one sample only until 0.4: x(t) = x0 / (1 - r x0 t)."""
    x0 = double(0.25, 2.0, -1.0).requires_grad_()
    rate = torch.ones((), dtype=DOUBLE, requires_grad=True)
    t1 = torch.full((3,), 1.0, dtype=DOUBLE, requires_grad=True)

    def field(t, x, until):
        return torch.where(t[:, None] < until, rate * x.square(), math.nan)

    options = {"gradient": gradient, "compile": compile, **TIGHT, **KEEP}
    sol = ncode.solve(field, x0, 0.0, t1, theta=double(2.0, 0.4, 2.0), **options)
    assert sol.status == (Status.OK, Status.NOT_FINITE, Status.OK)
    t, x = sol.t[:, None], x0.detach() / (1 - x0.detach() * sol.t[:, None])
    assert t[1].item() == pytest.approx(0.4)
    close(sol.x, x, rtol=1e-7)
    got = torch.autograd.grad(sol.x.sum(), [x0, rate, t1])
    close(got[0], (x / x0.detach()) ** 2, rtol=1e-6)
    close(got[1], (x**2 * t).sum(), rtol=1e-6)
    # How far the failed sample got does not depend on t1.
    close(got[2], double(1.0, 0.0, 1.0)[:, 0] * x[:, 0] ** 2, rtol=1e-6)


@every_gradient
def test_gradients_of_everything_up_to_max_steps_are_those_of_finite_differences(gradient):
    """Fixed steps, so that the last state is a smooth function of all that it depends on."""
    system = Everything()
    with torch.no_grad():
        system.t0.fill_(0.1)
        system.t1.fill_(1.1)
        system.save_at.copy_(torch.tensor([0.2, 0.6, 1.0]))
    options = {"gradient": gradient, "method": "dopri5", "dt": 0.1, "max_steps": 7, **KEEP}

    def loss():
        sol = ncode.solve(**system.arguments(), **options)
        assert (sol.codes == Status.MAX_STEPS).all()
        assert sol.xs[:, 2].isnan().all()
        parts = sol.x.sin().sum(), sol.theta["matrix"].square().sum(), sol.cost.sum(), sol.xs[:, :2].cos().sum()
        return sum((0.3 + 0.2 * i) * part for i, part in enumerate(parts))

    got = gradients(loss(), system.inputs)
    assert (got["t1"] == 0).all()
    rtol = 1e-4 if gradient == "adjoint" else 1e-7
    for name in ("x0", "leaf", "root", "price", "t0", "save_at", "f.weight", "g.weight"):
        tensor, generator = system.inputs[name], torch.Generator().manual_seed(3)
        direction = torch.randn(tensor.shape, dtype=DOUBLE, generator=generator)
        close((got[name] * direction).sum(), numeric(loss, tensor, direction), rtol=rtol, atol=1e-8, msg=name)


@every_gradient
def test_a_kept_sample_does_not_touch_the_gradients_of_the_others(gradient):
    def run(x0, **options):
        x0, rate = x0.clone().requires_grad_(), torch.ones((), dtype=DOUBLE, requires_grad=True)
        sol = ncode.solve(
            lambda t, x, theta: rate * x.square(),
            x0,
            0.0,
            1.0,
            gradient=gradient,
            save_at=[0.0, 0.4],
            **TIGHT,
            **options,
        )
        ok = sol.ok
        return torch.autograd.grad(sol.x[ok].sum() + sol.xs[ok].sum(), [x0, rate]), ok

    (alone, shared), _ = run(double(0.25, 0.5))
    (among, with_others), ok = run(double(0.25, 9.0, 0.5), **KEEP, max_steps=100)
    assert ok.tolist() == [True, False, True]
    close(among[ok], alone, rtol=1e-6)
    close(with_others, shared, rtol=1e-6)
    assert among[1].item() == 0.0


@every_gradient
@pytest.mark.parametrize("rows", [True, False], ids=["rows of their own", "free"])
def test_a_sample_that_cannot_start_keeps_its_start(gradient, rows):
    """Its slope at t0 is infinite, and must not reach the gradient that all share."""
    rate = torch.ones((), dtype=DOUBLE, requires_grad=True)
    offset = torch.zeros(3, 1, dtype=DOUBLE) if rows else torch.zeros((), dtype=DOUBLE)
    x0 = double(1.0, 0.0, 2.0).requires_grad_()

    def field(t, x, theta):
        return -rate * (1 / x + offset)

    sol = ncode.solve(field, x0, 0.0, 0.1, gradient=gradient, save_at=[0.0, 0.1], **TIGHT, **KEEP)
    assert sol.status[1] == Status.NOT_FINITE
    assert sol.x[1].item() == sol.t[1].item() == 0.0
    assert sol.xs[1, :, 0].isnan().tolist() == [False, True]
    (alone,) = torch.autograd.grad(sol.x[[0, 2]].sum(), rate, retain_graph=True)
    grad, shared = torch.autograd.grad(sol.x.sum() + sol.xs[:, 0].sum(), [x0, rate])
    close(grad[1].item(), 2.0)
    close(shared, alone)


@every_gradient
def test_saved_and_dense_values_end_where_the_sample_ended(gradient):
    x0 = double(2.0).requires_grad_()
    ts = torch.tensor([0.2, 0.4, 0.9], dtype=DOUBLE)
    dense = gradient != "adjoint"
    sol = ncode.solve(
        explode, x0, 0.0, 1.0, gradient=gradient, save_at=ts, dense=dense, rtol=1e-9, max_steps=100, **KEEP
    )
    assert sol.xs[0, :, 0].isnan().tolist() == [False, False, True]
    values = sol.xs[0, :2].sum() + (sol(0.3).sum() if dense else 0.0)
    (grad,) = torch.autograd.grad(values, x0)
    times = torch.tensor([0.2, 0.4, *([0.3] if dense else [])], dtype=DOUBLE)
    close(grad.item(), (1 / (1 - 2 * times) ** 2).sum().item(), rtol=1e-5)


def test_the_error_holds_the_last_states():
    with pytest.raises(SolveError) as caught:
        ncode.solve(explode, double(0.1, 2.0), 0.0, 1.0, keep_last=True)
    assert caught.value.solution.x.isfinite().all()


def test_the_result_is_not_the_input_itself():
    x0 = double(0.0)
    sol = ncode.solve(lambda t, x, theta: 1 / x, x0, 0.0, 1.0, **KEEP)
    assert sol.x is not x0
    assert sol.x.data_ptr() != x0.data_ptr()


def test_a_block_gives_the_control_at_the_time_that_a_sample_reached():
    block = ncode.NCODE(ncode.dynamics.MLP(2, hidden=4), ncode.TimeVarying(terms=3), method="rk4", dt=0.125).double()
    x = torch.randn(2, 2, dtype=DOUBLE)
    sol = block.solve(x, max_steps=4, **KEEP)
    close(sol.t, torch.full((2,), 0.5, dtype=DOUBLE))
    half = block.solve(x, t1=0.5)
    close([sol.x, sol.theta], [half.x, half.theta])


def test_a_closed_form_leaves_it_to_the_solver():
    block = ncode.NCODE(ncode.dynamics.Linear(2))
    assert block.solve(torch.ones(1, 2)).stats.steps.item() == 0
    sol = block.solve(torch.ones(1, 2), max_steps=1, **KEEP)
    assert sol.status == (Status.MAX_STEPS,)
    assert sol.x.isfinite().all()


@every_gradient
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("ending", ["steps", "events"])
def test_times_of_events_do_not_move_the_last_state(gradient, sign, ending):
    """x = x0 e^(-theta t) at the time that was reached, with that time as a constant."""
    x0 = double(1.0, 1.2).requires_grad_()
    theta = torch.tensor([0.7, 1.3], dtype=DOUBLE, requires_grad=True)
    limits = {"method": "rk4", "dt": 1 / 64, "max_steps": 40} if ending == "steps" else {}
    event = ncode.Event(
        lambda t, x, theta: (x[:, 0] - 0.9) * (x[:, 0] - 0.8), terminal=False, max_count=1 if ending == "events" else 9
    )
    sol = ncode.solve(
        lambda t, x, theta: -sign * theta[:, None] * x,
        x0,
        0.0,
        sign * 9.0,
        theta=theta,
        events=event,
        gradient=gradient,
        rtol=1e-8,
        atol=1e-10,
        **limits,
        **KEEP,
    )
    assert sol.status == ((Status.MAX_STEPS if ending == "steps" else Status.MAX_EVENTS),) * 2
    assert (sol.events[0].counts > 0).all()
    x, t = x0.detach() * (-theta.detach() * sol.t.abs())[:, None].exp(), sol.t.abs()
    got = torch.autograd.grad(sol.x.sum(), [x0, theta])
    close(got[0], x / x0.detach(), rtol=1e-6)
    close(got[1], -t * x[:, 0], rtol=1e-6)


@every_gradient
@pytest.mark.parametrize("method", ["dopri5", "rodas5p"])
def test_times_of_jumps_do_not_move_the_last_state(gradient, method):
    """x' = 2 x before the jump and -3 x after it: x(T) = x0 e^(2 j - 3 (T - j)) at a fixed T."""
    jump = torch.tensor([0.3], dtype=DOUBLE, requires_grad=True)
    x0 = double(1.0, 2.0)

    def field(t, x, theta):
        return torch.where((t < 0.3)[:, None], 2 * x, -3 * x)

    sol = ncode.solve(
        field,
        x0,
        0.0,
        20.0,
        jump_ts=jump,
        method=method,
        gradient=gradient,
        max_steps=20,
        rtol=1e-7,
        atol=1e-9,
        **KEEP,
    )
    assert sol.status == (Status.MAX_STEPS,) * 2
    assert (sol.t > 0.3).all()
    (got,) = torch.autograd.grad(sol.x.sum(), jump)
    close(got, 5 * sol.x.sum()[None], rtol=1e-5)
