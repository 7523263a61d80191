"""Memories: what they are driven by, what they remember, and how many parameters they have."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ncode_lab.data import episodes
from ncode_lab.experiments.memory.experiment import trajectory
from ncode_lab.experiments.memory.models import MODELS, ClampedLSTMMemory, build_memory

from ncode import InputError
from ncode.models import PlasticMemory

SMALL = {"units": 40, "scale": 0.1}


LEARNING = [name for name in MODELS if name != "nearest"]


@pytest.mark.parametrize("name", LEARNING)
def test_every_memory_answers_with_a_pattern_and_learns_from_it(name):
    torch.manual_seed(0)
    model = build_memory(name, 12, **SMALL)
    shown = episodes(3, 12, 2, generator=0)
    answer = model(shown.stimuli, shown.query)
    assert answer.shape == shown.target.shape
    (answer - shown.target).square().mean().backward()
    for parameter, value in model.named_parameters():
        assert value.grad is not None, parameter
        assert value.grad.abs().max() > 0, parameter


@pytest.mark.parametrize("name", MODELS)
def test_an_episode_does_not_depend_on_those_beside_it(name):
    torch.manual_seed(0)
    model = build_memory(name, 12, **SMALL)
    shown = episodes(4, 12, 3, generator=1)
    alone = torch.cat([model(shown.stimuli[i : i + 1], shown.query[i : i + 1]) for i in range(4)])
    torch.testing.assert_close(model(shown.stimuli, shown.query), alone, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LEARNING)
def test_what_was_shown_at_first_reaches_the_answer(name):
    torch.manual_seed(0)
    model = build_memory(name, 12, **SMALL)
    shown = episodes(1, 12, 2, generator=2)
    other = shown.stimuli.clone()
    other[:, 0] = -other[:, 0].roll(1, 1)
    assert not torch.equal(model(shown.stimuli, shown.query), model(other, shown.query))


@given(n=st.integers(1, 40))
@settings(max_examples=10, deadline=None)
def test_continuous_memories_have_the_same_number_of_parameters(n):
    models = [build_memory(name, n) for name in ("ncode", "data-control", "ode-rnn")]
    assert {sum(each.numel() for each in model.parameters()) for model in models} == {2 * n * n}


def test_plastic_weights_that_grow_with_what_is_shown_complete_a_pattern():
    model = PlasticMemory(100, scale=0.0)
    with torch.no_grad():
        model.block.controller.mu.fill_(0.02)
    shown = episodes(16, 100, 3, generator=0, degradation=0.7)
    wrong = model(shown.stimuli, shown.query).sign() != shown.target
    assert wrong.float().mean() < 0.01


def test_without_plasticity_nothing_is_remembered():
    model = PlasticMemory(20, scale=0.0)
    shown = episodes(4, 20, 2, generator=0)
    assert torch.equal(model(shown.stimuli, shown.query).sign(), shown.query)


def test_an_episode_that_is_watched_ends_as_one_that_is_not():
    torch.manual_seed(0)
    model = PlasticMemory(10, scale=0.05, solver_steps=10)
    shown = episodes(2, 10, 2, generator=0)
    ts, xs = trajectory(model, shown.stimuli, shown.query, points=11)
    assert xs.shape == (2, 5 * 11, 10)
    torch.testing.assert_close(xs[:, 0], shown.stimuli[:, 0])
    torch.testing.assert_close(xs[:, -11], shown.query)
    torch.testing.assert_close(xs[:, -1], model(shown.stimuli, shown.query))
    assert (ts.diff() >= 0).all()


def test_visible_units_of_a_clamped_lstm_show_the_bits_that_are_given():
    torch.manual_seed(0)
    shown = episodes(8, 30, 2, generator=0)
    answer = ClampedLSTMMemory(30, 50)(shown.stimuli, shown.query)
    known = shown.query != 0
    assert torch.equal(answer.sign()[known], shown.target[known])


def test_a_clamped_lstm_without_a_unit_for_each_bit_is_refused():
    with pytest.raises(InputError, match="20 units for 30 bits"):
        ClampedLSTMMemory(30, 20)


def test_a_misspelt_memory_gets_the_nearest_right_name():
    with pytest.raises(InputError, match="lstm-miconi"):
        build_memory("lstm-micony", 10)
