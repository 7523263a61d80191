import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import ncode
from ncode import InputError
from ncode.closed_forms import plastic_episode
from ncode.ode import METHODS

from ..ode.meter import Meter
from ..ode.systems import DOUBLE, close

every_formulation = pytest.mark.parametrize("formulation", ["vectors", "matrix"])
every_method = pytest.mark.parametrize("method", METHODS)
every_rule = pytest.mark.parametrize("rule", ["hebb", "oja", "delta"])


def problem(batch=3, presentations=4, n=5, dtype=DOUBLE, scale=0.5):
    """Stimuli, theta_0 and mu, all wanting gradients."""
    stimuli = torch.randn(batch, presentations, n, dtype=dtype)
    return [leaf.requires_grad_() for leaf in (stimuli, *(scale * torch.randn(2, n, n, dtype=dtype)))]


def tame_problem(n=5, dtype=DOUBLE):
    """As `problem`, with positive mu: with negative rates the corrected rules diverge, and rounding with them."""
    stimuli, theta0, mu = problem(n=n, dtype=dtype, scale=1 / n)
    return [stimuli, theta0, mu.detach().abs().requires_grad_()]


def growth(rule, x, theta):
    """What the rule adds to theta, (batch, n, n), before it is multiplied by mu."""
    if rule == "delta":
        return (x - (theta @ x[..., None])[..., 0])[:, :, None] * x[:, None]
    if rule == "oja":
        return x[:, :, None] * (x - (theta.mT @ x[..., None])[..., 0])[:, None]
    return x[:, :, None] * x[:, None]


def velocity(free, rho, leak):
    return lambda t, x, theta: free * (rho((theta @ x[..., None])[..., 0]) - leak * x)


def feedback(rule, mu, decay, still):
    if still:
        return lambda t, x, theta: torch.zeros_like(theta)
    return lambda t, x, theta: mu * growth(rule, x, theta) - decay * theta


def generic(
    stimuli,
    theta0,
    mu,
    *,
    rule="hebb",
    duration=0.5,
    dt,
    method,
    rho=torch.tanh,
    decay=0.0,
    leak=0.0,
    held=None,
    frozen=(),
):
    """The ends and theta at the end, by one solve a presentation with theta as part of the state."""
    theta, ends = theta0.expand(len(stimuli), *theta0.shape[-2:]), []
    durations = duration if isinstance(duration, list) else [duration] * stimuli.shape[1]
    for number, x0 in enumerate(stimuli.unbind(1)):
        free = torch.ones_like(x0) if held is None else (~held[:, number]).to(x0.dtype)
        solution = ncode.solve(
            velocity(free, rho, leak),
            x0,
            0.0,
            durations[number],
            theta=theta,
            feedback=feedback(rule, mu, decay, still=number < len(frozen) and frozen[number]),
            method=method,
            dt=dt,
        )
        theta = solution.theta
        ends.append(solution.x)
    return torch.stack(ends, 1), theta


def loss(ends, theta):
    return (ends.sin() * torch.arange(1, ends.shape[1] + 1)[:, None]).sum() + theta.cos().sum()


@every_formulation
@every_method
@every_rule
@pytest.mark.parametrize(("dt", "decay"), [(0.5, 0.0), (0.2, 0.7)])  # 0.2 leaves a shorter step at the end
def test_values_and_gradients_are_those_of_the_solver(formulation, method, rule, dt, decay):
    inputs = problem() if rule == "hebb" else tame_problem()
    rate = torch.tensor(decay, dtype=DOUBLE, requires_grad=True)
    ours = plastic_episode(*inputs, rule=rule, dt=dt, method=method, decay=rate, formulation=formulation)
    theirs = generic(*inputs, rule=rule, dt=dt, method=method, decay=rate)
    close((ours.xs, ours.trace.theta()), theirs, rtol=1e-13, atol=1e-13)
    close(ours.x, theirs[0][:, -1], rtol=1e-13, atol=1e-13)
    got = torch.autograd.grad(loss(ours.xs, ours.trace.theta()), [*inputs, rate])
    expected = torch.autograd.grad(loss(*theirs), [*inputs, rate])
    close(got, expected, rtol=1e-12, atol=1e-12)


