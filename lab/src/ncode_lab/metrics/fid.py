"""Distances between the features of two sets of images.

FID is the Fréchet distance of Gaussians fitted to the features. KID is their squared maximum mean discrepancy, without
the bias that FID has on few images.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ncode import InputError
from ncode.errors import check_count

from .checks import check_codes, check_images
from .inception import Inception

FeatureNetwork = Callable[[Tensor], Tensor]


def frechet_distance(mean1: Tensor, covariance1: Tensor, mean2: Tensor, covariance2: Tensor) -> Tensor:
    """Return |mean1 - mean2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)), in float64.

    >>> import torch, ncode_lab.metrics
    >>> zero, one = torch.zeros(2), torch.eye(2)
    >>> ncode_lab.metrics.frechet_distance(zero, one, torch.tensor([3.0, 0.0]), 4 * one).item()
    11.0
    """
    for name, mean, covariance in (("first", mean1, covariance1), ("second", mean2, covariance2)):
        if mean.dim() != 1 or covariance.shape != (len(mean), len(mean)):
            raise InputError(
                f"the {name} Gaussian must have a mean (d,) and a covariance (d, d); given {tuple(mean.shape)} and"
                f" {tuple(covariance.shape)}"
            )
        if not (mean.isfinite().all() and covariance.isfinite().all()):
            raise InputError(f"the {name} Gaussian must be finite: some of its mean or covariance is not")
    if len(mean1) != len(mean2):
        raise InputError(f"the Gaussians must have as many dimensions: given {len(mean1)} and {len(mean2)}")
    factor1, factor2 = factor(covariance1), factor(covariance2)
    return _distance(mean1, factor1, mean2, factor2.to(factor1))


def factor(covariance: Tensor) -> Tensor:
    """Return a matrix A with A A^T = covariance, in float64, without columns for variances of 0."""
    values, vectors = torch.linalg.eigh(covariance.detach().double())
    rounding = values[-1].clamp(min=0) * len(values) * torch.finfo(values.dtype).eps
    positive = values > rounding
    return vectors[:, positive] * values[positive].sqrt()


def _distance(mean1: Tensor, factor1: Tensor, mean2: Tensor, factor2: Tensor) -> Tensor:
    """Return the distance of Gaussians given as mean and A with A A^T = C.

    The eigenvalues of (C1 C2)^(1/2) are the singular values of A1^T A2. These are exact to rounding also for singular
    covariances, while the root of an eigenvalue of C1 C2 near 0 has half of the digits.
    """
    shift = (mean1.to(factor1) - mean2.to(factor1)).square().sum()
    cross = torch.linalg.svdvals(factor1.T @ factor2).sum() if factor1.shape[1] and factor2.shape[1] else 0.0
    distance = shift + factor1.square().sum() + factor2.square().sum() - 2 * cross
    return distance.clamp(min=0)


def _fast_distance(mean1: Tensor, factor1: Tensor, mean2: Tensor, covariance2: Tensor) -> Tensor:
    """Return the same for a second covariance that is not singular, on the device of the first Gaussian.

    The squares of the singular values are the eigenvalues of A1^T C2 A1: the second covariance needs no factor, and
    eigenvalues cost a fraction of singular values. The error of an eigenvalue is about eps times the largest, s^2; that
    of its root r is eps s^2 / 2 r, and eps^(1/2) s if r is 0: at most 1.5e-8 s each. For 2,048 eigenvalues and s near
    10, as for features of photographs, the sum is below 1e-3.
    """
    covariance2 = covariance2.to(factor1)
    shift = (mean1.to(factor1) - mean2.to(factor1)).square().sum()
    product = factor1.T @ covariance2 @ factor1
    cross = torch.linalg.eigvalsh((product + product.T) / 2).clamp(min=0).sqrt().sum() if len(product) else 0.0
    distance = shift + factor1.square().sum() + covariance2.trace() - 2 * cross
    return distance.clamp(min=0)


class Statistics:
    """Streaming mean and covariance of features, in float64 whatever their dtype.

    Batches are centred before they are multiplied, so that a large mean costs no digits.
    """

    def __init__(self) -> None:
        self.count = 0
        self._mean: Tensor | None = None
        self._scatter: Tensor | None = None  # the sum of (x - mean)(x - mean)^T
        self._factor: Tensor | None = None

    def update(self, features: Tensor) -> None:
        """Add a batch of features (n, d)."""
        width = None if self._mean is None else len(self._mean)
        rows = check_codes(features, "features", width=width).double()
        count, mean = len(rows), rows.mean(0)
        rows = rows - mean
        scatter = rows.T @ rows
        self._factor = None
        if self._mean is None or self._scatter is None:
            self.count, self._mean, self._scatter = count, mean, scatter
            return
        total, shift = self.count + count, mean.to(self._mean) - self._mean
        between = torch.outer(shift, shift) * (self.count * count / total)
        self._scatter = self._scatter + scatter.to(self._scatter) + between
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
        """Return A with A A^T = covariance, cached until the next update."""
        if self._factor is None:
            self._factor = factor(self.covariance)
        return self._factor


@torch.no_grad()
def extract(network: FeatureNetwork, images: Tensor, batch: int = 250) -> Tensor:
    """Compute the features (n, d) of uint8 images, in batches, on the network's device.

    >>> import torch, ncode_lab.metrics
    >>> network = lambda images: images.flatten(2).float().mean(2)
    >>> ncode_lab.metrics.extract(network, torch.full((4, 3, 8, 8), 7, dtype=torch.uint8)).shape
    torch.Size([4, 3])
    """
    images, batch = check_images(images), check_count("batch", batch)
    parameter = next(network.parameters(), None) if isinstance(network, torch.nn.Module) else None
    device = images.device if parameter is None else parameter.device
    parts = [network(part.to(device)) for part in images.split(batch)]
    for part in parts:
        if not isinstance(part, Tensor) or part.dim() != 2:
            given = tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__
            raise InputError(f"the feature network must return a tensor (n, d), one row per image; given {given}")
    return torch.cat(parts)


class FeatureDistance(ABC):
    """A distance between the features of real and of generated images, computed batch by batch."""

    published_name: str  # with the FID network and its published weights
    generic_name: str  # with any other network

    def __init__(self, network: FeatureNetwork, features: str | None, batch: int):
        if not callable(network):
            raise InputError(
                "network must map uint8 images (n, 3, height, width) to features (n, d); given"
                f" {type(network).__name__}: use ncode_lab.metrics.load_inception(path)"
            )
        self.network, self.batch = network, batch
        self.features = _features_name(network) if features is None else features

    @property
    def name(self) -> str:
        """FID or KID for the FID network with its published weights, and another name for any other."""
        genuine = isinstance(self.network, Inception) and self.network.genuine
        return self.published_name if genuine else f"{self.generic_name} ({self.features} features)"

    def update(self, images: Tensor, real: bool) -> None:
        """Add uint8 images (n, 3, height, width) to the real or to the generated ones."""
        self.update_features(extract(self.network, images, self.batch), real)

    @abstractmethod
    def update_features(self, features: Tensor, real: bool) -> None:
        """Add features (n, d) of images."""


def _features_name(network: Any) -> str:
    if isinstance(network, Inception):
        return "Inception-v3 2015-12-05" if network.genuine else "Inception-v3 with other weights"
    return type(network).__name__ if isinstance(network, torch.nn.Module) else getattr(network, "__name__", "own")


class FrechetDistance(FeatureDistance):
    """The Fréchet distance of two sets of images; with the network of `load_inception` it is FID.

    The score of n images is biased upwards, the more so the smaller n is: compare scores of the same n, and KID.

    Args:
        network: Maps uint8 images (n, 3, height, width) to features (n, d).
        features: The name of the features, for `name`. Default: that of the network.
        batch: Images per call of the network.

    >>> import torch, ncode_lab.metrics
    >>> colour = lambda images: images.flatten(2).float().mean(2)
    >>> score = ncode_lab.metrics.FrechetDistance(colour, features="mean colour")
    >>> images = torch.randint(256, (40, 3, 8, 8), dtype=torch.uint8)
    >>> score.update(images, real=True)
    >>> score.update(images.flip(0), real=False)
    >>> score.name, round(score.compute().item(), 6)
    ('Fréchet distance (mean colour features)', 0.0)
    """

    published_name, generic_name = "FID", "Fréchet distance"

    def __init__(self, network: FeatureNetwork, features: str | None = None, *, batch: int = 250):
        super().__init__(network, features, batch)
        self.real, self.fake = Statistics(), Statistics()

    def update_features(self, features: Tensor, real: bool) -> None:
        """Add features (n, d) of images."""
        (self.real if real else self.fake).update(features)

    def compute(self) -> Tensor:
        """Return the distance, a float64 scalar."""
        for name, seen in (("real", self.real), ("generated", self.fake)):
            if seen.count < 2:
                raise InputError(
                    f"{self.name} needs at least 2 real and 2 generated images; given {seen.count} {name} ones"
                )
        # The factor of the real images is cached: many sets may be scored against them.
        real, covariance = self.real.factor(), self.fake.covariance
        if self.fake.count > len(covariance):
            return _fast_distance(self.real.mean, real, self.fake.mean, covariance).cpu()
        return _distance(self.real.mean, real, self.fake.mean, self.fake.factor().to(real)).cpu()

    def reset(self) -> None:
        """Forget the generated images. The real ones stay, to score other images against them."""
        self.fake = Statistics()


class Spread(NamedTuple):
    """The mean over subsets, and their standard deviation."""

    mean: Tensor
    std: Tensor


def kernel_distance(
    real: Tensor,
    fake: Tensor,
    subsets: int = 100,
    subset_size: int = 1000,
    generator: torch.Generator | None = None,
) -> Spread:
    """Return the unbiased estimate of MMD^2 under the kernel (x . y / d + 1)^3, on random subsets of features (n, d).

    >>> import torch, ncode_lab.metrics
    >>> real, fake = torch.randn(200, 4), torch.randn(200, 4) + 1
    >>> mean, std = ncode_lab.metrics.kernel_distance(real, fake, subsets=10, subset_size=100)
    >>> bool(mean > 3 * std)
    True
    """
    real, fake = check_codes(real, "real features").double(), check_codes(fake, "generated features").double()
    if real.shape[1] != fake.shape[1]:
        raise InputError(f"real features have {real.shape[1]} dimensions, and generated ones {fake.shape[1]}")
    subsets, size = check_count("subsets", subsets), check_count("subset_size", subset_size, low=2)
    least = min(len(real), len(fake))
    if size > least:
        raise InputError(
            f"subset_size is {size}, and there are {len(real)} real and {len(fake)} generated images: give more"
            f" images, or subset_size={least} at most"
        )
    fake = fake.to(real.device)
    values = []
    # Drawn before anything is computed and copied at once: one synchronisation with the GPU instead of one per subset.
    for of_real, of_fake in zip(*_choose((len(real), len(fake)), subsets, size, generator, real.device), strict=True):
        x, y = real[of_real], fake[of_fake]
        values.append(_mean_of_pairs(x) + _mean_of_pairs(y) - 2 * _kernel(x, y).mean())
    scores = torch.stack(values)
    return Spread(scores.mean(), scores.std(unbiased=False))


def _choose(
    counts: tuple[int, int], subsets: int, size: int, generator: torch.Generator | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Draw the indices of real and of generated images in each subset, (subsets, size) each."""
    # Drawn on the generator's device, so that a seed gives the same subsets on every device.
    where = generator.device if generator else None
    drawn = [
        torch.randperm(count, generator=generator, device=where)[:size] for _ in range(subsets) for count in counts
    ]
    of_real, of_fake = torch.stack(drawn).to(device).view(subsets, 2, size).unbind(1)
    return of_real, of_fake


