"""Saved times per sample, padded with nan: samples with fewer times are solved as if they were alone."""

import math

import pytest
import torch

import ncode
from ncode import InputError

from .systems import DOUBLE, GRADIENTS, Everything, close, decay, double, gradients

NAN = math.nan
TIGHT = {"rtol": 1e-9, "atol": 1e-9}
TIMES = [[0.25, 0.5, 1.0], [0.5, NAN, NAN], [NAN, NAN, NAN], [NAN, 0.25, NAN]]
every_gradient = pytest.mark.parametrize("gradient", GRADIENTS)


def padded(sign: float = 1.0) -> torch.Tensor:
    return sign * torch.tensor(TIMES, dtype=DOUBLE)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("options", [TIGHT, {"method": "rk4", "dt": 1 / 64}, {"step": "batch", **TIGHT}])
def test_times_that_are_nan_give_nan_and_the_others_the_solution(sign, options):
    x0, ts = double(1.0, 2.0, 3.0, 4.0), padded(sign)
    sol = ncode.solve(decay, x0, 0.0, sign, save_at=ts, **options)
    assert sol.ok.all()
    close(sol.xs[..., 0], x0 * (-ts).exp(), rtol=1e-7, equal_nan=True)
    assert torch.equal(sol.ts.isnan(), ts.isnan())


@every_gradient
@pytest.mark.parametrize("compile", [False, True], ids=["eager", "traced"])
def test_no_nan_reaches_a_gradient_even_from_a_loss_that_gives_nan(gradient, compile, traced):
    """where(mask, loss, 0) hands nan back to the rows that it masks: 0 times a derivative at nan."""
    x0, rate = double(1.0, 2.0, 3.0, 4.0).requires_grad_(), torch.ones((), dtype=DOUBLE, requires_grad=True)
    t0, t1 = (torch.full((4,), t, dtype=DOUBLE, requires_grad=True) for t in (0.0, 1.0))
    ts = padded().requires_grad_()
    sol = ncode.solve(
        lambda t, x, theta: -rate * x, x0, t0, t1, save_at=ts, gradient=gradient, compile=compile, **TIGHT
    )
    there = ~ts.detach().isnan()
    loss = torch.where(there[..., None], sol.xs.square(), 0.0).sum()
    got = torch.autograd.grad(loss, [x0, rate, t0, t1, ts])
    squares = torch.where(there, (x0.detach() * (-ts.detach()).exp()).square(), 0.0)
    since = ts.detach().nan_to_num()
    expected = [2 * squares.sum(1, keepdim=True) / x0.detach(), -2 * (since * squares).sum(), 2 * squares.sum(1)]
    close(list(got[:3]), expected, rtol=1e-6)
    close(got[3], torch.zeros(4, dtype=DOUBLE), atol=1e-6)
    close(got[4], -2 * squares, rtol=1e-6)


@every_gradient
def test_padding_changes_no_gradient_of_a_system_with_everything(gradient):
    def run(padding):
        system = Everything()
        arguments = system.arguments()
        if padding:
            nan = torch.full((3, 1), NAN, dtype=DOUBLE)
            ts = arguments["save_at"]
            arguments["save_at"] = torch.cat([ts[:, :1], nan, ts[:, 1:], nan], 1)
        sol = ncode.solve(**arguments, gradient=gradient, **TIGHT)
        there = [0, 2, 3] if padding else [0, 1, 2]
        if padding:
            assert sol.xs[:, [1, 4]].isnan().all()
            assert sol.thetas["matrix"][:, [1, 4]].isnan().all()
        kept = {name: value[:, there] for name, value in (("xs", sol.xs), ("rest", sol.thetas["rest"][0]))}
        loss = sol.x.sin().sum() + sol.cost.sum() + kept["xs"].cos().sum() + kept["rest"].square().sum()
        return gradients(loss, system.inputs)

    close(run(True), run(False), rtol=1e-7, atol=1e-9)


def test_order_and_interval_are_checked_between_the_gaps():
    for ts, text in (([0.5, NAN, 0.25], "out of order"), ([NAN, 0.5, 2.0], "asked for 0.5 to 2")):
        with pytest.raises(InputError, match=text):
            ncode.solve(decay, double(1.0), 0.0, 1.0, save_at=ts)
    with pytest.raises(InputError, match="out of order"):
        ncode.solve(decay, double(1.0), 1.0, 0.0, save_at=[0.25, NAN, 0.5])


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
@pytest.mark.parametrize("controlled", [True, False], ids=["open loop", "static"])
def test_a_closed_form_pads_as_the_solver_does(shared, controlled):
    controller = ncode.OpenLoop(torch.nn.Linear(2, 4)) if controlled else ncode.Static()
    block = ncode.NCODE(ncode.dynamics.Linear(2), controller, **TIGHT).double()
    x = torch.randn(4, 2, dtype=DOUBLE)
    ts = torch.tensor([0.25, NAN, 1.0], dtype=DOUBLE) if shared else padded()

    def run(exact):
        sol = block.solve(x, save_at=ts, exact=exact)
        loss = torch.where(sol.xs.isnan(), 0.0, sol.xs.square()).sum()
        return sol.xs, torch.autograd.grad(loss, list(block.parameters()))

    close(run(True), run(False), rtol=1e-6, atol=1e-8, equal_nan=True)
    assert all(grad.isfinite().all() for grad in run(True)[1])


def test_a_trajectory_ends_at_the_last_time_of_each_sample():
    block = ncode.NCODE(ncode.dynamics.MLP(2, hidden=4), ncode.TimeVarying(terms=3)).double()
    x, ts = torch.randn(4, 2, dtype=DOUBLE), padded()
    xs = block.trajectory(x, ts)
    assert torch.equal(xs.isnan().all(2), ts.isnan())
    close(xs[1, 0], block.solve(x[1:2], t1=0.5).x[0])
    sol = block.solve(x, save_at=ts)
    assert torch.equal(sol.thetas["weight_1"].isnan().flatten(2).all(2), ts.isnan())
    loss = torch.where(sol.thetas["weight_1"].isnan(), 0.0, sol.thetas["weight_1"].square()).sum()
    grads = torch.autograd.grad(loss, list(block.parameters()), allow_unused=True, materialize_grads=True)
    assert all(grad.isfinite().all() for grad in grads)


@every_gradient
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_padding_spoils_no_gradient_where_samples_meet_events(gradient, sign):
    """The Newton step to an event may move it beyond the end of its solve: saved times between have a line."""

    def turn(t, x, theta):
        return sign * torch.stack([x[:, 1], -x[:, 0]], 1)

    event = ncode.Event(lambda t, x, theta: x[:, 0] - 0.3, terminal=False)
    ts = sign * torch.tensor([[0.2, NAN, 1.0], [NAN, 0.5, 0.7], [0.1, 0.2, NAN]], dtype=DOUBLE)
    x0 = torch.tensor([[1.0, 0.5], [0.2, 1.5], [-1.0, 2.0]], dtype=DOUBLE, requires_grad=True)
    sol = ncode.solve(turn, x0, 0.0, sign, save_at=ts, events=event, gradient=gradient, rtol=1e-8, atol=1e-10)
    assert sol.events[0].counts.tolist() == [0, 1, 1]
    (got,) = torch.autograd.grad(sol.xs.nan_to_num().sum(), x0)
    since = (sign * ts).nan_to_num()
    there = ~ts.isnan()
    cos, sin = (torch.where(there, it, 0.0).sum(1) for it in (since.cos(), since.sin()))
    close(got, torch.stack([cos - sin, cos + sin], 1), rtol=1e-6)
