import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ncode_lab.data import annuli, episodes, oscillation, reflection

import ncode


@given(size=st.integers(1, 200), dim=st.integers(1, 5), seed=st.integers(0, 2**40))
def test_a_reflection_is_minus_the_point_and_lies_in_the_cube(size, dim, seed):
    x, y = reflection(size, dim=dim, generator=seed)
    assert x.shape == (size, dim)
    assert torch.equal(y, -x)
    assert x.abs().max() <= 1


@given(inner=st.integers(1, 60), outer=st.integers(1, 60), dim=st.integers(1, 6), seed=st.integers(0, 100))
def test_each_class_of_the_annuli_keeps_to_its_radii(inner, outer, dim, seed):
    x, y = annuli(inner, outer, dim=dim, generator=seed)
    radius = x.double().norm(dim=1)
    assert y.bincount().tolist() == [inner, outer]
    assert radius[y == 0].max() <= 0.5 + 1e-6
    assert radius[y == 1].min() >= 1.0 - 1e-6
    assert radius[y == 1].max() <= 1.5 + 1e-6


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_the_radius_is_drawn_as_in_the_anode_paper(dim):
    x, y = annuli(20_000, 20_000, dim=dim, generator=0)
    for label, low, high in ((0, 0.0, 0.5), (1, 1.0, 1.5)):
        u = ((x[y == label].norm(dim=1) - low) / (high - low)) ** dim
        shares = torch.histc(u.double(), bins=10, min=0, max=1) / len(u)
        assert (shares - 0.1).abs().max() < 0.01


def test_directions_are_even_around_the_circle():
    x, _ = annuli(20_000, 1, generator=0)
    angle = torch.atan2(x[:, 1], x[:, 0])
    shares = torch.histc(angle, bins=8, min=-torch.pi, max=torch.pi) / len(angle)
    assert (shares - 1 / 8).abs().max() < 0.01


def test_classes_come_in_random_order():
    _, y = annuli(500, 1000, generator=0)
    assert 0.2 < (y[:500] == 0).float().mean() < 0.5


def test_the_same_generator_gives_the_same_points_and_then_others():
    first, second = (torch.Generator().manual_seed(3) for _ in range(2))
    train, again = annuli(50, 100, generator=first), annuli(50, 100, generator=second)
    held_out = annuli(50, 100, generator=first)
    assert torch.equal(train.x, again.x)
    assert torch.equal(train.y, again.y)
    assert not torch.isin(held_out.x[:, 0], train.x[:, 0]).any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_seed_gives_the_same_points_on_every_device():
    with torch.device("cuda"):
        points = annuli(50, 100, generator=1), reflection(20, generator=1)
    assert torch.equal(points[0].x, annuli(50, 100, generator=1).x)
    assert torch.equal(points[1].x, reflection(20, generator=1).x)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: reflection(0, generator=0), "size must be at least 1; given 0"),
        (lambda: reflection(5, generator=None), "must be a torch.Generator or a seed; given None"),
        (lambda: annuli(generator=0, dim=1.5), "dim must be a whole number"),
    ],
)
def test_points_that_cannot_be_drawn_get_a_sentence(call, sentence):
    with pytest.raises(ncode.InputError, match=sentence):
        call()


COUNTS = {
    "batch": st.integers(1, 5),
    "bits": st.integers(1, 40),
    "patterns": st.integers(1, 6),
    "times": st.integers(1, 3),
}


@given(**COUNTS, degradation=st.floats(0, 1), seed=st.integers(0, 1000))
def test_an_episode_shows_patterns_and_asks_for_one_of_them(batch, bits, patterns, times, degradation, seed):
    shown = episodes(batch, bits, patterns, times=times, degradation=degradation, generator=seed)
    assert shown.stimuli.shape == (batch, times * patterns, bits)
    assert shown.stimuli.abs().eq(1).all()
    for k in range(batch):
        rounds = shown.order[k].view(times, patterns)
        assert rounds.sort(1).values.eq(torch.arange(patterns)).all()
        when = shown.order[k] == shown.asked[k]
        assert when.sum() == times
        assert shown.stimuli[k, when].eq(shown.target[k]).all()


@given(**COUNTS, degradation=st.floats(0, 1), seed=st.integers(0, 1000))
def test_exactly_the_share_of_bits_is_lost_and_the_rest_is_right(batch, bits, patterns, times, degradation, seed):
    shown = episodes(batch, bits, patterns, times=times, degradation=degradation, generator=seed)
    lost = shown.query == 0
    assert lost.sum(1).eq(round(degradation * bits)).all()
    assert shown.query[~lost].eq(shown.target[~lost]).all()


def test_every_order_every_question_and_every_bit_comes_up():
    shown = episodes(3000, bits=10, patterns=3, generator=0)
    orders = shown.order[:, :3].unique(dim=0, return_counts=True)[1]
    assert len(orders) == 6
    assert orders.min() > 400
    assert (shown.order[:, :3] == shown.order[:, 3:]).all(1).float().mean() == pytest.approx(1 / 6, abs=0.03)
    assert shown.asked.bincount().min() > 900
    assert (shown.query == 0).float().mean(0).sub(0.5).abs().max() < 0.05
    assert shown.target.mean(0).abs().max() < 0.08


