"""`PlasticMemory` with other rules, bits that are held, and a longer query."""

import pytest
import torch

import ncode
from ncode.models import PlasticMemory

HOW = {"strength": 3.5, "hold": -1.0, "gain": 5.0, "leak": 1.0, "clamp": True, "frozen_query": True, "shared": True}


def shown(patterns, batch=20, n=100, given=30):
    generator = torch.Generator().manual_seed(3)
    stored = torch.randn(batch, patterns, n, generator=generator).sign()
    kept = torch.rand(batch, n, generator=generator).argsort(1) < given
    return torch.cat([stored, stored.flip(1)], 1), stored[:, 0] * kept, stored[:, 0]


def errors(memory, patterns, **more):
    stimuli, query, target = shown(patterns, **more)
    with torch.no_grad():
        return float((memory(stimuli, query).sign() != target).float().mean())


@pytest.mark.parametrize("rule", ["oja", "delta"])
def test_rules_that_correct_themselves_recall_fifteen_patterns_and_hebbs_does_not(rule):
    """Without training; the query has 30 of 100 bits."""
    corrected = errors(PlasticMemory(100, rule=rule, query_time=4.0, solver_steps=2, **HOW), 15)
    hebb = errors(PlasticMemory(100, rule="hebb", query_time=4.0, solver_steps=2, **{**HOW, "strength": 1.5}), 15)
    assert corrected < 0.01 < 0.05 < hebb


def test_bits_that_are_given_are_held():
    stimuli, query, _ = shown(3)
    recalled = PlasticMemory(100, rule="delta", **HOW)(stimuli, query)
    assert torch.equal(recalled[query != 0], query[query != 0])


def test_a_memory_of_shared_numbers_has_six_and_all_get_gradients():
    memory, (stimuli, query, target) = PlasticMemory(20, rule="delta", **HOW), shown(3, n=20, given=10)
    (memory(stimuli, query) - target).square().mean().backward()
    assert sum(parameter.numel() for parameter in memory.parameters()) == 6
    assert all(parameter.grad.abs().min() > 0 for parameter in memory.parameters())


def test_a_longer_query_is_a_longer_solve_from_the_same_theta():
    stimuli, query, _ = shown(3, batch=2, n=10, given=5)
    memory = PlasticMemory(10, rule="delta", query_time=1.5, strength=1.0, gain=2.0)
    theta = memory.block.episode(stimuli).theta()
    expected = memory.block.episode(query[:, None], theta=theta, t1=1.5).x
    torch.testing.assert_close(memory(stimuli, query), expected)


def test_it_is_saved_with_its_options(tmp_path):
    memory = PlasticMemory(10, rule="oja", query_time=1.0, **HOW)
    memory.save_pretrained(tmp_path)
    stimuli, query, _ = shown(2, batch=2, n=10, given=5)
    assert torch.equal(ncode.from_pretrained(tmp_path)(stimuli, query), memory(stimuli, query))
