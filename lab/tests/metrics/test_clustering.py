import itertools
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ncode_lab.metrics import clustering_accuracy, k_means, normalised_mutual_information, spectral_clusters, t_sne
from ncode_lab.metrics.clustering import cumulative_sum
from sklearn.cluster import KMeans
from sklearn.metrics import normalized_mutual_info_score

from ncode import InputError

labelled = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=40)


def blobs(n=200, d=5, k=4, dtype=torch.float32):
    return 20 * torch.randn(k, d, dtype=dtype)[torch.arange(n) % k] + torch.randn(n, d, dtype=dtype)


def best_by_trial(labels, clusters):
    """The accuracy of the best of all ways to give clusters different labels."""
    names = sorted(set(clusters.tolist()))
    offers = [*sorted(set(labels.tolist())), *[-1] * len(names)]
    ways = set(itertools.permutations(offers, len(names)))
    return max(
        sum(
            int(dict(zip(names, way, strict=True))[c] == y)
            for y, c in zip(labels.tolist(), clusters.tolist(), strict=True)
        )
        for way in ways
    ) / len(labels)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=15))
def test_the_accuracy_is_that_of_the_best_way_to_name_clusters(pairs):
    labels, clusters = torch.tensor(pairs).unbind(1)
    assert clustering_accuracy(labels, clusters) == pytest.approx(best_by_trial(labels, clusters))


@given(pairs=labelled, shift=st.integers(0, 6))
def test_names_of_clusters_do_not_matter(pairs, shift):
    labels, clusters = torch.tensor(pairs).unbind(1)
    renamed = (clusters + shift) % 7 * 10
    assert clustering_accuracy(labels, clusters) == clustering_accuracy(labels, renamed)
    ours = normalised_mutual_information(labels, clusters)
    assert ours == pytest.approx(normalised_mutual_information(labels, renamed), abs=1e-12)
    assert ours == pytest.approx(normalised_mutual_information(clusters, labels), abs=1e-12)


@given(labelled)
def test_the_mutual_information_equals_that_of_scikit_learn(pairs):
    labels, clusters = torch.tensor(pairs).unbind(1)
    expected = normalized_mutual_info_score(labels.numpy(), clusters.numpy())
    assert normalised_mutual_information(labels, clusters) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("measure", [clustering_accuracy, normalised_mutual_information])
@pytest.mark.parametrize(
    ("labels", "clusters", "sentence"),
    [
        (torch.zeros(3).long(), torch.zeros(4).long(), "clusters must be one per sample, 3; given 4"),
        (torch.zeros(3), torch.zeros(3).long(), "labels must be whole numbers; given torch.float32"),
        (torch.zeros(3).long(), torch.tensor([0, 1, -1]), "clusters must not be negative; the smallest is -1"),
        (torch.zeros(2, 3).long(), torch.zeros(2).long(), r"of shape \(n,\)"),
        ([0, 1], torch.zeros(2).long(), "given list"),
    ],
)
def test_labels_that_cannot_be_compared_get_a_sentence(measure, labels, clusters, sentence):
    with pytest.raises(InputError, match=sentence):
        measure(labels, clusters)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_k_means_finds_clusters_that_lie_apart(dtype, offset):
    codes = blobs(dtype=dtype) + offset
    found = k_means(codes, 4)
    assert clustering_accuracy(torch.arange(200) % 4, found.labels) == 1.0
    own = torch.stack([codes[found.labels == i].mean(0) for i in range(4)])
    torch.testing.assert_close(found.centres, own)
    assert found.inertia == pytest.approx((codes - own[found.labels]).double().square().sum().item(), rel=1e-3)


def test_k_means_is_as_good_as_that_of_scikit_learn():
    codes = torch.rand(300, 3, dtype=torch.float64)
    ours = min(k_means(codes, 12).inertia for _ in range(10))
    theirs = KMeans(12, n_init=10, random_state=0).fit(codes.numpy()).inertia_
    assert ours == pytest.approx(theirs, rel=0.03)


