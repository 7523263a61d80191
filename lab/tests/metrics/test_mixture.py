import itertools

import numpy
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from ncode_lab.metrics import GaussianMixture, KernelDensity
from sklearn.mixture import GaussianMixture as Reference

from ncode import InputError


def blobs(n=300, d=3, k=4):
    centres = 4 * torch.randn(k, d, dtype=torch.float64)
    spread = torch.randn(k, d, d, dtype=torch.float64)
    which = torch.arange(n) % k
    return centres[which] + (spread[which] @ torch.randn(n, d, 1, dtype=torch.float64)).squeeze(2)


def reference(codes, share, tol, iterations=100, reg_covar=1e-6):
    """scikit-learn's mixture, started from the Gaussians of the same responsibilities."""
    counts = share.sum(0)
    means = share.T @ codes / counts[:, None]
    around = codes - means[:, None]
    spread = torch.einsum("nk,kni,knj->kij", share, around, around) / counts[:, None, None]
    spread += reg_covar * torch.eye(codes.shape[1])
    return Reference(
        share.shape[1],
        tol=tol,
        max_iter=iterations,
        reg_covar=reg_covar,
        weights_init=(counts / counts.sum()).numpy(),
        means_init=means.numpy(),
        precisions_init=spread.inverse().numpy(),
    ).fit(codes.numpy())


@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_a_fit_equals_that_of_scikit_learn_from_the_same_start(offset):
    codes = blobs() + offset
    share = torch.rand(len(codes), 4, dtype=torch.float64).softmax(1)
    theirs = reference(codes, share, tol=1e-4)
    ours = GaussianMixture(4, tol=1e-4).fit(codes, responsibilities=share)
    assert ours.converged
    assert ours.iterations == theirs.n_iter_
    for mine, his in (
        (ours.weights, theirs.weights_),
        (ours.means, theirs.means_),
        (ours.covariances, theirs.covariances_),
    ):
        torch.testing.assert_close(mine, torch.as_tensor(his), rtol=1e-6, atol=1e-7)
    fresh = blobs() + offset
    torch.testing.assert_close(
        ours.score_samples(fresh), torch.as_tensor(theirs.score_samples(fresh.numpy())), rtol=1e-6, atol=1e-6
    )
    assert ours.predict(fresh).tolist() == theirs.predict(fresh.numpy()).tolist()


def test_components_with_fewer_codes_than_dimensions_equal_those_of_scikit_learn():
    codes = torch.randn(40, 12, dtype=torch.float64)
    share = torch.nn.functional.one_hot(torch.arange(40) % 10).double()
    theirs = reference(codes, share, tol=1e-3, reg_covar=1e-4)
    ours = GaussianMixture(10, reg_covar=1e-4).fit(codes, responsibilities=share)
    torch.testing.assert_close(ours.covariances, torch.as_tensor(theirs.covariances_), rtol=1e-5, atol=1e-9)
    assert ours.score(codes) == pytest.approx(theirs.score(codes.numpy()), rel=1e-8)


def test_as_many_components_as_codes_are_the_codes_themselves():
    codes = torch.randn(30, 50)
    mixture = GaussianMixture(30, reg_covar=1e-6).fit(codes)
    samples = mixture.sample(200, torch.Generator().manual_seed(0)).float()
    assert torch.cdist(samples, codes).min(1).values.max() < 0.02
    assert mixture.predict(codes).unique().numel() == 30


def rounding(codes, mixture, before=None):
    """How far rounding may move the mean log-likelihood from one iteration to the next.

    Variances have errors of eps times the largest squared code, which weigh more the smaller a variance is. A tenth of
    this bound was seen in 3,000 fits.
    """
    smallest = torch.stack([torch.linalg.eigvalsh(fit.covariances)[:, 0] for fit in (mixture, before or mixture)])
    relative = (mixture.weights * codes.square().max() / smallest.amin(0)).sum()
    return torch.finfo(torch.float64).eps * (0.05 * float(relative) + 8 * (1 + abs(mixture.score(codes))))


@given(seed=st.integers(0, 10_000), components=st.integers(1, 3))
def test_the_likelihood_of_the_codes_never_falls_without_a_ridge(seed, components):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    mixture = GaussianMixture(components, tol=0.0, max_iterations=15, reg_covar=0.0)
    history = torch.tensor(mixture.fit(codes, generator=generator).fitted.log_likelihoods, dtype=torch.float64)
    assert history.diff().min() >= -rounding(codes, mixture)


