"""Samples that depend on each other: refused where each has its own time, right where all have the same."""

import pytest
import torch
from torch import nn

import ncode
from ncode import InputError
from ncode.ode.independence import Positions

from .systems import DOUBLE, GRADIENTS, Counted, close, double

X0 = torch.randn(6, 2, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))
norm = nn.Sequential(nn.BatchNorm1d(2, dtype=DOUBLE), nn.Linear(2, 2, dtype=DOUBLE))

INTERACTIONS = {
    "a mean": lambda t, x, theta: -x * x.mean(),
    "a mean of each component": lambda t, x, theta: x.mean(0) - x,
    "a weak mean": lambda t, x, theta: -x + 1e-3 * x.mean(0),
    "a neighbour": lambda t, x, theta: x.roll(1, 0) - x,
    "batch normalisation": lambda t, x, theta: norm(x),
    "a softmax over the batch": lambda t, x, theta: x.softmax(0),
    "a captured row per sample, and a mean": lambda t, x, theta: X0[: len(x)] - x.mean(0),
    "a maximum": lambda t, x, theta: -x / x.abs().max(),
    "a minimum": lambda t, x, theta: x - x.amin(0),
    "a captured row per sample, and a minimum": lambda t, x, theta: X0[: len(x)] - x.amin(0),
}
every_interaction = pytest.mark.parametrize("name", INTERACTIONS)


@every_interaction
@pytest.mark.parametrize("gradient", GRADIENTS)
def test_samples_that_interact_are_refused_where_each_has_its_own_steps(name, gradient):
    with pytest.raises(InputError, match=r'samples depend on each other.*step="batch"'):
        ncode.solve(INTERACTIONS[name], X0, 0.0, 1.0, gradient=gradient)


@pytest.mark.parametrize("x0", [torch.ones(2, 1), torch.zeros(3, 2), torch.ones(5, 1, dtype=torch.complex128)])
def test_equal_samples_that_interact_are_refused_too(x0):
    with pytest.raises(InputError, match="samples depend on each other"):
        ncode.solve(lambda t, x, theta: 1 - x.mean(0).expand_as(x), x0, 0.0, 1.0, theta=torch.rand(len(x0)))


