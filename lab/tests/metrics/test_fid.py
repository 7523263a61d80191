import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st
from ncode_lab.metrics import FrechetDistance, Inception, extract, frechet_distance
from ncode_lab.metrics.fid import Statistics
from torch import nn

from ncode import InputError

from .pictures import pictures


def colours(images):
    """A feature network small enough for tests: means and spreads of the channels."""
    flat = images.flatten(2).float()
    return torch.cat([flat.mean(2), flat.std(2)], 1)


def gaussian(d, rank, seed):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(d, rank, generator=generator, dtype=torch.float64)
    return torch.randn(d, generator=generator, dtype=torch.float64), root @ root.T


def score_of(real, fake, **settings):
    score = FrechetDistance(colours, **settings)
    score.update(real, real=True)
    score.update(fake, real=False)
    return score.compute()


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100), st.floats(-10, 10)), min_size=1, max_size=8))
def test_gaussians_that_commute_have_the_closed_form(axes):
    first, second, shift = torch.tensor(axes, dtype=torch.float64).unbind(1)
    turn = torch.linalg.qr(torch.randn(len(axes), len(axes), dtype=torch.float64)).Q
    found = frechet_distance(
        torch.zeros_like(shift), turn @ first.diag() @ turn.T, turn @ shift, turn @ second.diag() @ turn.T
    )
    expected = shift.square().sum() + (first.sqrt() - second.sqrt()).square().sum()
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("d", [1, 2, 7, 20])
def test_the_distance_equals_the_formula_with_scipy_s_square_root(d):
    (mean1, c1), (mean2, c2) = gaussian(d, d + 3, 1), gaussian(d, d + 3, 2)
    root = torch.as_tensor(scipy.linalg.sqrtm((c1 @ c2).numpy()).real)
    expected = (mean1 - mean2).square().sum() + (c1 + c2 - 2 * root).trace()
    torch.testing.assert_close(frechet_distance(mean1, c1, mean2, c2), expected)


def test_singular_covariances_lose_no_digits():
    d, rank = 60, 5
    mean, c = gaussian(d, rank, 3)
    assert frechet_distance(mean, c, mean, c) < 1e-10
    assert frechet_distance(mean, c, mean, 4 * c).item() == pytest.approx(c.trace().item(), rel=1e-12)
    nothing = torch.zeros_like(c)
    assert frechet_distance(mean, c, mean, nothing).item() == pytest.approx(c.trace().item(), rel=1e-12)
    assert frechet_distance(mean, nothing, mean + 1, nothing).item() == pytest.approx(d)


