"""jump_ts: dynamics that jump at known times, with steps that end there and never look at both sides."""

import math

import pytest
import torch
from torch import nn

import ncode
from ncode import Event, InputError

from .systems import DOUBLE, GRADIENTS, Counted, close, double

TIGHT = {"rtol": 1e-9, "atol": 1e-11}


def square_wave(t, x, theta):
    """+1 in [0, 1), -1 in [1, 2), +1 again: the solution is a triangle, and every step on one side is exact."""
    return torch.where(t.floor() % 2 == 0, 1.0, -1.0).to(x.dtype)[:, None].expand_as(x)


def triangle(t):
    return (t % 2 - 2 * (t % 2 - 1).clamp_min(0)).abs()


@pytest.mark.parametrize("method", ["euler", "heun", "bosh3", "dopri5", "tsit5", "dopri8"])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_a_square_wave_is_solved_exactly(method, dtype):
    """Without jumps, every stage on the wrong side of one would be an error of the order of the step."""
    x0 = torch.zeros(2, 1, dtype=dtype)
    options = {"dt": 0.5} if method == "euler" else {"rtol": 1e-4, "atol": 1e-4}
    times = [0.5, 1.0, 1.25, 2.75, 4.5]
    sol = ncode.solve(square_wave, x0, 0.0, 4.5, jump_ts=[1.0, 2.0, 3.0, 4.0], save_at=times, method=method, **options)
    expected = triangle(torch.tensor(times, dtype=dtype))
    close(sol.x[:, 0], expected[-1].expand(2), atol=1e-6 if dtype == torch.float32 else 1e-13)
    # The polynomial of dopri8 has large coefficients.
    close(sol.xs[:, :, 0], expected.expand(2, -1), atol=2e-4 if dtype == torch.float32 else 1e-12)
    assert not sol.stats.rejected.any()


@pytest.mark.parametrize("t0", [0.0, 1e3])
def test_steps_near_a_jump_see_their_own_side(t0):
    """Also for late times, in single and in double precision, forward and backward."""
    seen = []

    def field(t, x, theta):
        seen.append(t.detach().clone())
        return torch.where(t >= t0 + 1, 5.0, 1.0).to(x.dtype)[:, None].expand_as(x)

    for dtype, ends in ((DOUBLE, (t0, t0 + 2)), (DOUBLE, (t0 + 2, t0)), (torch.float32, (t0, t0 + 2))):
        seen.clear()
        sol = ncode.solve(field, torch.zeros(1, 1, dtype=dtype), *ends, jump_ts=[t0 + 1], rtol=1e-3)
        close(sol.x, torch.full((1, 1), 6.0 if ends[0] < ends[1] else -6.0, dtype=dtype), rtol=1e-6)
        assert not any(bool((t == t0 + 1).any()) for t in seen)
        assert sol.t.item() == ends[1]


def test_a_jump_close_to_the_end_is_no_question_of_resolution():
    sol = ncode.solve(square_wave, torch.zeros(1, 1), 0.0, 1.0, jump_ts=[1 - 1e-7])
    close(sol.x, torch.ones(1, 1), atol=1e-6)


def test_jumps_of_each_sample_are_its_own():
    onset = torch.tensor([0.3, 0.7, 5.0], dtype=DOUBLE)
    jumps = torch.stack([onset, torch.tensor([math.nan, 0.9, math.nan], dtype=DOUBLE)], 1)

    def field(t, x, theta):
        return torch.where(t > theta, 1.0, 0.0)[:, None] * torch.ones_like(x)

    sol = ncode.solve(field, double(0.0, 0.0, 0.0), 0.0, 1.0, theta=onset, jump_ts=jumps)
    close(sol.x[:, 0], (1 - onset).clamp_min(0), atol=1e-12)
    assert sol.stats.steps[2] < sol.stats.steps[1]


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_gradients_pass_jumps_and_reach_their_times(gradient):
    """x grows at the rate a until the jump and decays from there: x1 = (x0 + a (s - t0)) exp(-(t1 - s))."""
    rate, jump = (torch.tensor(v, dtype=DOUBLE, requires_grad=True) for v in (2.0, 0.4))
    x0, t0, t1 = (
        double(1.0, 3.0).requires_grad_(),
        *(torch.tensor(v, dtype=DOUBLE, requires_grad=True) for v in (0.1, 1.0)),
    )
    inputs = [rate, jump, x0, t0, t1]

    def field(t, x, theta):
        return torch.where((t < jump.detach())[:, None], rate * torch.ones_like(x), -x)

    sol = ncode.solve(field, x0, t0, t1, jump_ts=jump[None], gradient=gradient, save_at=[0.3, 0.8], **TIGHT)
    x1 = (x0 + rate * (jump - t0)) * torch.exp(jump - t1)
    saved = torch.cat([x0 + rate * (0.3 - t0), (x0 + rate * (jump - t0)) * torch.exp(jump - 0.8)], 1)
    close(sol.x, x1, atol=1e-8)
    close(sol.xs[:, :, 0], saved, atol=1e-8)
    got = torch.autograd.grad(sol.x.square().sum() + sol.xs.sum(), inputs)
    close(got, torch.autograd.grad(x1.square().sum() + saved.sum(), inputs), rtol=1e-6, atol=1e-7)