@pytest.mark.parametrize("batch", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("part", ["state", "control"])
@pytest.mark.parametrize("extreme", [torch.amax, torch.amin])
def test_an_extreme_value_that_both_halves_of_the_batch_have_is_noticed(batch, part, extreme):
    ones = torch.ones(batch, 1, dtype=DOUBLE)
    with pytest.raises(InputError, match="of one sample change with the"):
        ncode.solve(lambda t, x, theta: -x * extreme(x if part == "state" else theta, 0), ones, 0.0, 1.0, theta=ones)


@pytest.mark.parametrize("method", ["dopri5", "rodas5p"])
def test_one_system_without_a_batch_is_told_how_to_write_it(method):
    x0 = torch.tensor([1.0, 0.5], dtype=torch.float64)
    with pytest.raises(InputError, match=r"x0 of shape \(2,\) is 2 samples of one number each: .* write x0\[None\]"):
        ncode.solve(lambda t, x, theta: torch.stack([x[1], -x[0]]), x0, 0.0, 1.0, method=method)
    sol = ncode.solve(lambda t, x, theta: torch.stack([x[:, 1], -x[:, 0]], 1), x0[None], 0.0, 1.0, method=method)
    assert sol.x.shape == (1, 2)


@pytest.mark.parametrize("part", ["feedback", "cost"])
def test_a_feedback_or_a_cost_that_mixes_samples_is_refused(part):
    mixed = {"feedback": lambda t, x, theta: x.mean(0) - theta, "cost": lambda t, x, theta: x.sum(1) * x.mean()}
    with pytest.raises(InputError, match="samples depend on each other"):
        ncode.solve(lambda t, x, theta: theta - x, X0, 0.0, 1.0, theta=X0, **{part: mixed[part]})


@pytest.mark.parametrize("times", [{"t1": torch.linspace(0.5, 1, 6)}, {"t0": torch.linspace(0, 0.5, 6)}])
def test_fixed_steps_with_a_time_per_sample_are_refused(times):
    with pytest.raises(InputError, match="samples depend on each other"):
        ncode.solve(INTERACTIONS["a mean"], X0, **{"t0": 0.0, "t1": 1.0, **times}, method="rk4", dt=0.1)


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("options", [{"step": "batch"}, {"dt": 1 / 64}, {"dt": 1 / 64, "t1": torch.tensor(1.0)}])
def test_samples_at_one_time_may_interact(gradient, options):
    """d(x - m)/dt = m - x with the mean m, which stays: x = m + (x0 - m) exp(-t)."""
    x0 = X0.clone().requires_grad_()
    tight = {"rtol": 1e-9, "atol": 1e-9} if "dt" not in options else {}
    sol = ncode.solve(INTERACTIONS["a mean of each component"], x0, **{"t0": 0.0, "t1": 1.0, **tight, **options})
    mean, e = X0.mean(0), torch.tensor(-1.0, dtype=DOUBLE).exp()
    close(sol.x.detach(), mean + (X0 - mean) * e, rtol=1e-7, atol=1e-7)
    (grad,) = torch.autograd.grad(sol.x[0].sum(), x0)
    expected = ((1 - e) / 6).expand(6, 2).clone()
    expected[0] += e
    close(grad, expected, rtol=1e-6, atol=1e-6)


def test_batch_normalisation_in_evaluation_mode_treats_samples_separately():
    frozen = nn.Sequential(nn.BatchNorm1d(2, dtype=DOUBLE), nn.Linear(2, 2, dtype=DOUBLE)).eval()
    with torch.no_grad():
        sol = ncode.solve(lambda t, x, theta: frozen(x), X0, 0.0, 1.0)
        alone = ncode.solve(lambda t, x, theta: frozen(x), X0[:1], 0.0, 1.0)
    close(sol.x[:1], alone.x)


# Times: t is (batch,).


@pytest.mark.parametrize("batch", [2, 3, 4, 7])
@pytest.mark.parametrize("options", [{}, {"method": "rodas5p"}, {"dt": 0.1, "t1": "own"}])
def test_a_time_that_runs_along_the_wrong_dimension_is_refused(batch, options):
    times = {"t0": 0.0, "t1": 1.0}
    options = dict(options)
    if options.pop("t1", None):
        times["t1"] = torch.linspace(0.5, 1, batch)
    with pytest.raises(InputError, match=r"t has shape \(batch,\).*t\.reshape\(-1, 1\) \* x"):
        ncode.solve(lambda t, x, theta: -t * x, torch.ones(batch, batch, dtype=DOUBLE), **times, **options)


@pytest.mark.parametrize("of", [lambda t: t[0], lambda t: t.mean(), lambda t: float(t.detach()[0])])
def test_the_time_of_one_sample_is_not_that_of_another(of):
    with pytest.raises(InputError, match="with the time of another"):
        ncode.solve(lambda t, x, theta: -of(t) * x, X0, 0.0, 1.0)


def test_a_hidden_layer_as_wide_as_the_batch_hides_no_wrong_time():
    wide, back = nn.Linear(2, 6, dtype=DOUBLE), nn.Linear(6, 2, dtype=DOUBLE)
    with pytest.raises(InputError, match="with the time of another"):
        ncode.solve(lambda t, x, theta: back(torch.tanh(wide(x) * t)), X0, 0.0, 1.0)


def test_a_batch_of_one_has_no_companions():
    sol = ncode.solve(lambda t, x, theta: -t * x, torch.ones(1, 2, dtype=DOUBLE), 0.0, 1.0, rtol=1e-9, atol=1e-9)
    close(sol.x, torch.full((1, 2), -0.5, dtype=DOUBLE).exp(), rtol=1e-7)


# What the check leaves alone.


def test_the_check_is_one_evaluation_of_half_the_batch():
    field = Counted(lambda t, x, theta: -x)
    sol = ncode.solve(field, torch.ones(8, 1, dtype=DOUBLE), 0.0, 1.0)
    assert field.rows == [8, 6, *[8] * (int(sol.stats.nfe[0]) - 1)]


@pytest.mark.parametrize("options", [{"dt": 0.25}, {"step": "batch"}])
def test_samples_at_one_time_need_no_check(options):
    field = Counted(lambda t, x, theta: -x)
    sol = ncode.solve(field, torch.ones(8, 1, dtype=DOUBLE), 0.0, 1.0, **options)
    assert field.rows == [8] * int(sol.stats.nfe[0])


@pytest.mark.parametrize(
    "function",
    [
        lambda t, x, theta: -theta * x,
        lambda t, x, theta: -theta.mean() * x,
        lambda t, x, theta: (X0[:3, :1] - x) * theta,
    ],
)
@pytest.mark.parametrize("times", [(0.0, 1.0), (0.5, torch.tensor([0.1, 0.1, 5.0]))])
def test_the_control_of_one_sample_is_not_that_of_another(function, times):
    theta, x0 = torch.tensor([1.0, 2.0, 3.0], dtype=DOUBLE), torch.ones(3, 3, dtype=DOUBLE)
    with pytest.raises(InputError, match=r"control of another.*theta\.reshape\(-1, 1\) \* x"):
        ncode.solve(function, x0, *times, theta=theta)


def test_random_numbers_are_no_interaction():
    torch.manual_seed(0)
    sol = ncode.solve(lambda t, x, theta: -x + 1e-9 * torch.randn_like(x), X0, 0.0, 1.0)
    assert bool(sol.ok.all())


def test_events_with_samples_that_interact_are_refused():
    event = ncode.Event(lambda t, x, theta: x[:, 0] - 0.5)
    with pytest.raises(InputError, match="samples depend on each other"):
        ncode.solve(INTERACTIONS["a mean"], X0, 0.0, 1.0, events=event, method="rk4", dt=0.1)


def test_jumps_with_one_step_size_let_samples_interact():
    sol = ncode.solve(INTERACTIONS["a mean of each component"], X0, 0.0, 1.0, jump_ts=[0.5], step="batch", rtol=1e-8)
    close(sol.x.mean(0), X0.mean(0), rtol=1e-6)


@pytest.mark.parametrize("times", [[[0.3]] * 4, torch.tensor([[0.3]] * 4)], ids=["list", "tensor"])
def test_samples_with_jumps_of_their_own_must_not_interact(times):
    with pytest.raises(InputError, match="samples depend on each other"):
        ncode.solve(lambda t, x, theta: x.mean(0) - x, torch.rand(4, 2), 0.0, 1.0, jump_ts=times, method="rk4", dt=0.1)


def test_an_interaction_that_sets_in_later_is_refused_when_samples_are_first_left_out():
    rates = double(0.1, 50.0, 0.1, 50.0)
    with pytest.raises(InputError, match="samples depend on each other"):
        ncode.solve(
            lambda t, x, theta: -theta * x - t[:, None] * x.mean(), double(1.0, 2.0, 3.0, 4.0), 0.0, 1.0, theta=rates
        )


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
def test_a_compiled_solve_is_checked_once_for_what_it_was_compiled_for(monkeypatch):
    net, checks = nn.BatchNorm1d(2, dtype=DOUBLE).eval(), []
    check = Positions.check_start
    monkeypatch.setattr(Positions, "check_start", lambda *given: (checks.append(1), check(*given)))

    def solve():
        return ncode.solve(lambda t, x, theta: net(x) - x, X0, 0.0, 1.0, compile=True)

    for _ in range(3):
        solve()
    assert len(checks) == 1
    net.train()
    with pytest.raises(InputError, match="samples depend on each other"):
        solve()


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (
            lambda t, x, theta: x[:, 0] - x.mean(),
            r'depend on each other.*step="batch" has no events: put .* \(1, ...\)',
        ),
        (lambda t, x, theta: x[:, 0] - t.mean(), "with the time of another"),
    ],
)
def test_an_event_that_mixes_samples_is_refused(function, words):
    with pytest.raises(InputError, match=words):
        ncode.solve(lambda t, x, theta: -x, X0, 0.0, 1.0, events=ncode.Event(function))