def _mean_of_pairs(x: Tensor) -> Tensor:
    """Return the mean of the kernel over all pairs of different rows."""
    diagonal = (x.square().sum(1) / x.shape[1] + 1).pow(3).sum()
    return (_kernel(x, x).sum() - diagonal) / (len(x) * (len(x) - 1))


def _kernel(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y.T).div_(x.shape[1]).add_(1).pow_(3)


class KernelDistance(FeatureDistance):
    """The kernel distance of two sets of images; with the network of `load_inception` it is KID.

    The features are stored in float32. The subsets are fixed by the seed; see `FrechetDistance` for the other
    arguments.

    >>> import torch, ncode_lab.metrics
    >>> colour = lambda images: images.flatten(2).float().mean(2)
    >>> score = ncode_lab.metrics.KernelDistance(colour, features="mean colour", subsets=5, subset_size=20)
    >>> score.update(torch.randint(256, (40, 3, 8, 8), dtype=torch.uint8), real=True)
    >>> score.update(torch.randint(128, (40, 3, 8, 8), dtype=torch.uint8), real=False)
    >>> score.name, bool(score.compute().mean > 0)
    ('kernel distance (mean colour features)', True)
    """

    published_name, generic_name = "KID", "kernel distance"

    def __init__(
        self,
        network: FeatureNetwork,
        features: str | None = None,
        *,
        subsets: int = 100,
        subset_size: int = 1000,
        seed: int = 0,
        batch: int = 250,
    ):
        super().__init__(network, features, batch)
        self.subsets, self.subset_size, self.seed = subsets, subset_size, seed
        self.real: list[Tensor] = []
        self.fake: list[Tensor] = []

    def update_features(self, features: Tensor, real: bool) -> None:
        """Add features (n, d) of images."""
        (self.real if real else self.fake).append(check_codes(features, "features").float())

    def compute(self) -> Spread:
        """Return the mean over subsets, and their standard deviation."""
        if not self.real or not self.fake:
            missing = "real" if not self.real else "generated"
            raise InputError(f"{self.name} needs real and generated images; there are no {missing} ones")
        generator = torch.Generator().manual_seed(self.seed)
        return kernel_distance(torch.cat(self.real), torch.cat(self.fake), self.subsets, self.subset_size, generator)