@pytest.mark.slow
@given(
    seed=st.integers(0, 10_000),
    components=st.integers(1, 6),
    reg_covar=st.sampled_from([1e-9, 1e-6, 1e-2, 1.0]),
)
@example(seed=3124, components=3, reg_covar=1e-9)  # a component collapses to 3 codes in a plane
def test_the_likelihood_falls_by_no_more_than_the_ridge_explains(seed, components, reg_covar):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randn(60, 3, generator=generator, dtype=torch.float64) ** 3
    start = generator.get_state()
    fits = [
        GaussianMixture(components, tol=0.0, max_iterations=iterations, reg_covar=reg_covar).fit(
            codes, generator=generator.set_state(start)
        )
        for iterations in range(1, 9)
    ]
    for before, after in itertools.pairwise(fits):
        traces = [fit.covariances.inverse().diagonal(dim1=1, dim2=2).sum(1) for fit in (before, after)]
        # The ridged covariance maximises the expected likelihood minus (ridge / 2) n_k tr(C_k^-1).
        bound = reg_covar / 2 * float((after.weights * (traces[1] - traces[0])).sum())
        assert after.score(codes) - before.score(codes) >= bound - rounding(codes, after, before)


@given(seed=st.integers(0, 10_000))
def test_the_order_of_the_codes_does_not_matter(seed):
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randn(50, 2, generator=generator, dtype=torch.float64)
    share = torch.rand(50, 3, generator=generator, dtype=torch.float64).softmax(1)
    order = torch.randperm(50, generator=generator)
    one = GaussianMixture(3, max_iterations=5).fit(codes, responsibilities=share)
    other = GaussianMixture(3, max_iterations=5).fit(codes[order], responsibilities=share[order])
    torch.testing.assert_close(one.covariances, other.covariances)


def test_one_component_is_the_gaussian_of_the_codes():
    codes = blobs()
    mixture = GaussianMixture(1, reg_covar=0.0).fit(codes)
    expected = torch.cov(codes.T, correction=0)
    torch.testing.assert_close(mixture.means[0], codes.mean(0))
    torch.testing.assert_close(mixture.covariances[0], expected)


def test_samples_have_the_moments_of_the_mixture():
    mixture = GaussianMixture(3).fit(blobs(k=3))
    samples = mixture.sample(40_000, torch.Generator().manual_seed(1))
    mean = mixture.weights @ mixture.means
    around = mixture.means - mean
    spread = (mixture.weights[:, None, None] * (mixture.covariances + around[:, :, None] * around[:, None])).sum(0)
    size = spread.diagonal().max()
    torch.testing.assert_close(samples.mean(0), mean, rtol=0, atol=float(0.03 * size.sqrt()))
    torch.testing.assert_close(torch.cov(samples.T), spread, rtol=0, atol=float(0.04 * size))


def test_a_seed_gives_the_same_fit_and_the_same_samples():
    codes = blobs()
    fits = [GaussianMixture(5).fit(codes, generator=torch.Generator().manual_seed(3)) for _ in range(2)]
    assert torch.equal(fits[0].means, fits[1].means)
    samples = [fit.sample(9, torch.Generator().manual_seed(4)) for fit in fits]
    assert torch.equal(samples[0], samples[1])
    assert not torch.equal(samples[0], fits[0].sample(9, torch.Generator().manual_seed(5)))


def test_chunks_do_not_change_a_fit(monkeypatch):
    codes = blobs()
    share = torch.rand(len(codes), 4, dtype=torch.float64).softmax(1)
    whole = GaussianMixture(4, max_iterations=5).fit(codes, responsibilities=share)
    monkeypatch.setattr("ncode_lab.metrics.mixture._chunk_numel", lambda x: 30)
    monkeypatch.setattr("ncode_lab.metrics.mixture._components_at_once", lambda x: 3)  # as on a GPU
    small = GaussianMixture(4, max_iterations=5).fit(codes, responsibilities=share)
    torch.testing.assert_close(small.covariances, whole.covariances)
    seeds = (torch.Generator().manual_seed(0) for _ in range(2))
    torch.testing.assert_close(*(mixture.sample(50, seed) for mixture, seed in zip((small, whole), seeds, strict=True)))