class Switched(nn.Module):
    """A network whose drive, scaled by theta, changes its sign at jumps of each sample's own."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2)).double()

    def forward(self, t, x, theta):
        scale, jumps = theta
        passed = (t[:, None] >= jumps).sum(1)
        return self.net(x) + scale * torch.where(passed % 2 == 0, 1.0, -1.0)[:, None] * (1 + t[:, None])


def switched(x0, t0, t1, scale, jumps, f=None, **options):
    f = f or Switched()
    options = {"save_at": t0[:, None] + (t1 - t0)[:, None] * torch.tensor([0.35, 0.8], dtype=DOUBLE), **options}
    given = jumps if jumps.dim() == 1 else jumps.expand(len(x0), -1)
    theta = scale, jumps.detach().expand(len(x0), -1)
    sol = ncode.solve(
        f, x0, t0, t1, theta=theta, cost=lambda t, x, theta: x.square().sum(1) * t, jump_ts=given, **options
    )
    return sol, (sol.x * torch.tensor([1.0, 2.0], dtype=DOUBLE)).sum() + sol.xs.square().sum() + sol.cost.sum()


def switched_inputs(backward=False):
    """Two samples with two jumps each, the second of which lies outside of the interval of the second sample."""
    x0 = torch.tensor([[0.3, -0.5], [1.0, 0.2]], dtype=DOUBLE)
    times = torch.tensor([[0.1, 1.0], [0.0, 0.7]], dtype=DOUBLE)
    jumps = torch.tensor([[0.31, 0.62], [0.43, 0.9]], dtype=DOUBLE)
    t0, t1 = times.flip(1).unbind(1) if backward else times.unbind(1)
    return x0, t0, t1, torch.tensor([[0.7], [1.3]], dtype=DOUBLE), jumps


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"checkpoint_every": 3},
        {"gradient": "autograd"},
        {"gradient": "adjoint"},
        {"method": "rodas5p"},
        {"method": "auto"},
        {"method": "rodas5p", "gradient": "adjoint"},
        {"method": "rk4", "dt": 0.02},
    ],
    ids=str,
)
def test_gradients_of_everything_agree_with_finite_differences(options, backward):
    """Of the state, both ends, the control and the jumps of each sample, in one backward pass."""
    inputs = [it.requires_grad_() for it in switched_inputs(backward)]
    options = {"rtol": 1e-10, "atol": 1e-11, **options}
    _, loss = switched(*inputs, **options)
    found = torch.autograd.grad(loss, inputs)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for number, grad in enumerate(found):
            direction = torch.randn(grad.shape, generator=generator, dtype=DOUBLE)
            ends = []
            for shift in (1e-5, -1e-5):
                moved = [it.detach() + shift * direction if i == number else it for i, it in enumerate(inputs)]
                ends.append(switched(*moved, **options)[1])
            close((grad * direction).sum(), (ends[0] - ends[1]) / 2e-5, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("method", ["dopri5", "tsit5", "dopri8", "rodas5p"])
def test_a_solve_with_jumps_is_one_loop_whose_evaluations_are_counted(method):
    """A jump costs two evaluations: the slope on its other side, and the choice of a step there."""
    x0, t0, t1, scale, jumps = (it[:1] for it in switched_inputs())
    f = Counted(Switched())
    sol, _ = switched(x0, t0, t1, scale, jumps, f, method=method, **TIGHT)
    assert type(sol.stats) is ncode.Stats
    assert f.calls == int(sol.stats.nfe)
    sol, _ = switched(x0, t0, t1, scale, jumps, Switched(), save_steps=True, **TIGHT)
    assert all(bool((sol.steps == jump).any()) for jump in jumps[0])


def test_a_sample_with_jumps_does_not_depend_on_its_companions():
    inputs = [torch.cat([it, it.flip(0)]) for it in switched_inputs()]
    sol, _ = switched(*inputs, f=Switched())
    for i in range(4):
        alone, _ = switched(*(it[i : i + 1] for it in inputs), f=Switched())
        close(sol.x[i : i + 1], alone.x, rtol=1e-13)
        assert sol.stats.nfe[i] == alone.stats.nfe[0]


@pytest.mark.parametrize("step", ["sample", "batch"])
def test_steps_after_a_jump_have_the_size_of_what_is_there(step):
    """From a long rest into a fast decay, and from that into a slow one: few steps are rejected, or too short."""

    def field(t, x, theta):
        rate = torch.where(t < 50, 0.0, torch.where(t < 50.01, 1e3, 0.01))[:, None]
        return -rate * x

    sol = ncode.solve(field, double(1.0, 1.0), 0.0, 100.0, jump_ts=[50.0, 50.01], step=step, rtol=1e-6, atol=1e-9)
    close(sol.x, double(1.0, 1.0) * math.exp(-10 - 0.01 * 49.99), rtol=1e-5)
    assert int(sol.stats.rejected.max()) <= 2
    assert int(sol.stats.steps.max()) < 60


def test_dense_output_moves_with_the_jumps():
    """x = t up to the jump s, and s - 2 (t - s) behind it: its derivative with respect to s is 3."""
    jump = torch.tensor([0.5], dtype=DOUBLE, requires_grad=True)

    def field(t, x, theta):
        return torch.where(t < 0.5, 1.0, -2.0).to(x.dtype)[:, None].expand_as(x)

    sol = ncode.solve(field, double(0.0), 0.0, 2.0, jump_ts=jump, dense=True)
    for time, value, slope in ((0.25, 0.25, 0.0), (1.0, -0.5, 3.0), (2.0, -2.5, 3.0)):
        at = sol(time)
        close(at, double(value))
        close(torch.autograd.grad(at.sum(), jump, retain_graph=True)[0], torch.tensor([slope], dtype=DOUBLE))


@pytest.mark.parametrize("method", ["dopri5", "rodas5p"])
def test_dynamics_that_are_infinite_behind_a_jump_fail_there(method):
    """The sample has its values up to the jump, and spoils nothing of its companion."""
    weight = torch.tensor(1.0, dtype=DOUBLE, requires_grad=True)
    bad = torch.tensor([True, False])

    def field(t, x, theta):
        return torch.where((bad & (t > 0.5))[:, None], torch.inf, weight * x)

    options = {"jump_ts": [0.5], "throw": False, "keep_last": True, "method": method, "save_at": [0.25, 0.75], **TIGHT}
    sol = ncode.solve(field, double(1.0, 1.0), 0.0, 1.0, **options)
    assert sol.status == (ncode.Status.NOT_FINITE, ncode.Status.OK)
    close(sol.t, torch.tensor([0.5, 1.0], dtype=DOUBLE))
    close(sol.x, double(math.exp(0.5), math.e), rtol=1e-7)
    assert sol.xs[..., 0].isnan().tolist() == [[False, True], [False, False]]


def test_an_event_function_that_jumps_has_no_event_there():
    """It changes its sign with the dynamics at t = 1, and by itself at t = 1.5."""
    event = Event(lambda t, x, theta: torch.where(t < 1, -1.0, 1.5 - t), terminal=False)

    def field(t, x, theta):
        return torch.where(t < 1, 1.0, 2.0).to(x.dtype)[:, None].expand_as(x)

    sol = ncode.solve(field, double(0.0, 1.0), 0.0, 2.0, events=event, jump_ts=[1.0])
    close(sol.events[0].ts, double(1.5, 1.5))
    close(sol.x, double(3.0, 4.0))


def test_second_derivatives_and_transforms_pass_jumps():
    """x1 = (x0 + s) exp(s - 1), squared."""

    def field(t, x, theta):
        return torch.where((t < 0.4)[:, None], torch.ones_like(x), -x)

    def loss(x):
        return ncode.solve(field, x, 0.0, 1.0, jump_ts=[0.4], gradient="autograd", **TIGHT).x.square().sum()

    x0, decay = double(1.0, 3.0), math.exp(-1.2)
    close(torch.func.grad(loss)(x0), 2 * (x0 + 0.4) * decay, rtol=1e-7)
    hessian = torch.autograd.functional.hessian(loss, x0)
    close(hessian.reshape(2, 2), 2 * decay * torch.eye(2, dtype=DOUBLE), rtol=1e-7)


def test_an_exported_solve_has_no_jumps_and_says_so():
    class Model(nn.Module):
        def forward(self, x):
            return ncode.solve(square_wave, x, 0.0, 2.0, jump_ts=[1.0], method="rk4", dt=0.1).x

    with pytest.raises(InputError, match="jump_ts depend on values, and an exported or traced solve has none"):
        torch.export.export(Model(), (double(0.0),))


def test_jumps_outside_of_the_interval_and_at_its_ends_do_not_matter():
    field, x0 = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)).double(), torch.randn(3, 2, dtype=DOUBLE)
    plain = ncode.solve(lambda t, x, theta: field(x), x0, 0.0, 1.0)
    jumps = torch.tensor([-1.0, 0.0, 1.0, 7.0, math.nan])
    sol = ncode.solve(lambda t, x, theta: field(x), x0, 0.0, 1.0, jump_ts=jumps)
    close(sol.x, plain.x, rtol=1e-14)
    assert torch.equal(sol.stats.steps, plain.stats.steps)


def test_jumps_and_events_go_together():
    """A ball that is pushed up at t = 0.2: both sides of the push are free falls."""

    def field(t, x, theta):
        return torch.stack([x[:, 1], torch.where(t < 0.2, 0.0, -10.0).to(x.dtype)], 1)

    ground = Event(lambda t, x, theta: x[:, 0])
    x0 = torch.tensor([[1.0, 1.0]], dtype=DOUBLE)
    sol = ncode.solve(field, x0, 0.0, 9.0, events=ground, jump_ts=[0.2], **TIGHT)
    close(sol.t, torch.tensor([0.2 + (1 + math.sqrt(1 + 20 * 1.2)) / 10], dtype=DOUBLE), atol=1e-9)


def test_dense_output_respects_both_sides():
    sol = ncode.solve(square_wave, double(0.0), 0.0, 3.0, jump_ts=[1.0, 2.0, 3.0], dense=True)
    times = torch.linspace(0, 3, 31, dtype=DOUBLE)
    close(sol(times)[0, :, 0], triangle(times), atol=1e-12)


@pytest.mark.slow
def test_compiled_solves_respect_jumps(traced):
    x0 = double(0.0, 1.0).requires_grad_()
    for compile in (False, True):
        sol = ncode.solve(square_wave, x0, 0.0, 2.5, jump_ts=[1.0, 2.0], compile=compile)
        close(sol.x, x0 + 0.5, atol=1e-12)
        close(torch.autograd.grad(sol.x.sum(), x0)[0], torch.ones_like(x0))


@pytest.mark.parametrize(
    ("jumps", "options", "sentence"),
    [
        (torch.zeros(3, 2), {}, r"jump_ts must have shape \(T,\), times shared by all, or \(2, T\)"),
        ("soon", {}, "jump_ts must be a tensor of times"),
        (torch.zeros(2, 1), {"step": "batch"}, "the same for all"),
    ],
)
def test_what_cannot_be_jumps_is_refused(jumps, options, sentence):
    with pytest.raises(InputError, match=sentence):
        ncode.solve(square_wave, double(0.0, 0.0), 0.0, 1.0, jump_ts=jumps, **options)


@pytest.mark.parametrize("gradient", ["discrete", "adjoint", "autograd"])
@pytest.mark.parametrize("method", ["dopri5", "rosenbrock23"])
def test_a_sample_that_fails_before_a_jump_spoils_no_shared_gradient(gradient, method):
    weight = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    rows = torch.tensor([[0.0], [1.0]], dtype=torch.float64)

    def dynamics(t, x, theta):
        return weight * x + rows * torch.exp(1e3 * torch.where(rows > 0, x, 0.0).abs())

    x0, cost = torch.ones(2, 1, dtype=torch.float64), lambda t, x, theta: weight * x[:, 0]
    options = {"throw": False, "gradient": gradient, "method": method, "rtol": 1e-8, "atol": 1e-8, "max_steps": 5000}
    sol = ncode.solve(dynamics, x0, 0.0, 1.0, cost=cost, jump_ts=[0.3, 0.6], **options)
    assert sol.ok.tolist() == [True, False]
    (sol.x[0, 0] + sol.cost[0]).backward()  # exp(w), and w (exp(w) - 1) / w
    torch.testing.assert_close(weight.grad, 2 * weight.detach().exp(), rtol=1e-5, atol=0)