@every_formulation
@every_rule
def test_a_leak_held_elements_durations_and_a_frozen_theta_are_those_of_the_solver(formulation, rule):
    inputs, leak = tame_problem(), torch.tensor(0.6, dtype=DOUBLE, requires_grad=True)
    how = {"rule": rule, "duration": [0.5, 0.2, 0.5, 1.1], "dt": 0.3, "method": "rk4", "decay": 0.2, "leak": leak}
    how |= {"held": torch.rand(3, 4, 5) < 0.5, "frozen": [False, True, False, True]}
    ours, theirs = plastic_episode(*inputs, **how, formulation=formulation), generic(*inputs, **how)
    close((ours.xs, ours.trace.theta()), theirs, rtol=1e-13, atol=1e-13)
    got = torch.autograd.grad(loss(ours.xs, ours.trace.theta()), [*inputs, leak])
    close(got, torch.autograd.grad(loss(*theirs), [*inputs, leak]), rtol=1e-12, atol=1e-12)
    assert torch.equal(ours.xs[how["held"]], inputs[0][how["held"]])


def test_the_delta_rule_stores_orthogonal_patterns_without_interference():
    """A pattern that is held for long becomes a fixed point: theta x = x, and the others stay as they are."""
    n = 8
    patterns = n**0.5 * torch.linalg.qr(torch.randn(1, n, 4, dtype=DOUBLE)).Q.mT
    mu, theta0 = torch.ones(n, n, dtype=DOUBLE), torch.zeros(n, n, dtype=DOUBLE)
    shown = plastic_episode(
        patterns, theta0, mu, rule="delta", duration=4.0, dt=0.1, held=torch.ones(1, 4, n, dtype=torch.bool)
    )
    for pattern in patterns.unbind(1):
        close(shown.trace.times(pattern), pattern, rtol=1e-8, atol=1e-8)


def test_ojas_rule_is_the_delta_rule_of_the_transposed_matrix_while_x_is_held():
    stimuli, theta0, mu = problem()
    held = torch.ones(stimuli.shape, dtype=torch.bool)
    oja = plastic_episode(stimuli, theta0, mu, rule="oja", steps=2, held=held)
    delta = plastic_episode(stimuli, theta0.mT, mu.mT, rule="delta", steps=2, held=held)
    close(oja.trace.theta(), delta.trace.theta().mT, rtol=1e-12, atol=1e-12)


@every_formulation
@every_rule
@every_method
def test_single_precision_is_equal_to_the_solver_up_to_rounding(formulation, rule, method):
    inputs = tame_problem(n=40, dtype=torch.float32)
    ours = plastic_episode(*inputs, rule=rule, dt=0.25, method=method, formulation=formulation)
    ends, theta = generic(*inputs, rule=rule, dt=0.25, method=method)
    close((ours.xs, ours.trace.theta()), (ends, theta), rtol=1e-5, atol=1e-6)


@every_formulation
@every_rule
def test_gradients_are_those_of_finite_differences(formulation, rule):
    stimuli, theta0, mu = problem(batch=2, presentations=2, n=3)
    decay, leak = (torch.tensor(rate, dtype=DOUBLE, requires_grad=True) for rate in (0.3, 0.4))

    def run(stimuli, theta0, mu, decay, leak):
        how = {"rule": rule, "steps": 1, "decay": decay, "leak": leak, "formulation": formulation}
        shown = plastic_episode(stimuli, theta0, mu, **how)
        return shown.xs, shown.trace.theta()

    assert torch.autograd.gradcheck(run, (stimuli, theta0, mu, decay, leak))


@every_formulation
def test_gradients_reach_what_rho_is_made_of(formulation):
    inputs, layer = problem(), nn.Linear(5, 5, dtype=DOUBLE)
    gain = torch.randn(5, dtype=DOUBLE, requires_grad=True)
    computed = gain.exp()

    def rho(v):
        return computed * torch.tanh(layer(v))

    wanted = [*inputs, *layer.parameters(), gain]
    ours = plastic_episode(*inputs, steps=2, rho=rho, formulation=formulation)
    theirs = generic(*inputs, dt=0.25, method="rk4", rho=rho)
    got = torch.autograd.grad(loss(ours.xs, ours.trace.theta()), wanted, retain_graph=True)
    close(got, torch.autograd.grad(loss(*theirs), wanted), rtol=1e-11, atol=1e-12)


