import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ncode_lab.data import oscillation

import ncode


def test_without_damping_it_is_a_cosine():
    t, x, _ = oscillation(torch.linspace(0, 10, 51), mu=0.0, x0=(1.5, 0.0), dtype=torch.float64)
    torch.testing.assert_close(x[0], torch.stack([1.5 * t.cos(), -1.5 * t.sin()], 1), rtol=0, atol=1e-9)


@pytest.mark.parametrize(("mu", "period"), [(1.0, 6.6632868593), (5.0, 11.6122306678)])
def test_the_period_of_the_limit_cycle_is_the_known_one(mu, period):
    _, x, _ = oscillation([0.0, 20.0, 20.0 + period / 2, 20.0 + period], mu=mu, dtype=torch.float64)
    torch.testing.assert_close(x[0, 3], x[0, 1], rtol=0, atol=1e-6)
    torch.testing.assert_close(x[0, 2], -x[0, 1], rtol=0, atol=1e-6)


@settings(max_examples=5)
@given(mu=st.floats(0, 5), position=st.floats(-3, 3), velocity=st.floats(-3, 3))
def test_a_trajectory_goes_on_where_a_shorter_one_ended(mu, position, velocity):
    whole = oscillation([0.0, 1.0, 2.5], mu, (position, velocity), dtype=torch.float64).x
    rest = oscillation([1.0, 2.5], mu, whole[:, 1], dtype=torch.float64).x
    # What the solver may be off by at t = 1 grows by at most e^(mu (2.5 - 1)) and a little from there.
    torch.testing.assert_close(rest[:, 1], whole[:, 2], rtol=1e-6, atol=1e-7 + 1e-9 * math.exp(1.5 * mu))


def test_each_trajectory_has_its_own_mu_and_start():
    starts, mus = torch.tensor([[2.0, 0.0], [0.5, -1.0]]), torch.tensor([0.5, 3.0])
    together = oscillation([0.0, 3.0], mus, starts).x
    for k in range(2):
        torch.testing.assert_close(oscillation([0.0, 3.0], float(mus[k]), starts[k]).x[0], together[k])


def test_starts_and_noise_are_functions_of_the_generator():
    def make(seed):
        return oscillation([0.0, 1.0], starts=5, noise=0.1, generator=seed).x

    assert torch.equal(make(0), make(0))
    assert not torch.equal(make(0), make(1))
    plain = oscillation([0.0, 1.0], starts=5, generator=0).x
    assert plain[:, 0].abs().max() <= 2
    assert 0.02 < (make(0) - plain).std() < 0.3


def test_one_time_alone_gives_the_start():
    assert oscillation([4.0], x0=(1.0, 2.0)).x.tolist() == [[[1.0, 2.0]]]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: oscillation([0.0, 2.0, 1.0]), "ascending"),
        (lambda: oscillation([]), "ascending"),
        (lambda: oscillation([0.0, 1.0], x0=(1.0, 2.0, 3.0)), "position and velocity"),
        (lambda: oscillation([0.0, 1.0], mu=math.nan), "mu must be a finite number"),
        (lambda: oscillation([0.0, 1.0], torch.ones(2), torch.ones(3, 2)), "2 numbers for 3 starts"),
        (lambda: oscillation([0.0, 1.0], starts=3), "give a generator"),
    ],
)
def test_bad_input_gets_a_sentence(call, sentence):
    with pytest.raises(ncode.InputError, match=sentence):
        call()
