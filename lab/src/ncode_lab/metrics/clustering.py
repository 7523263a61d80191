"""k-means, other clusterings, and how well clusters match labels."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ncode import InputError
from ncode.errors import check_count, check_number

from .checks import check_codes, check_labels

DISTANCES_AT_ONCE = 1 << 25

Progress = Callable[[str, int, int], None]  # stage, done, total


def clustering_accuracy(labels: Tensor, clusters: Tensor) -> float:
    """Return the accuracy under the best assignment of labels to clusters.

    No two clusters get the same label; clusters beyond the number of labels count as wrong.

    >>> import torch, ncode_lab.metrics
    >>> ncode_lab.metrics.clustering_accuracy(torch.tensor([0, 0, 1, 1]), torch.tensor([1, 1, 0, 1]))
    0.75
    """
    counts = _contingency(labels, clusters)
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise InputError("clustering accuracy needs the package scipy: pip install ncode-lab[images]") from error
    rows, columns = linear_sum_assignment(counts.numpy(), maximize=True)
    return float(counts[torch.as_tensor(rows), torch.as_tensor(columns)].sum() / counts.sum())


def normalised_mutual_information(labels: Tensor, clusters: Tensor) -> float:
    """Return the mutual information of labels and clusters, divided by the mean of their entropies.

    >>> import torch, ncode_lab.metrics
    >>> ncode_lab.metrics.normalised_mutual_information(torch.tensor([0, 0, 1, 1]), torch.tensor([1, 1, 0, 0]))
    1.0
    """
    joint = _contingency(labels, clusters).double()
    joint = joint / joint.sum()
    of_labels, of_clusters = _entropy(joint.sum(1)), _entropy(joint.sum(0))
    if of_labels + of_clusters == 0:
        return 1.0  # one label and one cluster agree
    shared = of_labels + of_clusters - _entropy(joint.flatten())
    return max(0.0, min(1.0, 2 * shared / (of_labels + of_clusters)))


def _entropy(p: Tensor) -> float:
    return float(-torch.special.xlogy(p, p).sum())


def _contingency(labels: Tensor, clusters: Tensor) -> Tensor:
    """Count samples by label and cluster, on the CPU; values that do not occur are left out."""
    labels = check_labels(labels, "labels").cpu()
    clusters = check_labels(clusters, "clusters", length=len(labels)).cpu()
    names, row = labels.unique(return_inverse=True)
    others, column = clusters.unique(return_inverse=True)
    pairs = torch.bincount(row * len(others) + column, minlength=len(names) * len(others))
    return pairs.view(len(names), len(others))


def spectral_clusters(codes: Tensor, clusters: int, *, neighbours: int = 10, seed: int = 0) -> Tensor:
    """Return the cluster (n,) of each code by scikit-learn's spectral clustering of the nearest-neighbour graph.

    >>> import torch, ncode_lab.metrics
    >>> rings = torch.cat([torch.zeros(20, 1), torch.ones(20, 1) * 9]) + torch.linspace(0, 0.1, 40)[:, None]
    >>> found = ncode_lab.metrics.spectral_clusters(rings, 2, neighbours=25)
    >>> ncode_lab.metrics.clustering_accuracy(torch.arange(40) // 20, found)
    1.0
    """
    codes, clusters = check_codes(codes), check_count("clusters", clusters, low=2)
    neighbours = check_count("neighbours", neighbours)
    if len(codes) <= max(clusters, neighbours):
        raise InputError(
            f"spectral clustering needs more codes than clusters ({clusters}) and than neighbours ({neighbours}); given"
            f" {len(codes)}"
        )
    try:
        from sklearn.cluster import SpectralClustering
    except ImportError as error:
        raise InputError("spectral clustering needs scikit-learn: pip install ncode-lab[images]") from error
    model = SpectralClustering(clusters, affinity="nearest_neighbors", n_neighbors=neighbours, random_state=seed)
    return torch.as_tensor(model.fit_predict(codes.cpu().numpy()), device=codes.device).long()


def t_sne(codes: Tensor, *, perplexity: float = 30.0, seed: int = 0, threads: int = 1, **settings: Any) -> Tensor:
    """Return the t-SNE map (n, 2) of codes by openTSNE, which also gets the other settings.

    >>> import torch, ncode_lab.metrics
    >>> ncode_lab.metrics.t_sne(torch.randn(60, 5), perplexity=5, n_iter=20).shape
    torch.Size([60, 2])
    """
    codes = check_codes(codes)
    check_number("perplexity", perplexity, low=1.0)
    # openTSNE would silently lower a perplexity that is too large.
    if len(codes) <= 3 * perplexity:
        raise InputError(
            f"t-SNE with a perplexity of {perplexity:g} needs more than {3 * perplexity:g} codes; given {len(codes)}:"
            " lower the perplexity"
        )
    try:
        from openTSNE import TSNE
    except ImportError as error:
        raise InputError("t-SNE needs the package openTSNE: pip install ncode-lab[images]") from error
    settings |= {"perplexity": perplexity, "random_state": seed, "n_jobs": check_count("threads", threads)}
    model = TSNE(**settings)
    return torch.as_tensor(model.fit(codes.double().cpu().numpy())).to(codes)


@dataclass(frozen=True)
class Clusters:
    """Result of k-means: centres (k, d), the cluster of each point, and the sum of squared distances to centres."""

    centres: Tensor
    labels: Tensor
    inertia: float
    iterations: int


@torch.no_grad()
def k_means(
    codes: Tensor,
    clusters: int,
    *,
    starts: int = 1,
    max_iterations: int = 300,
    tol: float = 1e-4,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Clusters:
    """Run Lloyd's iterations from greedy k-means++ centres, on the device of the codes; the best of several starts.

    It ends when the squared movement of the centres is at most `tol` times the mean variance of the columns. A cluster
    that loses all its points is moved to the point farthest from its centre. With as many clusters as points, each
    point is a cluster.

    >>> import torch, ncode_lab.metrics
    >>> points = torch.tensor([[0.0, 0.0], [0.0, 1.0], [9.0, 0.0], [9.0, 1.0]])
    >>> found = ncode_lab.metrics.k_means(points, 2, generator=torch.Generator().manual_seed(0))
    >>> found.inertia, sorted(found.centres.tolist())
    (1.0, [[0.0, 0.5], [9.0, 0.5]])
    """
    # In float64: training may have allowed TF32 for float32 products, and distances are differences of those.
    x, clusters = check_codes(codes).double(), check_count("clusters", clusters)
    starts, limit = check_count("starts", starts), check_count("max_iterations", max_iterations)
    check_number("tol", tol, low=0.0)
    if clusters > len(x):
        raise InputError(f"{clusters} clusters need at least as many codes; given {len(x)}")
    if clusters == len(x):
        return Clusters(codes.detach().clone(), torch.arange(clusters, device=x.device), 0.0, 0)
    mean = x.mean(0)
    # Distances are |x|^2 - 2 x c + |c|^2, which loses no digits near the origin.
    x = x - mean
    shift = tol * float(x.var(0, correction=0).mean())
    runs = [_lloyd(x, _plus_plus(x, clusters, generator), limit, shift, progress) for _ in range(starts)]
    best = min(runs, key=lambda run: run.inertia)
    return Clusters((best.centres + mean).to(codes.dtype), best.labels, best.inertia, best.iterations)


def _plus_plus(x: Tensor, clusters: int, generator: torch.Generator | None = None) -> Tensor:
    """Choose centres by greedy k-means++ (Arthur and Vassilvitskii, 2007): each is the best of a few random points."""
    trials = 2 + int(math.log(clusters))
    device = generator.device if generator else x.device
    # Drawn at once: one wait for the device instead of one per centre.
    draws = torch.rand(clusters, trials, generator=generator, device=device, dtype=x.dtype).to(x.device)
    squares = x.square().sum(1)
    first = (draws[0, :1] * len(x)).long()
    nearest = _distances(x[first], x, squares)[0]
    chosen = [first]
    for draw in draws[1:]:
        edges = cumulative_sum(nearest)
        candidates = torch.searchsorted(edges, draw * edges[-1], right=True).clamp(max=len(x) - 1)
        closer = torch.minimum(_distances(x[candidates], x, squares), nearest)
        best = closer.sum(1).argmin(keepdim=True)
        nearest = closer.index_select(0, best)[0]
        chosen.append(candidates.index_select(0, best))
    return x[torch.cat(chosen)]


def cumulative_sum(x: Tensor, width: int = 128) -> Tensor:
    """Return the cumulative sum (n,) by products with triangles: torch.cumsum is not deterministic on CUDA."""
    rows = torch.nn.functional.pad(x, (0, -len(x) % width)).view(-1, width)
    within = rows @ x.new_ones(width, width).triu()
    before = within[:, -1] @ x.new_ones(len(rows), len(rows)).triu(1)
    return (within + before[:, None]).flatten()[: len(x)]


def _distances(centres: Tensor, x: Tensor, squares: Tensor) -> Tensor:
    """Return squared distances (centres, points)."""
    product = centres @ x.T
    return (squares - 2 * product + centres.square().sum(1, keepdim=True)).clamp_(min=0)


def _nearest(x: Tensor, squares: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Return the squared distance to the nearest centre, and its index."""
    rows = max(1, DISTANCES_AT_ONCE // len(centres))
    parts = [
        _distances(centres, part, square).min(0)
        for part, square in zip(x.split(rows), squares.split(rows), strict=True)
    ]
    return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])