@every_formulation
def test_only_what_wants_a_gradient_gets_one(formulation):
    for number in range(3):
        inputs = [leaf.detach().requires_grad_(i == number) for i, leaf in enumerate(problem())]
        plastic_episode(*inputs, steps=1, formulation=formulation).x.sum().backward()
        assert [leaf.grad is not None for leaf in inputs] == [i == number for i in range(3)]


def test_without_gradients_there_is_no_graph():
    stimuli, theta0, mu = (leaf.detach() for leaf in problem())
    mu.requires_grad_()
    assert not plastic_episode(stimuli, theta0, mu.detach(), steps=1).x.requires_grad
    with torch.no_grad():
        assert not plastic_episode(stimuli, theta0, mu, steps=1).x.requires_grad


@every_formulation
def test_a_constant_rho_moves_x_and_has_no_gradient(formulation):
    stimuli, theta0, mu = problem()
    shown = plastic_episode(stimuli, theta0, mu, steps=1, rho=torch.ones_like, formulation=formulation)
    close(shown.xs, stimuli + 0.5)
    close(torch.autograd.grad(shown.x.sum(), stimuli)[0][:, -1], torch.ones(3, 5, dtype=DOUBLE))


@every_formulation
@every_rule
def test_an_episode_can_be_cut_in_two(formulation, rule):
    stimuli, theta0, mu = problem(presentations=5)
    how = {"rule": rule, "steps": 2, "decay": 0.4, "formulation": formulation}
    whole = plastic_episode(stimuli, theta0, mu, **how)
    first = plastic_episode(stimuli[:, :2], theta0, mu, **how)
    second = plastic_episode(stimuli[:, 2:], first.trace.theta(), mu, **how)
    close(torch.cat([first.xs, second.xs], 1), whole.xs, rtol=1e-12)
    close(second.trace.theta(), whole.trace.theta(), rtol=1e-12)
    inputs = [stimuli, theta0, mu]
    close(*(torch.autograd.grad(e.x.sin().sum(), inputs) for e in (second, whole)), rtol=1e-10, atol=1e-12)


@every_rule
def test_theta_times_a_vector_needs_no_theta(rule):
    shown = plastic_episode(*problem(), rule=rule, steps=2, decay=0.1)
    x = torch.randn(3, 5, dtype=DOUBLE)
    close(shown.trace.times(x), (shown.trace.theta() @ x[..., None])[..., 0])


@every_formulation
@every_rule
def test_a_sample_does_not_depend_on_its_companions(formulation, rule):
    (stimuli, theta0, mu), how = problem(batch=4), {"rule": rule, "steps": 1, "formulation": formulation}
    alone = plastic_episode(stimuli[:1], theta0, mu, **how).xs
    close(plastic_episode(stimuli, theta0, mu, **how).xs[:1], alone, rtol=1e-13, atol=1e-14)
    with torch.no_grad():
        stimuli[1:] = torch.nan_to_num(1e300 * stimuli[1:])
    close(plastic_episode(stimuli, theta0, mu, **how).xs[:1], alone, rtol=1e-13, atol=1e-14)


@given(
    batch=st.integers(0, 3),
    presentations=st.integers(1, 4),
    n=st.integers(1, 6),
    steps=st.integers(1, 3),
    method=st.sampled_from(sorted(METHODS)),
    own=st.booleans(),
    formulation=st.sampled_from(["auto", "vectors", "matrix"]),
)
def test_any_shape_works(batch, presentations, n, steps, method, own, formulation):
    stimuli, theta0, mu = problem(batch, presentations, n)
    start = theta0.expand(batch, n, n) if own else theta0
    shown = plastic_episode(stimuli, start, mu, steps=steps, method=method, formulation=formulation)
    assert shown.x.shape == (batch, n)
    assert shown.xs.shape == (batch, presentations, n)
    assert shown.trace.theta().shape == (batch, n, n)
    assert shown.trace.times(stimuli[:, 0]).shape == (batch, n)
    shown.x.sum().backward()
    assert all(leaf.grad is not None and leaf.grad.shape == leaf.shape for leaf in (stimuli, theta0, mu))
    if batch:
        close(shown.xs, generic(stimuli, start, mu, dt=0.5 / steps, method=method)[0], rtol=1e-12, atol=1e-13)


def measured(n, presentations, batch=16, rule="hebb"):
    stimuli, theta0, mu = problem(batch, presentations, n, torch.float32, 0.01)
    with Meter() as meter:
        plastic_episode(stimuli, theta0, mu, rule=rule, steps=1).x.sum().backward()
    return meter