@pytest.mark.parametrize("seen", [30, 300])
@pytest.mark.parametrize("falls", [0.0, 6.0])
def test_scores_of_many_and_of_few_images_are_those_of_the_formula(seen, falls):
    generator, d = torch.Generator().manual_seed(seen), 40
    # The spread of a feature falls by orders of magnitude from the first to the last, as that of real ones does.
    scale = 10 ** -torch.linspace(0, falls, d, dtype=torch.float64)
    real, fake = (torch.randn(n, d, generator=generator, dtype=torch.float64) * scale for n in (400, seen))
    score = FrechetDistance(colours)
    score.update_features(real, real=True)
    score.update_features(fake + 0.1 * scale, real=False)
    moments = [(part.mean(0), torch.cov(part.T)) for part in (real, fake + 0.1 * scale)]
    torch.testing.assert_close(score.compute(), frechet_distance(*moments[0], *moments[1]), rtol=1e-6, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("seen", [30, 300])
def test_a_gpu_gives_the_score_that_a_cpu_gives(seen):
    scores = []
    for device in ("cpu", "cuda", "cuda"):
        score = FrechetDistance(colours)
        for real, n in ((True, 400), (False, seen)):
            rows = torch.randn(n, 40, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
            score.update_features(rows.to(device), real=real)
        scores.append(score.compute())
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-9, atol=1e-9)
    assert torch.equal(scores[1], scores[2])


@given(seed=st.integers(0, 1000), rank=st.integers(1, 8))
def test_the_distance_is_symmetric(seed, rank):
    one, other = gaussian(6, rank, seed), gaussian(6, 7, seed + 1)
    torch.testing.assert_close(frechet_distance(*one, *other), frechet_distance(*other, *one), rtol=1e-9, atol=1e-9)


@given(sizes=st.lists(st.integers(1, 9), min_size=2, max_size=6), shift=st.sampled_from([0.0, 1e6]))
def test_statistics_do_not_depend_on_how_features_are_cut(sizes, shift):
    features = torch.randn(sum(sizes), 4, dtype=torch.float64) + shift
    seen = Statistics()
    for part in features.split(sizes):
        seen.update(part)
    assert seen.count == len(features)
    torch.testing.assert_close(seen.mean, features.mean(0))
    torch.testing.assert_close(seen.covariance, torch.cov(features.T), rtol=1e-6, atol=1e-9)


def test_single_precision_features_are_summed_in_double():
    features = 1e3 + torch.randn(500, 3)
    seen = Statistics()
    seen.update(features)
    torch.testing.assert_close(seen.covariance, torch.cov(features.double().T))


def test_a_set_is_at_no_distance_from_itself_in_any_order():
    images = pictures(30)
    assert score_of(images, images[torch.randperm(30)]) < 1e-9
    assert score_of(images, pictures(30, top=128)) > 1


def test_images_may_come_in_any_batches():
    images = pictures(25)
    whole = score_of(images, pictures(20, 1))
    torch.testing.assert_close(score_of(images, pictures(20, 1), batch=3), whole)
    score = FrechetDistance(colours)
    for part in images.split(7):
        score.update(part, real=True)
    for part in pictures(20, 1).split(4):
        score.update(part, real=False)
    torch.testing.assert_close(score.compute(), whole)


def test_more_images_after_a_score_are_counted():
    score = FrechetDistance(colours)
    score.update(pictures(10), real=True)
    score.update(pictures(10, 1), real=False)
    score.compute()
    score.update(pictures(10, 2), real=False)
    torch.testing.assert_close(score.compute(), score_of(pictures(10), torch.cat([pictures(10, 1), pictures(10, 2)])))


def test_reset_forgets_the_generated_images_and_keeps_the_real_ones():
    score = FrechetDistance(colours)
    score.update(pictures(10), real=True)
    score.update(pictures(10, 1), real=False)
    score.reset()
    assert (score.real.count, score.fake.count) == (10, 0)


def test_only_the_published_network_gives_a_score_named_fid():
    class Tiny(nn.Module):
        def forward(self, images):
            return colours(images)

    network = Inception()
    assert FrechetDistance(network).name == "Fréchet distance (Inception-v3 with other weights features)"
    assert FrechetDistance(Tiny()).name == "Fréchet distance (Tiny features)"
    assert FrechetDistance(colours, "FID").name == "Fréchet distance (FID features)"
    network.genuine = True
    assert FrechetDistance(network).name == "FID"


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (torch.rand(4, 3, 8, 8), r"convert numbers in \[0, 1\]"),
        (torch.zeros(4, 8, 8, 3, dtype=torch.uint8), "put channels second"),
        (torch.zeros(4, 1, 8, 8, dtype=torch.uint8), "repeat the grey channel"),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), r"given \(3, 8, 8\)"),
        (torch.zeros(0, 3, 8, 8, dtype=torch.uint8), r"given \(0, 3, 8, 8\)"),
        ([1, 2], "given list"),
    ],
)
def test_images_that_cannot_be_scored_get_a_sentence(images, sentence):
    with pytest.raises(InputError, match=sentence):
        FrechetDistance(colours).update(images, real=True)


def test_too_few_images_get_a_sentence():
    score = FrechetDistance(colours)
    score.update(pictures(5), real=True)
    score.update(pictures(1), real=False)
    with pytest.raises(InputError, match="at least 2 real and 2 generated images; given 1 generated"):
        score.compute()
    with pytest.raises(InputError, match="at least 2 rows of features; given 0"):
        _ = Statistics().covariance


def test_a_network_that_gives_no_features_gets_a_sentence():
    with pytest.raises(InputError, match=r"use ncode_lab\.metrics\.load_inception"):
        FrechetDistance(2048)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"one row per image; given \(5, 3, 6, 5\)"):
        extract(lambda images: images.float(), pictures(5))


def test_gaussians_that_do_not_fit_get_a_sentence():
    mean, c = gaussian(3, 3, 0)
    with pytest.raises(InputError, match="as many dimensions: given 3 and 2"):
        frechet_distance(mean, c, mean[:2], c[:2, :2])
    with pytest.raises(InputError, match="second Gaussian must have a mean"):
        frechet_distance(mean, c, mean, c[:2])
    with pytest.raises(InputError, match="first Gaussian must be finite"):
        frechet_distance(mean / 0, c, mean, c)
    seen = Statistics()
    seen.update(torch.randn(4, 3))
    with pytest.raises(InputError, match="must have 3 columns"):
        seen.update(torch.randn(4, 2))
