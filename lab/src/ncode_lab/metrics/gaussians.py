"""Many Gaussians at once: their densities, their estimates, and samples of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from ncode import InputError

LOG_2_PI = math.log(2 * math.pi)


class Gaussians(ABC):
    """k Gaussians of d dimensions; `means` (k, d)."""

    means: Tensor
    covariances: Tensor

    @staticmethod
    @abstractmethod
    def estimate(x: Tensor, share: Tensor, counts: Tensor, reg_covar: float) -> Gaussians:
        """Fitted to points (n, d), each point with its share (n, k) in each; `counts` (k,) are the sums of shares."""

    @abstractmethod
    def log_density(self, x: Tensor) -> Tensor:
        """(n, k), in the dtype of the points."""

    @abstractmethod
    def move(self, chosen: Tensor, noise: Tensor) -> Tensor:
        """Standard normal noise (n, d) as samples of the chosen Gaussians (n,)."""


class Full(Gaussians):
    """With full covariances (k, d, d).

    >>> import torch
    >>> Full(torch.zeros(1, 2), torch.eye(2)[None]).log_density(torch.zeros(1, 2))
    tensor([[-1.8379]])
    """

    def __init__(self, means: Tensor, covariances: Tensor):
        self.means, self.covariances = means, covariances
        self.roots, failed = torch.linalg.cholesky_ex(covariances)
        if failed.any():
            which = failed.nonzero().flatten().tolist()
            raise InputError(
                f"the covariance of {len(which)} components, the first is {which[0]}, is singular to rounding: raise"
                " reg_covar, or bring the codes to a scale near 1"
            )
        self.log_volume = self.roots.diagonal(dim1=1, dim2=2).log().sum(1)

    @staticmethod
    def estimate(x: Tensor, share: Tensor, counts: Tensor, reg_covar: float) -> Full:
        """Weighted covariances, in chunks of components."""
        means = (share.T.to(x.dtype) @ x) / counts[:, None]
        covariances = x.new_empty(len(counts), x.shape[1], x.shape[1])
        # The more components at once, the more points that only some of them use.
        size = min(_together(x), 64)
        for first, used in zip(range(0, len(counts), size), _used(share, size), strict=True):
            part = slice(first, first + size)
            weighted = _weighted(x[used], share[used, part].to(x.dtype), means[part])
            covariances[part] = weighted / counts[part, None, None]
        covariances.diagonal(dim1=1, dim2=2).add_(reg_covar)
        return Full(means, covariances)

    def log_density(self, x: Tensor) -> Tensor:
        """By one product with the inverse roots, in chunks of points and components."""
        n, d = x.shape
        out = x.new_empty(n, len(self.means))
        eye = torch.eye(d, dtype=self.roots.dtype, device=x.device)
        size = min(len(self.means), max(64, _together(x)))
        rows = max(1, _cells(x) // (size * d))
        for first in range(0, len(self.means), size):
            part = slice(first, first + size)
            inverse = torch.linalg.solve_triangular(self.roots[part], eye, upper=False)
            centre = (inverse @ self.means[part, :, None]).flatten().to(x.dtype)
            inverse = inverse.flatten(0, 1).T.to(x.dtype)
            constant = (-0.5 * d * LOG_2_PI - self.log_volume[part]).to(x.dtype)
            for start in range(0, n, rows):
                points = slice(start, start + rows)
                scaled = torch.addmm(centre, x[points], inverse, beta=-1)
                squares = scaled.square_().view(scaled.shape[0], -1, d).sum(2)
                out[points, part] = squares.mul_(-0.5).add_(constant)
        return out

    def move(self, chosen: Tensor, noise: Tensor) -> Tensor:
        """mean + root noise."""
        rows = max(1, _cells(noise) // noise.shape[1] ** 2)
        parts = [
            self.means[which] + (self.roots[which] @ part[:, :, None]).squeeze(2)
            for which, part in zip(chosen.split(rows), noise.split(rows), strict=True)
        ]
        return torch.cat(parts)


def _weighted(x: Tensor, share: Tensor, means: Tensor) -> Tensor:
    """Sums of share (x - mean)(x - mean)^T, (k, d, d)."""
    centred = x - means[:, None]
    centred *= share.T.sqrt()[:, :, None]
    return centred.mT @ centred


def _used(share: Tensor, size: int) -> list[Tensor]:
    """The points that have a share in any component of a chunk, for each chunk of so many components.

    Shares far from a component are 0 exactly, since exp underflows: leaving them out changes nothing.
    """
    chunks = torch.stack([part.any(1) for part in share.split(size, 1)])
    # All at once: to ask chunk by chunk would be to wait for the GPU as often.
    points = chunks.nonzero()[:, 1]
    return list(points.split(chunks.sum(1).tolist()))


def _together(x: Tensor) -> int:
    """How many components are worked on at once: on a GPU as many as there is room for, on a CPU one by one."""
    return max(1, min(_cells(x) // x.numel(), 1024)) if x.is_cuda else 1


class Diagonal(Gaussians):
    """With diagonal covariances (k, d).

    >>> import torch
    >>> Diagonal(torch.zeros(1, 2), torch.ones(1, 2)).log_density(torch.zeros(1, 2))
    tensor([[-1.8379]])
    """

    def __init__(self, means: Tensor, covariances: Tensor):
        self.means, self.covariances = means, covariances
        if not (covariances > 0).all():
            which = (covariances <= 0).any(1).nonzero().flatten().tolist()
            raise InputError(
                f"a variance of {len(which)} components, the first is {which[0]}, is 0 to rounding: raise reg_covar, or"
                " bring the codes to a scale near 1"
            )

    @staticmethod
    def estimate(x: Tensor, share: Tensor, counts: Tensor, reg_covar: float) -> Diagonal:
        """Weighted variances."""
        share = share.to(x.dtype)
        # Around the mean of all points: the difference of squares below loses the digits of a common offset.
        offset = x.mean(0)
        x = x - offset
        means = (share.T @ x) / counts[:, None]
        squares = (share.T @ x.square()) / counts[:, None]
        variances = (squares - means.square()).clamp(min=0)
        return Diagonal(means + offset, variances + reg_covar)

    def log_density(self, x: Tensor) -> Tensor:
        """In chunks of points and components.

        Two products over squares would be faster, and lose to rounding what a narrow component tells apart.
        """
        n, d = x.shape
        out = x.new_empty(n, len(self.means))
        size = min(len(self.means), 64)
        rows = max(1, _cells(x) // (size * d))
        for first in range(0, len(self.means), size):
            part = slice(first, first + size)
            means, scale = self.means[part].to(x.dtype), self.covariances[part].rsqrt().to(x.dtype)
            constant = (-0.5 * (d * LOG_2_PI + self.covariances[part].log().sum(1))).to(x.dtype)
            for start in range(0, n, rows):
                points = slice(start, start + rows)
                squares = (x[points, None] - means).mul_(scale).square_().sum(2)
                out[points, part] = squares.mul_(-0.5).add_(constant)
        return out

    def move(self, chosen: Tensor, noise: Tensor) -> Tensor:
        """mean + deviation * noise."""
        return self.means[chosen] + self.covariances[chosen].sqrt() * noise


def _cells(x: Tensor) -> int:
    """How many numbers a chunk may hold: a part of what is free on a GPU, and what stays in reach of a CPU's cache."""
    if x.is_cuda:
        free = torch.cuda.mem_get_info(x.device)[0]
        return max(1, min(free // 4, 2 << 30) // x.element_size())
    return 1 << 22