@every_rule
def test_memory_never_grows_with_n_squared_a_sample(rule):
    batch, n = 16, 300
    meter = measured(n, presentations=2, batch=batch, rule=rule)
    assert max(meter.made) <= 4 * n * n
    assert meter.peak < 4 * batch * n * n / 2


def test_memory_grows_with_the_number_of_stages_and_not_with_its_square():
    n = 20
    few, many = measured(n, presentations=10), measured(n, presentations=20)
    assert many.peak < 2.2 * few.peak
    stages = 20 * 4
    assert many.peak < 20 * 4 * 16 * n * stages


def test_asking_for_a_second_derivative_gets_a_sentence():
    stimuli, theta0, mu = problem()
    (first,) = torch.autograd.grad(plastic_episode(stimuli, theta0, mu, steps=1).x.sum(), mu, create_graph=True)
    with pytest.raises(InputError, match="an episode has no second derivatives"):
        first.sum().backward()


def test_autocast_does_not_coarsen_it():
    inputs = problem(dtype=torch.float32)
    plain = plastic_episode(*inputs, steps=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = plastic_episode(*inputs, steps=1)
    assert torch.equal(cast.x, plain.x)
    close(*(torch.autograd.grad(shown.x.sum(), inputs) for shown in (cast, plain)), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stimuli": torch.zeros(2, 3)}, r"stimuli must be real and of shape \(batch, P, n\)"),
        ({"stimuli": [[1.0]]}, "given list"),
        ({"stimuli": torch.zeros(2, 0, 3)}, "stimuli must be real"),
        ({"stimuli": torch.zeros(2, 1, 3, dtype=torch.complex64)}, "stimuli must be real"),
        ({"stimuli": torch.zeros(2, 1, 3, dtype=torch.float16)}, "too coarse"),
        ({"stimuli": torch.full((2, 1, 3), torch.nan)}, "stimuli is not finite"),
        (
            {"theta0": torch.zeros(3, 4)},
            r"theta0 must be \(3, 3\) or \(2, 3, 3\) for stimuli of 3 elements; given \(3, 4\)",
        ),
        ({"mu": torch.zeros(2, 3, 3)}, r"mu must be \(3, 3\)"),
        ({"mu": torch.zeros(3, 3, dtype=DOUBLE)}, "mu must be torch.float32 on cpu like the stimuli"),
        ({"mu": 1.0}, "mu must be a tensor; given float"),
        ({"mu": torch.full((3, 3), torch.inf)}, "mu is not finite"),
        ({"steps": None}, "give either a step size dt or the number of steps"),
        ({"dt": 0.1}, "give either a step size dt or the number of steps"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"steps": 1.5}, "steps must be a whole number"),
        ({"steps": None, "dt": 0.0}, "dt must be above 0"),
        ({"duration": -1.0}, "duration must be above 0"),
        ({"duration": math.nan}, "duration must be a finite number"),
        ({"formulation": "vector"}, 'did you mean "vectors"'),
        ({"method": "rk5"}, 'did you mean "rk4"'),
        ({"decay": -1.0}, "decay must be at least 0"),
        ({"decay": torch.zeros(2)}, "decay must be a number or a tensor"),
        ({"leak": -1.0}, "leak must be at least 0"),
        ({"leak": torch.zeros(2)}, "leak must be a number or a tensor"),
        ({"rule": "hebbb"}, 'did you mean "hebb"'),
        ({"duration": [0.5, 0.5]}, "duration must be one value per presentation: given 2 for 1"),
        ({"held": torch.zeros(2, 3, dtype=torch.bool)}, r"held must be boolean and of the stimuli's shape \(2, 1, 3\)"),
        ({"held": torch.zeros(2, 1, 3)}, "given torch.float32"),
        ({"frozen": [True, False]}, "frozen must be one value per presentation: given 2 for 1"),
        ({"rho": lambda v: v[:, :1]}, "it must keep both"),
        ({"rho": lambda v: v.double()}, "it must keep both"),
    ],
)
def test_bad_input_gets_a_sentence(change, message):
    good = {"stimuli": torch.zeros(2, 1, 3), "theta0": torch.zeros(3, 3), "mu": torch.zeros(3, 3), "steps": 1}
    with pytest.raises(InputError, match=message):
        plastic_episode(**{**good, **change})
