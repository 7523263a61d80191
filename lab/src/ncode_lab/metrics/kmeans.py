"""k-means in torch, on the device of the points."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ncode import InputError
from ncode.checks import check_number

from .checks import check_codes, check_count

CELLS = 1 << 25  # distances held at once

Progress = Callable[[str, int, int], None]  # stage, done, of


@dataclass(frozen=True)
class Clusters:
    """What k-means found: centres (k, d), the cluster of each point, and the sum of squared distances to centres.

    >>> import torch, ncode_lab.metrics
    >>> found = ncode_lab.metrics.k_means(torch.tensor([[0.0], [2.0], [8.0]]), 1)
    >>> found.centres.shape, found.labels
    (torch.Size([1, 1]), tensor([0, 0, 0]))
    """

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
    """Lloyd's iterations from greedy k-means++ centres, the best of several starts.

    `tol` is how far centres may move, squared, as a part of the mean variance of the columns. A cluster that loses all
    its points is moved to the point that is farthest from its centre. With as many clusters as points each has one.

    >>> import torch, ncode_lab.metrics
    >>> points = torch.tensor([[0.0, 0.0], [0.0, 1.0], [9.0, 0.0], [9.0, 1.0]])
    >>> found = ncode_lab.metrics.k_means(points, 2, generator=torch.Generator().manual_seed(0))
    >>> found.inertia, sorted(found.centres.tolist())
    (1.0, [[0.0, 0.5], [9.0, 0.5]])
    """
    # In float64: a training loop may have allowed coarse products for float32, and distances are differences of those.
    x, clusters = check_codes(codes).double(), check_count("clusters", clusters)
    starts, limit = check_count("starts", starts), check_count("max_iterations", max_iterations)
    check_number("tol", tol, low=0.0)
    if clusters > len(x):
        raise InputError(f"{clusters} clusters need at least as many codes; given {len(x)}")
    if clusters == len(x):
        return Clusters(codes.detach().clone(), torch.arange(clusters, device=x.device), 0.0, 0)
    mean = x.mean(0)
    # Distances are taken by |x|^2 - 2 x c + |c|^2, which keeps its digits near the origin.
    x = x - mean
    step = tol * float(x.var(0, correction=0).mean())
    runs = [_lloyd(x, plus_plus(x, clusters, generator), limit, step, progress) for _ in range(starts)]
    best = min(runs, key=lambda run: run.inertia)
    return Clusters((best.centres + mean).to(codes.dtype), best.labels, best.inertia, best.iterations)


def plus_plus(x: Tensor, clusters: int, generator: torch.Generator | None = None) -> Tensor:
    """Greedy k-means++ (Arthur and Vassilvitskii, 2007): the best of a few points drawn by distance is next.

    >>> import torch
    >>> plus_plus(torch.tensor([[0.0], [5.0]]), 2).sort(0).values.flatten()
    tensor([0., 5.])
    """
    trials = 2 + int(math.log(clusters))
    device = generator.device if generator else x.device
    # Drawn at once: one wait for the device instead of one a centre.
    draws = torch.rand(clusters, trials, generator=generator, device=device, dtype=x.dtype).to(x.device)
    squares = x.square().sum(1)
    chosen = (draws[0, :1] * len(x)).long()
    nearest = _distances(x[chosen], x, squares)[0]
    kept = [chosen]
    for draw in draws[1:]:
        edges = running_sum(nearest)
        tried = torch.searchsorted(edges, draw * edges[-1], right=True).clamp(max=len(x) - 1)
        closer = torch.minimum(_distances(x[tried], x, squares), nearest)
        best = closer.sum(1).argmin(keepdim=True)
        nearest = closer.index_select(0, best)[0]
        kept.append(tried.index_select(0, best))
    return x[torch.cat(kept)]


def running_sum(x: Tensor, width: int = 128) -> Tensor:
    """The cumulative sum (n,), by products with triangles: that of a GPU does not repeat, and may be forbidden for it.

    >>> import torch
    >>> running_sum(torch.arange(5.0), width=2)
    tensor([ 0.,  1.,  3.,  6., 10.])
    """
    rows = torch.nn.functional.pad(x, (0, -len(x) % width)).view(-1, width)
    within = rows @ x.new_ones(width, width).triu()
    before = within[:, -1] @ x.new_ones(len(rows), len(rows)).triu(1)
    return (within + before[:, None]).flatten()[: len(x)]


def _distances(centres: Tensor, x: Tensor, squares: Tensor) -> Tensor:
    """Squared distances (centres, points)."""
    product = centres @ x.T
    return (squares - 2 * product + centres.square().sum(1, keepdim=True)).clamp_(min=0)


def _nearest(x: Tensor, squares: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """The squared distance to the nearest centre, and which it is."""
    rows = max(1, CELLS // len(centres))
    parts = [
        _distances(centres, part, square).min(0)
        for part, square in zip(x.split(rows), squares.split(rows), strict=True)
    ]
    return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])


def _lloyd(x: Tensor, centres: Tensor, limit: int, step: float, progress: Progress | None) -> Clusters:
    squares = x.square().sum(1)
    _, labels = _nearest(x, squares, centres)
    iteration = 0
    for iteration in range(1, limit + 1):
        moved = means(x, labels, centres)
        distance, after = _nearest(x, squares, moved)
        moved = _fill_empty(x, distance, after, moved)
        # The only wait for the device in an iteration.
        same, shift = torch.stack(
            [(after == labels).all().double(), (moved - centres).square().sum().double()]
        ).tolist()
        centres, labels = moved, after
        if progress is not None:
            progress("k-means", iteration, limit)
        if same or shift <= step:
            break
    distance, labels = _nearest(x, squares, centres)
    return Clusters(centres, labels, float(distance.sum()), iteration)


def means(x: Tensor, labels: Tensor, empty: Tensor) -> Tensor:
    """The mean of each cluster's points, and the row of `empty` where it has none.

    >>> import torch
    >>> means(torch.tensor([[1.0], [3.0]]), torch.tensor([1, 1]), torch.tensor([[7.0], [0.0]])).flatten()
    tensor([7., 2.])
    """
    counts = torch.bincount(labels, minlength=len(empty))
    # Sorted, and summed cluster by cluster: adding in whatever order threads come would not repeat on a GPU.
    sums = torch.segment_reduce(x[labels.argsort(stable=True)], "sum", lengths=counts, initial=0)
    return torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], empty)


def _fill_empty(x: Tensor, distance: Tensor, labels: Tensor, centres: Tensor) -> Tensor:
    """Centres that lost their points, put on the points that are farthest from theirs."""
    empty = torch.bincount(labels, minlength=len(centres)) == 0
    rank = (empty.cumsum(0) - 1).clamp(min=0)
    far = distance.topk(min(len(centres), len(x))).indices
    return torch.where(empty[:, None], x[far[rank.clamp(max=len(far) - 1)]], centres)
