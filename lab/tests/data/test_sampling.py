import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ncode_lab.data import augment, batch_indices, batches_per_epoch, stream
from torch.nn import functional as F

import ncode

from .published import random_bytes

SIZES = st.integers(1, 60).flatmap(lambda size: st.tuples(st.integers(1, size), st.just(size)))


def epoch_order(epoch, size, seed):
    """The order of an epoch is that of a batch of all images."""
    return batch_indices(epoch, size, size, seed)


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
    assert len(batch_indices(0, 5, 20, 0).unique()) == 5


def test_drawing_a_batch_leaves_the_global_random_numbers_alone():
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
    ],
)
def test_batches_that_cannot_be_drawn_get_a_sentence(call, sentence):
    with pytest.raises(ncode.InputError, match=sentence):
        call()


def crops(image, padding, flip):
    """All images that `augment` may make of an image (C, H, W)."""
    padded = F.pad(image[None].double(), (padding,) * 4, mode="reflect")[0].to(image.dtype)
    height, width = image.shape[1:]
    shifts = [(y, x) for y in range(2 * padding + 1) for x in range(2 * padding + 1)]
    found = [padded[:, y : y + height, x : x + width] for y, x in shifts]
    return torch.stack(found + [crop.flip(2) for crop in found] * flip)


@given(
    seed=st.integers(0, 1000),
    padding=st.integers(0, 3),
    flip=st.booleans(),
    floating=st.booleans(),
    height=st.integers(4, 7),
    width=st.integers(4, 7),
)
def test_each_image_becomes_one_of_its_padded_crops(seed, padding, flip, floating, height, width):
    images = random_bytes(5, 3, height, width, seed=seed)
    images = images.float() / 255 if floating else images
    moved = augment(images, generator=seed, padding=padding, flip=flip)
    assert moved.shape == images.shape
    assert moved.dtype == images.dtype
    for image, result in zip(images, moved, strict=True):
        assert (crops(image, padding, flip) == result).flatten(1).all(1).any()


def test_every_shift_and_flip_comes_up_about_as_often():
    image = random_bytes(1, 6, 6)
    moved = augment(image.expand(4000, 1, 6, 6), generator=0, padding=1)
    kinds = crops(image, 1, True)
    counts = torch.stack([(moved == kind).flatten(1).all(1).sum() for kind in kinds])
    assert counts.sum() == 4000
    assert counts.min() > 150
    assert counts.max() < 300


def test_images_of_a_batch_get_different_shifts():
    image = random_bytes(1, 16, 16)
    moved = augment(image.expand(64, 1, 16, 16), generator=0)
    assert len(moved.unique(dim=0)) > 30


def test_augmentation_is_a_function_of_the_generator():
    images = random_bytes(8, 3, 8, 8)
    first, again, other = (augment(images, generator=stream(0, "augment", step)) for step in (4, 4, 5))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_whether_images_are_mirrored_does_not_change_how_they_are_shifted():
    images = random_bytes(20, 1, 8, 8)
    plain, mirrored = (augment(images, generator=0, flip=flip) for flip in (False, True))
    same, turned = ((a == plain).flatten(1).all(1) for a in (mirrored, mirrored.flip(3)))
    assert (same | turned).all()
    assert same.any()
    assert turned.any()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_generator_on_the_cpu_moves_images_alike_on_every_device():
    images = random_bytes(8, 3, 8, 8)
    assert torch.equal(augment(images.cuda(), generator=0).cpu(), augment(images, generator=0))
    assert augment(images.cuda(), generator=torch.Generator("cuda").manual_seed(0)).is_cuda


@pytest.mark.parametrize(
    ("shape", "changes", "sentence"),
    [
        ((3, 8, 8), {}, "must be .batch, C, H, W.; given shape .3, 8, 8."),
        ((1, 3, 4, 9), {"padding": 4}, "smaller than the images, 4 x 9; given 4"),
        ((1, 3, 8, 8), {"padding": 1.5}, "padding must be a whole number"),
    ],
)
def test_images_that_cannot_be_augmented_get_a_sentence(shape, changes, sentence):
    with pytest.raises(ncode.InputError, match=sentence):
        augment(random_bytes(*shape), generator=0, **changes)