LEVELS = torch.linspace(0.5, 0.9, 6, dtype=DOUBLE)
MORE_LEVELS = torch.cat([LEVELS, torch.zeros(94, dtype=DOUBLE)])  # no size tells that they belong to samples
LEVEL_FUNCTIONS = {
    "a tensor with a row per sample": lambda t, x, theta: x[:, 0] - LEVELS,
    "the first rows of a longer tensor": lambda t, x, theta: x[:, 0] - MORE_LEVELS[: len(x)],
    "a loop over samples": lambda t, x, theta: torch.stack([row[0] - MORE_LEVELS[i] for i, row in enumerate(x)]),
    "a tensor made inside": lambda t, x, theta: x[:, 0] - torch.tensor(LEVELS.tolist(), dtype=DOUBLE),
}


@pytest.mark.parametrize("function", LEVEL_FUNCTIONS.values(), ids=LEVEL_FUNCTIONS)
@pytest.mark.parametrize("options", [{}, {"method": "rk4", "dt": 0.01}])
def test_an_event_may_know_its_samples_by_position(function, options):
    """Terminal events leave samples out of the batch, so that others would move to their places."""
    first = ncode.Event(lambda t, x, theta: x[:, 0] - 0.95, terminal=False)  # a chain of several solves
    sol = ncode.solve(
        lambda t, x, theta: -x,
        torch.ones(6, 1, dtype=DOUBLE),
        0.0,
        5.0,
        events=[first, ncode.Event(function)],
        rtol=1e-9,
        atol=1e-9,
        **options,
    )
    close(sol.events[1].ts[:, 0], -LEVELS.log(), rtol=1e-6)


