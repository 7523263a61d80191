import pytest
import torch
from ncode_lab.metrics import Inception, KernelDistance, kernel_distance
from sklearn.metrics.pairwise import polynomial_kernel

from ncode import InputError

from .pictures import pictures


def colours(images):
    return images.flatten(2).float().mean(2) / 255


def test_one_subset_of_everything_is_the_unbiased_estimate_of_the_kernel():
    x, y = torch.randn(12, 4), torch.randn(12, 4) + 1
    kxx, kyy, kxy = (polynomial_kernel(a.numpy(), b.numpy(), degree=3) for a, b in ((x, x), (y, y), (x, y)))
    within = sum((k.sum() - k.trace()) / (12 * 11) for k in (kxx, kyy))
    mean, std = kernel_distance(x, y, subsets=3, subset_size=12)
    assert mean.item() == pytest.approx(within - 2 * kxy.mean(), rel=1e-5)
    assert std.item() == pytest.approx(0.0, abs=1e-9)


def test_the_estimate_of_two_equal_distributions_lies_around_zero():
    values = torch.stack([kernel_distance(torch.randn(60, 3), torch.randn(60, 3), 1, 60).mean for _ in range(60)])
    assert values.mean().abs() < 3 * values.std() / 60**0.5
    assert values.min() < 0 < values.max()


def test_the_order_of_the_sets_does_not_matter():
    x, y = torch.randn(30, 3), torch.randn(30, 3) + 1
    torch.testing.assert_close(kernel_distance(x, y, 1, 30).mean, kernel_distance(y, x.flip(0), 1, 30).mean)


def test_a_score_repeats_and_does_not_depend_on_batches():
    real, fake = pictures(30), pictures(24, 1, top=200)
    scores = [KernelDistance(colours, subsets=6, subset_size=10) for _ in range(2)]
    for score, size in zip(scores, (30, 7), strict=True):
        for part in real.split(size):
            score.update(part, real=True)
        for part in fake.split(size):
            score.update(part, real=False)
    assert scores[0].compute() == scores[1].compute() == scores[0].compute()
    assert scores[0].compute().std > 0


def test_a_score_without_images_gets_a_sentence():
    score = KernelDistance(colours, subset_size=8)
    score.update(pictures(20, 1), real=False)
    with pytest.raises(InputError, match="there are no real ones"):
        score.compute()


def test_only_the_published_network_gives_a_score_named_kid():
    network = Inception()
    assert KernelDistance(network).name == "kernel distance (Inception-v3 with other weights features)"
    network.genuine = True
    assert KernelDistance(network).name == "KID"


def test_subsets_that_do_not_fit_get_a_sentence():
    x = torch.randn(30, 3)
    with pytest.raises(InputError, match="subset_size is 1000, and there are 30 real and 20 generated images"):
        kernel_distance(x, x[:20])
    with pytest.raises(InputError, match="subset_size must be at least 2"):
        kernel_distance(x, x, subset_size=1)
    with pytest.raises(InputError, match="real features have 3 dimensions, and generated ones 2"):
        kernel_distance(x, x[:, :2], subset_size=5)