def test_the_same_generator_gives_the_same_episodes():
    first, again, other = (episodes(4, generator=torch.Generator().manual_seed(seed)) for seed in (5, 5, 6))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first.stimuli, other.stimuli)


def test_an_episode_fits_a_plastic_block():
    shown = episodes(2, bits=8, patterns=2, generator=0)
    block = ncode.NCODE(ncode.dynamics.Recurrent(8), ncode.Hebbian(), t1=0.5, method="rk4", dt=0.25)
    learned = block.episode(torch.cat([shown.stimuli, shown.query[:, None]], 1))
    assert learned.x.shape == shown.target.shape


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_seed_gives_the_same_episodes_on_every_device_and_a_generator_draws_where_it_is():
    here = episodes(4, generator=0)
    with torch.device("cuda"):
        assert torch.equal(here.stimuli, episodes(4, generator=0).stimuli)
    on_device = torch.Generator("cuda").manual_seed(0)
    assert episodes(4, generator=on_device).query.is_cuda
    assert not episodes(4, generator=on_device).to("cpu").query.is_cuda


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"degradation": 1.5}, "from 0 to 1; given 1.5"),
        ({"degradation": -0.1}, "at least 0"),
        ({"bits": 0}, "bits must be at least 1"),
        ({"patterns": 2.5}, "patterns must be a whole number"),
    ],
)
def test_episodes_that_cannot_be_drawn_get_a_sentence(changes, sentence):
    with pytest.raises(ncode.InputError, match=sentence):
        episodes(2, **changes, generator=0)


@pytest.mark.slow
def test_a_stiff_oscillation_agrees_with_scipy_across_its_jump():
    integrate, mu = pytest.importorskip("scipy.integrate"), 1000.0
    ts = torch.linspace(0, 1000, 101, dtype=torch.float64)

    def field(t, x):
        return [x[1], mu * (1 - x[0] ** 2) * x[1] - x[0]]

    def jacobian(t, x):
        return [[0.0, 1.0], [-2 * mu * x[0] * x[1] - 1, mu * (1 - x[0] ** 2)]]

    options = {"method": "Radau", "jac": jacobian, "t_eval": ts.numpy(), "rtol": 1e-9, "atol": 1e-12}
    expected = torch.as_tensor(integrate.solve_ivp(field, (0.0, 1000.0), [2.0, 0.0], **options).y[0])
    found = oscillation(ts, mu=mu, dtype=torch.float64).x[:, 0]
    assert float(found[-1]) < -1.5  # it has jumped
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_without_damping_an_oscillation_is_a_cosine():
    t, x = oscillation(torch.linspace(0, 10, 51), mu=0.0, x0=(1.5, 0.0), dtype=torch.float64)
    torch.testing.assert_close(x, torch.stack([1.5 * t.cos(), -1.5 * t.sin()], 1), rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("mu", "period"), [(1.0, 6.6632868593), (5.0, 11.6122306678)])
def test_the_period_of_the_limit_cycle_is_the_known_one(mu, period):
    _, x = oscillation([0.0, 20.0, 20.0 + period / 2, 20.0 + period], mu=mu, dtype=torch.float64)
    torch.testing.assert_close(x[3], x[1], rtol=0, atol=1e-6)
    torch.testing.assert_close(x[2], -x[1], rtol=0, atol=1e-6)


@settings(max_examples=5)
@given(mu=st.floats(0, 5), position=st.floats(-3, 3), velocity=st.floats(-3, 3))
def test_a_trajectory_goes_on_where_a_shorter_one_ended(mu, position, velocity):
    whole = oscillation([0.0, 1.0, 2.5], mu, (position, velocity), dtype=torch.float64).x
    rest = oscillation([1.0, 2.5], mu, tuple(whole[1].tolist()), dtype=torch.float64).x
    # What the solver may be off by at t = 1 grows by at most e^(mu (2.5 - 1)) and a little from there.
    torch.testing.assert_close(rest[1], whole[2], rtol=1e-6, atol=1e-7 + 1e-9 * math.exp(1.5 * mu))


def test_one_time_alone_gives_the_start():
    assert oscillation([4.0], x0=(1.0, 2.0)).x.tolist() == [[1.0, 2.0]]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: oscillation([0.0, 2.0, 1.0]), "ascending"),
        (lambda: oscillation([]), "ascending"),
        (lambda: oscillation([0.0, 1.0], x0=(1.0, 2.0, 3.0)), "position and velocity"),
        (lambda: oscillation([0.0, 1.0], mu=math.nan), "mu must be a finite number"),
    ],
)
def test_trajectories_that_cannot_be_solved_get_a_sentence(call, sentence):
    with pytest.raises(ncode.InputError, match=sentence):
        call()
