import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ncode_lab.data import episodes

import ncode

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
    here, there = episodes(4, generator=0), episodes(4, generator=0, device="cuda")
    assert torch.equal(here.stimuli, there.stimuli.cpu())
    on_device = torch.Generator("cuda").manual_seed(0)
    assert episodes(4, generator=on_device).query.is_cuda
    assert not episodes(4, generator=on_device, device="cpu").query.is_cuda


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"degradation": 1.5}, "from 0 to 1; given 1.5"),
        ({"degradation": -0.1}, "at least 0"),
        ({"bits": 0}, "bits must be at least 1"),
        ({"patterns": 2.5}, "patterns must be a whole number"),
    ],
)
def test_bad_input_gets_a_sentence(changes, sentence):
    with pytest.raises(ncode.InputError, match=sentence):
        episodes(2, **changes, generator=0)
