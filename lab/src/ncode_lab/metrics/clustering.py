"""Clusters, and how well they match labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ncode import InputError
from ncode.checks import check_number

from .checks import check_codes, check_count, check_labels


def clustering_accuracy(labels: Tensor, clusters: Tensor) -> float:
    """The part of the samples that are right when each cluster is given one label, in the best way there is.

    No two clusters are given the same label; clusters beyond the number of labels count as wrong.

    >>> import torch, ncode_lab.metrics
    >>> ncode_lab.metrics.clustering_accuracy(torch.tensor([0, 0, 1, 1]), torch.tensor([1, 1, 0, 1]))
    0.75
    """
    counts = _table(labels, clusters)
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise InputError("clustering accuracy needs the package scipy: pip install torch-ncode[metrics]") from error
    rows, columns = linear_sum_assignment(counts.numpy(), maximize=True)
    return float(counts[torch.as_tensor(rows), torch.as_tensor(columns)].sum() / counts.sum())


def normalised_mutual_information(labels: Tensor, clusters: Tensor) -> float:
    """The mutual information of labels and clusters, divided by the mean of their entropies.

    >>> import torch, ncode_lab.metrics
    >>> ncode_lab.metrics.normalised_mutual_information(torch.tensor([0, 0, 1, 1]), torch.tensor([1, 1, 0, 0]))
    1.0
    """
    joint = _table(labels, clusters).double()
    joint = joint / joint.sum()
    ours, theirs = _entropy(joint.sum(1)), _entropy(joint.sum(0))
    if ours + theirs == 0:
        return 1.0  # one label and one cluster agree
    shared = ours + theirs - _entropy(joint.flatten())
    return max(0.0, min(1.0, 2 * shared / (ours + theirs)))


def _entropy(p: Tensor) -> float:
    return float(-torch.special.xlogy(p, p).sum())


def _table(labels: Tensor, clusters: Tensor) -> Tensor:
    """How many samples have each label and each cluster, on CPU; names that do not occur are left out."""
    labels = check_labels(labels, "labels").cpu()
    clusters = check_labels(clusters, "clusters", length=len(labels)).cpu()
    names, row = labels.unique(return_inverse=True)
    others, column = clusters.unique(return_inverse=True)
    pairs = torch.bincount(row * len(others) + column, minlength=len(names) * len(others))
    return pairs.view(len(names), len(others))


def spectral_clusters(codes: Tensor, clusters: int, *, neighbours: int = 10, seed: int = 0) -> Tensor:
    """The cluster of each code by scikit-learn's spectral clustering on the graph of nearest neighbours, (n,).

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
        raise InputError(
            "spectral clustering needs the package scikit-learn: pip install torch-ncode[metrics]"
        ) from error
    model = SpectralClustering(clusters, affinity="nearest_neighbors", n_neighbors=neighbours, random_state=seed)
    return torch.as_tensor(model.fit_predict(codes.cpu().numpy()), device=codes.device).long()


def t_sne(
    codes: Tensor, *, perplexity: float = 30.0, dimensions: int = 2, seed: int = 0, threads: int = 1, **settings: Any
) -> Tensor:
    """The t-SNE map (n, dimensions) of codes, by openTSNE; other settings are handed to it.

    >>> import torch, ncode_lab.metrics
    >>> ncode_lab.metrics.t_sne(torch.randn(60, 5), perplexity=5, n_iter=20).shape
    torch.Size([60, 2])
    """
    codes, dimensions = check_codes(codes), check_count("dimensions", dimensions)
    check_number("perplexity", perplexity, low=1.0)
    # openTSNE would lower a perplexity that does not fit, and draw another map than was asked for.
    if len(codes) <= 3 * perplexity:
        raise InputError(
            f"t-SNE with a perplexity of {perplexity:g} needs more than {3 * perplexity:g} codes; given {len(codes)}:"
            " lower the perplexity"
        )
    try:
        from openTSNE import TSNE
    except ImportError as error:
        raise InputError("t-SNE needs the package openTSNE: pip install torch-ncode[metrics]") from error
    settings = {**settings, "n_components": dimensions, "perplexity": perplexity, "random_state": seed}
    model = TSNE(n_jobs=check_count("threads", threads), **settings)
    return torch.as_tensor(model.fit(codes.double().cpu().numpy())).to(codes)