def _lloyd(x: Tensor, centres: Tensor, limit: int, shift: float, progress: Progress | None) -> Clusters:
    squares = x.square().sum(1)
    _, labels = _nearest(x, squares, centres)
    iteration = 0
    for iteration in range(1, limit + 1):
        new_centres = _cluster_means(x, labels, centres)
        distance, new_labels = _nearest(x, squares, new_centres)
        new_centres = _fill_empty(x, distance, new_labels, new_centres)
        # The only synchronisation with the device per iteration.
        same, moved = torch.stack(
            [(new_labels == labels).all().double(), (new_centres - centres).square().sum().double()]
        ).tolist()
        centres, labels = new_centres, new_labels
        if progress is not None:
            progress("k-means", iteration, limit)
        if same or moved <= shift:
            break
    distance, labels = _nearest(x, squares, centres)
    return Clusters(centres, labels, float(distance.sum()), iteration)


def _cluster_means(x: Tensor, labels: Tensor, empty: Tensor) -> Tensor:
    """Return the mean of each cluster's points, and the row of `empty` for clusters without points."""
    counts = torch.bincount(labels, minlength=len(empty))
    # Sorted and summed cluster by cluster: sums by atomic additions are not deterministic on a GPU.
    sums = torch.segment_reduce(x[labels.argsort(stable=True)], "sum", lengths=counts, initial=0)
    return torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], empty)


def _fill_empty(x: Tensor, distance: Tensor, labels: Tensor, centres: Tensor) -> Tensor:
    """Move centres without points to the points that are farthest from theirs."""
    empty = torch.bincount(labels, minlength=len(centres)) == 0
    rank = (empty.cumsum(0) - 1).clamp(min=0)
    far = distance.topk(min(len(centres), len(x))).indices
    return torch.where(empty[:, None], x[far[rank.clamp(max=len(far) - 1)]], centres)
