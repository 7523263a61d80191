import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ncode_lab.experiments.coding.models import KINDS, AutoencoderSettings, build_autoencoder
from ncode_lab.experiments.coding.texture import Texture, _filters, texture_distance
from torch.nn.functional import avg_pool2d, mse_loss

import ncode


def photographs(channels=3, size=32, batch=4):
    """Random images with shades as well as detail."""
    coarse = torch.nn.functional.interpolate(torch.rand(batch, channels, size // 4, size // 4), size=size)
    return 0.7 * coarse + 0.3 * torch.rand(batch, channels, size, size)


def blurred(images, width):
    return avg_pool2d(images, width, 1, width // 2, count_include_pad=False)


def chess_board(size=16):
    """Nothing but the finest detail."""
    rows = torch.arange(size)
    return ((rows[:, None] + rows) % 2).float().expand(2, 3, size, size) - 0.5


@settings(max_examples=20, deadline=None)
@given(channels=st.integers(1, 4), height=st.integers(6, 40), width=st.integers(6, 40), batch=st.integers(1, 3))
def test_images_of_any_size_are_at_no_distance_from_themselves_and_at_some_from_others(channels, height, width, batch):
    images = torch.rand(batch, channels, height, width)
    assert float(texture_distance(images, images)) == 0
    assert float(texture_distance(0.5 * images, images)) > 0


@pytest.mark.parametrize("images", [photographs(), torch.full((2, 3, 32, 32), 0.5)], ids=["detail", "none"])
def test_the_gradient_is_finite_where_images_are_the_same_and_where_there_is_no_detail(images):
    for target in (images, photographs(batch=len(images))):
        back = images.clone().requires_grad_()
        texture_distance(back, target).backward()
        assert bool(back.grad.isfinite().all())
        if target is images:
            assert not back.grad.any()


@pytest.mark.parametrize("change", [lambda x: x + 0.25, lambda x: 1 - x], ids=["brighter", "negative"])
def test_neither_brightness_nor_the_sign_of_detail_counts(change):
    images = photographs().double()
    assert float(texture_distance(change(images), images)) < 1e-20


def test_the_colours_of_detail_count():
    images = photographs()
    grey = images.mean(1, keepdim=True).expand_as(images)
    assert float(texture_distance(grey, images)) > 1e-4


def test_the_more_an_image_is_blurred_the_further_it_is_from_itself():
    images = photographs()
    distances = [float(texture_distance(blurred(images, width), images)) for width in (1, 3, 5, 9)]
    assert distances == sorted(distances)
    assert distances[0] == 0 < distances[1]


def test_strength_is_compared_place_by_place():
    noise = torch.rand(2, 3, 32, 32)
    left, right = noise.clone(), noise.clone()
    left[..., 16:], right[..., :16] = 0.5, 0.5
    assert float(texture_distance(left, right)) > 0.1 * float(mse_loss(left, right))


@pytest.mark.parametrize("dims", [(2,), (3,), (2, 3)], ids=["upside down", "mirrored", "turned"])
def test_mirrored_pairs_are_as_far_apart_and_so_are_pairs_in_the_other_order(dims):
    one, other = photographs().double(), photographs().double()
    expected = texture_distance(one, other)
    torch.testing.assert_close(texture_distance(one.flip(dims), other.flip(dims)), expected)
    torch.testing.assert_close(texture_distance(other, one), expected)


@pytest.mark.parametrize("part", [0.2, 0.5, 1.5])
def test_of_detail_that_is_only_too_weak_or_too_strong_the_distance_is_the_mean_square(part):
    images = chess_board()
    expected = mse_loss(part * images, images)
    torch.testing.assert_close(texture_distance(part * images, images), expected, rtol=1e-4, atol=0)


def test_level_and_detail_have_the_square_of_the_image_at_every_frequency():
    filters = _filters(torch.device("cpu"), torch.float64)[:, 0]
    detail = torch.fft.fft2(filters, s=(16, 16)).abs().square().sum(0)
    level = (1 + torch.cos(2 * torch.pi * torch.arange(16, dtype=torch.float64) / 16)) / 2
    torch.testing.assert_close(detail + torch.outer(level, level).square(), torch.ones_like(detail))


def test_the_distance_is_no_larger_than_the_mean_square():
    one, other = photographs(), photographs()
    assert float(texture_distance(one, other)) <= float(mse_loss(one, other))


def test_of_detail_of_the_right_strength_in_the_wrong_place_there_is_an_error_and_no_distance():
    images = chess_board()
    assert float(mse_loss(-images, images)) == 1
    assert float(texture_distance(-images, images)) == 0


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_the_loss_is_least_for_detail_as_strong_as_the_docstring_says(weight):
    images, weak = chess_board(), 0.2
    parts = torch.linspace(0, 1, 201)
    losses = [mse_loss(p * images, weak * images) + weight * texture_distance(p * images, images) for p in parts]
    best = float(parts[int(torch.stack(losses).argmin())])
    assert best == pytest.approx(weak + (1 - weak) * weight / (1 + weight), abs=5e-3)


@pytest.mark.parametrize("shapes", [((2, 3, 8, 8), (2, 3, 9, 9)), ((2, 3, 5, 8), (2, 3, 5, 8)), ((3, 8, 8), (3, 8, 8))])
def test_what_has_no_texture_is_refused(shapes):
    with pytest.raises(ncode.InputError, match="same shape and of at least 6 x 6"):
        texture_distance(*(torch.rand(shape) for shape in shapes))


def judged(kind, weight, shown):
    torch.manual_seed(0)
    model = build_autoencoder(kind, AutoencoderSettings("cifar10", width=0.05, texture=weight))
    torch.manual_seed(1)
    found = model.training_loss(shown)
    found.loss.backward()
    return found, [each.grad for each in model.parameters()]


@pytest.mark.parametrize("kind", KINDS)
def test_every_model_adds_the_distance_times_its_weight_and_reports_it(kind):
    shown = photographs()
    (without, slopes), (found, others) = judged(kind, 0.0, shown), judged(kind, 2.0, shown)
    assert "texture" not in without.parts
    assert torch.equal(found.images, without.images)
    torch.testing.assert_close(found.parts["texture"], 2 * texture_distance(found.images, shown).detach())
    torch.testing.assert_close(found.loss, without.loss + found.parts["texture"])
    assert not all(torch.equal(one, other) for one, other in zip(slopes, others, strict=True))


def test_at_weight_0_the_loss_is_bit_for_bit_the_error():
    shown = photographs()
    found, _ = judged("ae", 0.0, shown)
    assert torch.equal(found.loss, mse_loss(found.images, shown))


def test_digits_have_no_texture():
    with_it, without = (
        build_autoencoder("ae", AutoencoderSettings("mnist", width=0.05, texture=weight)) for weight in (1.0, 0.0)
    )
    with_it.load_state_dict(without.state_dict())
    shown = photographs()[:, :1, :28, :28]
    assert torch.equal(with_it.training_loss(shown).loss, without.training_loss(shown).loss)


def test_under_autocast_the_distance_is_that_of_single_precision():
    shown, back = photographs(), blurred(photographs(), 3)
    with torch.autocast("cpu", torch.bfloat16):
        found = texture_distance(back, shown)
        model = build_autoencoder("ae", AutoencoderSettings("cifar10", width=0.05, texture=1.0))
        loss = model.training_loss(shown).loss
    assert found.dtype == loss.dtype == torch.float32
    assert torch.equal(found, texture_distance(back, shown))


def test_a_weight_below_0_is_refused():
    with pytest.raises(ncode.InputError, match="texture must be at least 0; given -1"):
        AutoencoderSettings("cifar10", texture=-1.0)
    with pytest.raises(ncode.InputError, match="must be above 0; given 0"):
        Texture(0.0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_distance_and_its_gradient_can_be_captured_in_a_graph():
    shown = photographs().cuda()
    back = blurred(shown, 3).requires_grad_()
    (expected,) = torch.autograd.grad(texture_distance(back, shown), back)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.autograd.grad(texture_distance(back, shown), back)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (found,) = torch.autograd.grad(texture_distance(back, shown), back)
    graph.replay()
    torch.testing.assert_close(found, expected)