@pytest.mark.parametrize("batch", [2, 3, 4, 9])
def test_dynamics_that_divide_by_the_size_of_the_batch_keep_the_batch_whole(batch):
    """The gradient of an energy that is a mean over the batch, by mistake or not: dx/dt = -x / (batch * 2)."""
    field = Counted(lambda t, x, theta: -torch.func.grad(lambda y: y.square().mean() / 2)(x))
    ends = torch.linspace(0.1, 5, batch, dtype=DOUBLE)
    sol = ncode.solve(field, torch.ones(batch, 2, dtype=DOUBLE), 0.0, ends, rtol=1e-9, atol=1e-9)
    close(sol.x[:, 0], (-ends / (2 * batch)).exp(), rtol=1e-6)


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_a_driven_control_without_elements_is_no_difference(gradient):
    x0, theta = X0.clone().requires_grad_(), torch.ones(6, 0, dtype=DOUBLE)
    sol = ncode.solve(
        lambda t, x, theta: -x, x0, 0.0, 1.0, theta=theta, feedback=lambda t, x, theta: theta, gradient=gradient
    )
    sol.x.sum().backward()
    close(x0.grad, torch.full_like(X0, -1.0).exp(), rtol=1e-2)


@pytest.mark.parametrize("method", ["dopri5", "rodas5p"])
def test_dynamics_that_mix_samples_are_not_sent_to_steps_that_have_no_events(method):
    event = ncode.Event(lambda t, x, theta: x[:, 0])
    with pytest.raises(InputError, match=r'samples depend on each other.*step="batch" has no events'):
        ncode.solve(lambda t, x, theta: x.mean(0) - x, X0, 0.0, 1.0, events=event, method=method)