def test_with_as_many_components_as_codes_each_is_a_code_and_as_wide_as_the_regularisation():
    codes = blobs()[:40]
    mixture = GaussianMixture(40, reg_covar=1e-6).fit(codes)
    torch.testing.assert_close(mixture.means, codes.double())
    torch.testing.assert_close(mixture.covariances, (1e-6 * torch.eye(3, dtype=torch.float64)).expand(40, 3, 3))
    assert mixture.converged


def test_progress_is_reported_for_every_iteration():
    told = []
    mixture = GaussianMixture(3, max_iterations=4, tol=0.0).fit(blobs(), progress=lambda *words: told.append(words))
    assert [words for words in told if words[0] == "mixture"] == [("mixture", i, 4) for i in range(1, 5)]
    assert told[0][:2] == ("k-means", 1)
    assert (mixture.iterations, mixture.converged) == (4, False)


def test_an_estimate_of_the_time_leaves_a_fit_alone():
    mixture = GaussianMixture(4).fit(blobs())
    before = mixture.means
    assert mixture.estimate(blobs()) > 0
    assert mixture.means is before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"components": 0}, "components must be at least 1"),
        ({"components": 2.5}, "components must be a whole number"),
        ({"components": 2, "tol": -1.0}, "tol must be at least 0"),
        ({"components": 2, "reg_covar": float("nan")}, "reg_covar must be a finite number"),
        ({"components": 2, "max_iterations": 0}, "max_iterations must be at least 1"),
    ],
)
def test_settings_that_cannot_be_used_get_a_sentence(arguments, sentence):
    with pytest.raises(InputError, match=sentence):
        GaussianMixture(**arguments)


@pytest.mark.parametrize(
    ("codes", "sentence"),
    [
        (torch.randn(5, 2), "a mixture of 6 components needs at least as many codes; given 5"),
        (torch.randn(9), r"shape \(n, d\)"),
        (torch.randint(5, (9, 2)), "floating dtype"),
        (numpy.zeros((9, 2)), "must be a tensor"),
        (torch.tensor([[0.0], [float("inf")]] * 4), "4 rows are not, the first is row 1"),
    ],
)
def test_codes_that_cannot_be_fitted_get_a_sentence(codes, sentence):
    with pytest.raises(InputError, match=sentence):
        GaussianMixture(6).fit(codes)


def test_a_singular_component_without_regularisation_gets_a_sentence():
    with pytest.raises(InputError, match="raise reg_covar"):
        GaussianMixture(2, reg_covar=0.0).fit(torch.ones(8, 3))


def test_a_mixture_that_was_not_fitted_gets_a_sentence():
    for ask in (lambda m: m.sample(1), lambda m: m.means, lambda m: m.score(torch.zeros(1, 2))):
        with pytest.raises(InputError, match="call fit"):
            ask(GaussianMixture(2))


def test_codes_of_another_width_and_bad_responsibilities_get_a_sentence():
    mixture = GaussianMixture(2).fit(blobs())
    with pytest.raises(InputError, match="must have 3 columns; given 5"):
        mixture.predict(torch.zeros(2, 5))
    for share, sentence in ((torch.ones(4, 3), r"shape \(300, 2\)"), (torch.ones(300, 2), "sum to 1")):
        with pytest.raises(InputError, match=sentence):
            mixture.fit(blobs(), responsibilities=share)


def test_samples_of_a_narrow_kernel_density_are_codes_and_of_a_wide_one_are_not():
    codes = torch.randn(50, 8)
    for width, near in ((1e-4, True), (2.0, False)):
        samples = KernelDensity(codes, width).sample(100, torch.Generator().manual_seed(0))
        assert bool(torch.cdist(samples, codes).min(1).values.max() < 1e-2) is near


def test_a_width_that_is_not_above_zero_gets_a_sentence():
    with pytest.raises(InputError, match="width must be above 0"):
        KernelDensity(torch.zeros(3, 2), 0.0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_finds_the_mixture_that_a_cpu_finds():
    codes = blobs()
    one, other = (
        GaussianMixture(4).fit(part, generator=torch.Generator().manual_seed(0)) for part in (codes, codes.cuda())
    )
    torch.testing.assert_close(one.covariances, other.covariances.cpu(), rtol=1e-6, atol=1e-8)
    samples = [fit.sample(20, torch.Generator().manual_seed(0)).cpu() for fit in (one, other)]
    torch.testing.assert_close(*samples, rtol=1e-5, atol=1e-6)
