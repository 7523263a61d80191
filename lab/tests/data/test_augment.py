import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ncode_lab.data import augment, stream
from torch.nn import functional as F

import ncode

from .published import random_bytes


def crops(image, padding, border, flip):
    """All that may come of an image (C, H, W)."""
    mode = {"mode": "reflect"} if border == "reflect" else {}
    padded = F.pad(image[None].double(), (padding,) * 4, **mode)[0].to(image.dtype)
    height, width = image.shape[1:]
    shifts = [(y, x) for y in range(2 * padding + 1) for x in range(2 * padding + 1)]
    found = [padded[:, y : y + height, x : x + width] for y, x in shifts]
    return torch.stack(found + [crop.flip(2) for crop in found] * flip)


@given(
    seed=st.integers(0, 1000),
    padding=st.integers(0, 3),
    border=st.sampled_from(["reflect", "zero"]),
    flip=st.booleans(),
    floating=st.booleans(),
    height=st.integers(4, 7),
    width=st.integers(4, 7),
)
def test_each_image_becomes_one_of_its_padded_crops(seed, padding, border, flip, floating, height, width):
    images = random_bytes(5, 3, height, width, seed=seed)
    images = images.float() / 255 if floating else images
    moved = augment(images, generator=seed, padding=padding, flip=flip, border=border)
    assert moved.shape == images.shape
    assert moved.dtype == images.dtype
    for image, result in zip(images, moved, strict=True):
        assert (crops(image, padding, border, flip) == result).flatten(1).all(1).any()


def test_every_shift_and_flip_comes_up_about_as_often():
    image = random_bytes(1, 6, 6)
    moved = augment(image.expand(4000, 1, 6, 6), generator=0, padding=1)
    kinds = crops(image, 1, "reflect", True)
    counts = torch.stack([(moved == kind).flatten(1).all(1).sum() for kind in kinds])
    assert counts.sum() == 4000
    assert counts.min() > 150
    assert counts.max() < 300


def test_images_of_a_batch_move_apart():
    image = random_bytes(1, 16, 16)
    moved = augment(image.expand(64, 1, 16, 16), generator=0)
    assert len(moved.unique(dim=0)) > 30


def test_it_is_a_function_of_the_generator():
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
        ((1, 3, 8, 8), {"padding": 1.5}, "whole number of pixels"),
        ((1, 3, 8, 8), {"border": "reflekt"}, 'did you mean "reflect"'),
    ],
)
def test_bad_input_gets_a_sentence(shape, changes, sentence):
    with pytest.raises(ncode.InputError, match=sentence):
        augment(random_bytes(*shape), generator=0, **changes)