def test_k_means_stops_where_every_point_is_at_its_nearest_centre():
    codes = torch.rand(200, 2, dtype=torch.float64)
    found = k_means(codes, 7, tol=0.0)
    assert torch.equal(torch.cdist(codes, found.centres).argmin(1), found.labels)
    for i in range(7):
        torch.testing.assert_close(codes[found.labels == i].mean(0), found.centres[i])


@given(seed=st.integers(0, 1000), clusters=st.integers(1, 12))
def test_no_cluster_of_points_that_differ_stays_empty(seed, clusters):
    codes = torch.rand(12, 2, generator=torch.Generator().manual_seed(seed))
    found = k_means(codes, clusters, generator=torch.Generator().manual_seed(seed))
    assert found.labels.unique().numel() == clusters


def test_k_means_takes_points_that_are_all_the_same():
    found = k_means(torch.ones(6, 2), 3)
    assert found.inertia == 0.0
    assert torch.equal(found.centres, torch.ones(3, 2))


def test_more_starts_are_never_worse_and_a_seed_repeats():
    codes = torch.rand(100, 2)
    one, many, again = (k_means(codes, 9, starts=n, generator=torch.Generator().manual_seed(2)) for n in (1, 8, 8))
    assert many.inertia <= one.inertia
    assert torch.equal(many.labels, again.labels)


@given(n=st.integers(1, 600))
def test_cumulative_sums_equal_those_of_torch(n):
    x = torch.rand(n, dtype=torch.float64)
    torch.testing.assert_close(cumulative_sum(x), x.cumsum(0))


def test_chunks_do_not_change_k_means(monkeypatch):
    codes = blobs()
    whole = k_means(codes, 4, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr("ncode_lab.metrics.clustering.DISTANCES_AT_ONCE", 40)
    assert torch.equal(k_means(codes, 4, generator=torch.Generator().manual_seed(0)).labels, whole.labels)


def test_more_clusters_than_codes_get_a_sentence():
    with pytest.raises(InputError, match="5 clusters need at least as many codes; given 4"):
        k_means(torch.rand(4, 2), 5)
    with pytest.raises(InputError, match="spectral clustering needs more codes than clusters"):
        spectral_clusters(torch.rand(4, 2), 5)
    with pytest.raises(InputError, match="perplexity of 30 needs more than 90 codes; given 50: lower the perplexity"):
        t_sne(torch.rand(50, 2))


def test_spectral_clustering_tells_rings_apart_where_k_means_cannot():
    angle = torch.arange(150) / 75 * torch.pi
    which = torch.arange(150) % 2
    rings = torch.stack([angle.cos(), angle.sin()], 1) * (1 + 3 * which)[:, None]
    with pytest.warns(UserWarning, match="not fully connected"):
        assert clustering_accuracy(which, spectral_clusters(rings, 2, neighbours=5)) == 1.0
    assert clustering_accuracy(which, k_means(rings, 2).labels) < 0.9


def test_a_map_keeps_clusters_apart_and_repeats():
    codes = blobs(120)
    one, other = (t_sne(codes, perplexity=10, seed=1, n_iter=100, early_exaggeration_iter=50) for _ in range(2))
    assert torch.equal(one, other)
    assert one.dtype == codes.dtype
    assert clustering_accuracy(torch.arange(120) % 4, k_means(one, 4, starts=5).labels) > 0.95


@pytest.mark.parametrize(
    ("package", "call"),
    [
        ("scipy.optimize", lambda: clustering_accuracy(torch.zeros(2).long(), torch.zeros(2).long())),
        ("sklearn.cluster", lambda: spectral_clusters(torch.rand(30, 2), 2)),
        ("openTSNE", lambda: t_sne(torch.rand(30, 2), perplexity=5)),
    ],
)
def test_a_missing_package_gets_a_sentence(package, call, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match="pip install"):
        call()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_finds_the_clusters_of_a_cpu_where_everything_must_repeat(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    codes = torch.rand(500, 4, dtype=torch.float64)
    expected = k_means(codes, 20, generator=torch.Generator().manual_seed(0))
    torch.use_deterministic_algorithms(True)
    try:
        found = k_means(codes.cuda(), 20, generator=torch.Generator().manual_seed(0))
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(found.labels.cpu(), expected.labels)
