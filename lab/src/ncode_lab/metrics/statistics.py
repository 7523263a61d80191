"""Mean and covariance of features that arrive in batches."""

from __future__ import annotations

import torch
from torch import Tensor

from ncode import InputError

from .checks import check_codes


class Statistics:
    """Streaming mean and covariance, in float64 whatever the features are.

    Batches are centred before they are multiplied, so that no digits are lost to a large mean.

    >>> import torch, ncode_lab.metrics
    >>> seen = ncode_lab.metrics.Statistics()
    >>> seen.update(torch.tensor([[0.0, 1.0], [2.0, 1.0]]))
    >>> seen.update(torch.tensor([[4.0, 1.0]]))
    >>> seen.count, seen.mean.tolist(), seen.covariance.tolist()
    (3, [2.0, 1.0], [[4.0, 0.0], [0.0, 0.0]])
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.count = 0
        self._mean: Tensor | None = None
        self._scatter: Tensor | None = None  # the sum of (x - mean)(x - mean)^T
        self._factor: Tensor | None = None

    def update(self, features: Tensor) -> None:
        """Add a batch of features (n, d)."""
        known = None if self._mean is None else len(self._mean)
        rows = check_codes(features, "features", width=known).double()
        mean = rows.mean(0)
        rows = rows - mean
        self._add(len(rows), mean, rows.T @ rows)

    def merge(self, other: Statistics) -> None:
        """Add what another has seen."""
        if other._mean is None or other._scatter is None:
            return
        if self._mean is not None and len(self._mean) != len(other._mean):
            raise InputError(f"features of {len(other._mean)} dimensions cannot be merged with {len(self._mean)}")
        self._add(other.count, other._mean, other._scatter)

    def _add(self, count: int, mean: Tensor, scatter: Tensor) -> None:
        self._factor = None
        if self._mean is None or self._scatter is None:
            self.count, self._mean, self._scatter = count, mean.clone(), scatter.clone()
            return
        total = self.count + count
        shift = mean.to(self._mean) - self._mean
        self._scatter = (
            self._scatter + scatter.to(self._scatter) + torch.outer(shift, shift) * (self.count * count / total)
        )
        self._mean = self._mean + shift * (count / total)
        self.count = total

    @property
    def mean(self) -> Tensor:
        """(d,)."""
        if self._mean is None:
            raise InputError("there is no mean of no features: call update first")
        return self._mean

    @property
    def covariance(self) -> Tensor:
        """(d, d), divided by n - 1."""
        if self._scatter is None or self.count < 2:
            raise InputError(f"a covariance needs at least 2 rows of features; given {self.count}")
        return self._scatter / (self.count - 1)

    def factor(self) -> Tensor:
        """A matrix A with A A^T = covariance, where the features are; kept until more of them come."""
        if self._factor is None:
            self._factor = factor(self.covariance)
        return self._factor


def factor(covariance: Tensor) -> Tensor:
    """A matrix A with A A^T = covariance, in float64, without columns for variances of 0.

    >>> import torch
    >>> a = factor(torch.tensor([[4.0, 0.0], [0.0, 0.0]]))
    >>> (a @ a.T).tolist()
    [[4.0, 0.0], [0.0, 0.0]]
    """
    values, vectors = torch.linalg.eigh(covariance.detach().double())
    rounding = values[-1].clamp(min=0) * len(values) * torch.finfo(values.dtype).eps
    kept = values > rounding
    return vectors[:, kept] * values[kept].sqrt()
