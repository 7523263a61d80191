import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ncode_lab.data import batch_indices, batches_per_epoch, epoch_order, stream

import ncode

SIZES = st.integers(1, 60).flatmap(lambda size: st.tuples(st.integers(1, size), st.just(size)))


@given(sizes=SIZES, seed=st.integers(0, 1000), epoch=st.integers(0, 5))
def test_no_image_comes_twice_in_an_epoch(sizes, seed, epoch):
    batch, size = sizes
    count = batches_per_epoch(batch, size)
    steps = range(epoch * count, (epoch + 1) * count)
    seen = torch.cat([batch_indices(step, batch, size, seed) for step in steps])
    assert len(seen.unique()) == len(seen) == count * batch
    assert torch.equal(seen, epoch_order(epoch, size, seed)[: len(seen)])
    assert 0 <= int(seen.min()) <= int(seen.max()) < size


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = [epoch_order(epoch, 100, seed) for epoch in range(3) for seed in range(3)]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(orders, 2))
    assert all(torch.equal(order.sort().values, torch.arange(100)) for order in orders)


def test_a_step_does_not_depend_on_the_steps_before():
    forward = [batch_indices(step, 7, 50, 0) for step in range(30)]
    backward = [batch_indices(step, 7, 50, 0) for step in reversed(range(30))]
    assert all(torch.equal(a, b) for a, b in zip(forward, reversed(backward), strict=True))


def test_changing_what_was_returned_changes_nothing_else():
    batch_indices(0, 5, 20, 0).zero_()
    epoch_order(0, 20, 0).zero_()
    assert len(batch_indices(0, 5, 20, 0).unique()) == 5


def test_it_leaves_the_global_random_numbers_alone():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    batch_indices(3, 4, 9, seed=123)
    assert torch.equal(torch.rand(3), expected)


def test_streams_of_different_purpose_differ():
    names = [(0,), (1,), (0, "a"), (0, "b"), (0, "a", 1), (0, "a", 2), (0, "a1")]
    drawn = [torch.rand(4, generator=stream(*name)) for name in names]
    assert all(not torch.equal(a, b) for a, b in itertools.combinations(drawn, 2))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_indices_are_the_same_on_every_device():
    assert torch.equal(batch_indices(9, 4, 30, 0, "cuda").cpu(), batch_indices(9, 4, 30, 0))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: batch_indices(0, 11, 10, 0), "a batch of 11 does not fit 10 images"),
        (lambda: batch_indices(-1, 1, 10, 0), "step must be at least 0"),
        (lambda: batch_indices(0, 0, 10, 0), "batch must be at least 1"),
        (lambda: batch_indices(0, 1, 10, "zero"), "seed must be a whole number; given 'zero'"),
        (lambda: epoch_order(-2, 10, 0), "epoch must be at least 0"),
    ],
)
def test_bad_input_gets_a_sentence(call, sentence):
    with pytest.raises(ncode.InputError, match=sentence):
        call()
