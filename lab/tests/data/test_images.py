import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ncode_lab.data import Images, ImageSets, Normalisation, draw_digits, draw_shapes, hold_out, load

import ncode

from .published import random_bytes


def numbered(count, channels=1):
    """Images that tell their number in the first pixel."""
    images = random_bytes(count, channels, 4, 4, seed=count)
    images[:, 0, 0, 0] = torch.arange(count).to(torch.uint8)
    return Images(images, torch.arange(count), "numbered", tuple(map(str, range(count))))


@given(count=st.integers(2, 50), data=st.data(), seed=st.integers(0, 99))
def test_held_out_images_and_the_rest_are_the_whole(count, data, seed):
    held = data.draw(st.integers(1, count - 1))
    images = numbered(count)
    rest, aside = hold_out(images, held, seed)
    assert len(aside) == held
    assert torch.cat([rest.labels, aside.labels]).sort().values.tolist() == list(range(count))
    for part in (rest, aside):
        assert torch.equal(part.images[:, 0, 0, 0].long(), part.labels)
    assert torch.equal(hold_out(images, held, seed)[1].labels, aside.labels)


def test_another_seed_holds_out_others():
    images = numbered(200)
    assert not torch.equal(hold_out(images, 50, 0)[1].labels, hold_out(images, 50, 1)[1].labels)


def test_floats_run_from_0_to_1():
    images = Images(torch.tensor([0, 51, 255, 102], dtype=torch.uint8).view(4, 1, 1, 1), torch.zeros(4).long(), "four")
    assert images.float().flatten().tolist() == pytest.approx([0.0, 0.2, 1.0, 0.4])
    assert images.float([2, 0]).flatten().tolist() == [1.0, 0.0]
    assert images.float().dtype == torch.float32


def test_to_moves_the_whole_set_as_it_is():
    there = numbered(3).to("meta")
    assert there.device.type == there.labels.device.type == "meta"
    assert there.images.dtype == torch.uint8
    assert there.name == "numbered"


@given(channels=st.integers(1, 4), count=st.integers(2, 20), seed=st.integers(0, 20))
def test_normalised_training_images_have_mean_0_and_deviation_1(channels, count, seed):
    images = Images(random_bytes(count, channels, 5, 6, seed=seed), torch.zeros(count).long(), "random")
    normalise = Normalisation.of(images)
    x = normalise(images.images)
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(channels), rtol=0, atol=1e-5)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(channels), rtol=1e-4, atol=0)
    torch.testing.assert_close(normalise(images.float()), x)
    torch.testing.assert_close(normalise.undo(x), images.float())


def test_a_channel_that_never_changes_is_not_blown_up():
    images = Images(torch.full((3, 1, 2, 2), 7, dtype=torch.uint8), torch.zeros(3).long(), "flat")
    assert Normalisation.of(images)(images.images).abs().max() < 1e-6


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Images(torch.zeros(2, 1, 4, 4), torch.zeros(2).long(), "x"), "must be uint8 .* given torch.float32"),
        (lambda: Images(random_bytes(2, 4, 4), torch.zeros(2).long(), "x"), r"\(N, C, H, W\); given .* \(2, 4, 4\)"),
        (
            lambda: Images(random_bytes(2, 1, 4, 4), torch.zeros(3).long(), "x"),
            r"one per image, \(2,\); given .*\(3,\)",
        ),
        (lambda: hold_out(numbered(5), 5), "cannot hold out 5 of 5 images"),
    ],
)
def test_bad_input_gets_a_sentence(call, sentence):
    with pytest.raises(ncode.InputError, match=sentence):
        call()


@pytest.mark.parametrize(
    ("name", "shape"),
    [("mnist", (1, 28, 28)), ("fashion-mnist", (1, 28, 28)), ("cifar10", (3, 32, 32)), ("celeba", (3, 64, 64))],
)
def test_the_fallback_has_the_shape_of_the_real_set_and_says_what_it_is(name, shape, monkeypatch):
    monkeypatch.setattr("ncode_lab.data.datasets._GENERATED", {"train": 30, "test": 20})
    train, test = load(name, fallback=True)
    assert train.shape == test.shape == shape
    assert train.generated
    assert "(generated)" in train.name
    assert (len(train), len(test), test.split) == (30, 20, "test")
    assert len(train.classes) == 10
    assert not (train.images[:20] == test.images).flatten(1).all(1).any()


@pytest.mark.parametrize("draw", [draw_digits, draw_shapes])
def test_drawn_sets_are_functions_of_the_seed_with_even_classes(draw):
    first, again, other = (draw(130, generator=seed) for seed in (0, 0, 1))
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.images, other.images)
    assert first.labels.bincount().tolist() == [13] * 10


def linear_accuracy(features, train, test):
    """How many a ridge regression on features gets right."""
    x, z = features(train), features(test)
    mean, scale = x.mean(0), x.std(0) + 1e-3
    x, z = (x - mean) / scale, (z - mean) / scale
    wanted = torch.nn.functional.one_hot(train.labels, 10).float() - 0.1
    weights = torch.linalg.solve(x @ x.T + x.shape[1] * torch.eye(len(x)), wanted)
    return ((z @ x.T @ weights).argmax(1) == test.labels).float().mean().item()


def pixels(images):
    return images.float().flatten(1)


def spectrum_of_edges(images):
    """Features that know neither colour nor place."""
    x = images.float()
    across, down = x.diff(dim=-1)[..., :-1, :], x.diff(dim=-2)[..., :-1]
    return torch.fft.rfft2((across**2 + down**2).sum(1).sqrt()).abs().flatten(1).log1p()


def test_shapes_are_not_told_apart_by_their_pixels_but_by_their_form():
    train, test = draw_shapes(600, generator=0), draw_shapes(200, generator=1)
    assert linear_accuracy(pixels, train, test) < 0.3
    assert linear_accuracy(spectrum_of_edges, train, test) > 0.5


def test_digits_are_neither_hopeless_nor_easy_for_a_linear_classifier():
    train, test = draw_digits(600, generator=0), draw_digits(200, generator=1)
    assert 0.25 < linear_accuracy(pixels, train, test) < 0.7


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_normalisation_is_the_same_on_every_device():
    images = draw_shapes(50, generator=0)
    here, there = Normalisation.of(images), Normalisation.of(images.to("cuda"))
    assert torch.equal(here.mean, there.mean.cpu())
    assert torch.equal(here.std, there.std.cpu())


def test_both_sets_move_to_a_device_together():
    train, test = ImageSets(numbered(3), numbered(2)).to("meta")
    assert (train.device.type, test.device.type, len(train), len(test)) == ("meta", "meta", 3, 2)
