"""FID: the Fréchet distance between Gaussians fitted to the features of two sets of images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ncode import InputError

from .images import FeatureNetwork, extract, to_bytes
from .inception import Inception
from .statistics import Statistics, factor


def frechet_distance(mean1: Tensor, covariance1: Tensor, mean2: Tensor, covariance2: Tensor) -> Tensor:
    """|mean1 - mean2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)), in float64.

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
    one, other = factor(covariance1), factor(covariance2)
    return _distance(mean1, one, mean2, other.to(one))


def _distance(mean1: Tensor, factor1: Tensor, mean2: Tensor, factor2: Tensor) -> Tensor:
    """Of Gaussians given as mean and A with A A^T = C.

    The eigenvalues of (C1 C2)^(1/2) are the singular values of A1^T A2. Those are right to rounding where covariances
    are singular, while the root of an eigenvalue of C1 C2 near 0 keeps half of its digits.
    """
    shift = (mean1.to(factor1) - mean2.to(factor1)).square().sum()
    both = torch.linalg.svdvals(factor1.T @ factor2).sum() if factor1.shape[1] and factor2.shape[1] else 0.0
    distance = shift + factor1.square().sum() + factor2.square().sum() - 2 * both
    return distance.clamp(min=0)


def _quick_distance(mean1: Tensor, factor1: Tensor, mean2: Tensor, covariance2: Tensor) -> Tensor:
    """The same, for a second covariance that is not singular; on the device of the first Gaussian.

    The squares of those singular values are the eigenvalues of A1^T C2 A1: no factor of the second covariance is
    needed, and eigenvalues cost a fraction of singular values. An eigenvalue is off by about eps times the largest,
    s^2; its root r by eps s^2 / 2 r, and by eps^(1/2) s where it is 0. That is 1.5e-8 s at worst, each: of 2,048 of
    them, with s near 10 as features of photographs have it, below 1e-3.
    """
    covariance2 = covariance2.to(factor1)
    shift = (mean1.to(factor1) - mean2.to(factor1)).square().sum()
    product = factor1.T @ covariance2 @ factor1
    both = torch.linalg.eigvalsh((product + product.T) / 2).clamp(min=0).sqrt().sum() if len(product) else 0.0
    distance = shift + factor1.square().sum() + covariance2.trace() - 2 * both
    return distance.clamp(min=0)


class FrechetDistance:
    """The Fréchet distance of two sets of images, fed batch by batch; with the network of `load_inception` it is FID.

    `name` is what the score may be called. `update`, `compute` and `reset` are those of torchmetrics, and so are
    `normalize` (images are numbers in [0, 1]) and `reset_real_features`. The score of n images is biased upwards, the
    more so the smaller n is: compare scores of the same n, and look at KID beside it.

    >>> import torch, ncode_lab.metrics
    >>> colour = lambda images: images.flatten(2).float().mean(2)
    >>> score = ncode_lab.metrics.FrechetDistance(colour, features="mean colour")
    >>> images = torch.randint(256, (40, 3, 8, 8), dtype=torch.uint8)
    >>> score.update(images, real=True)
    >>> score.update(images.flip(0), real=False)
    >>> score.name, round(score.compute().item(), 6)
    ('Fréchet distance (mean colour features)', 0.0)
    """

    def __init__(
        self,
        network: FeatureNetwork,
        features: str | None = None,
        *,
        normalize: bool = False,
        reset_real_features: bool = True,
        batch: int = 250,
    ):
        check_network(network)
        self.network, self.normalize, self.batch = network, normalize, batch
        self.reset_real_features = reset_real_features
        self.features = features_name(network, features)
        self.real, self.fake = Statistics(), Statistics()

    @property
    def name(self) -> str:
        """FID for the network of FID with its published weights, and a name of its own for any other."""
        genuine = isinstance(self.network, Inception) and self.network.genuine
        return "FID" if genuine else f"Fréchet distance ({self.features} features)"

    def update(self, images: Tensor, real: bool) -> None:
        """Add images (n, 3, height, width) to the real or to the generated ones."""
        self.update_features(extract(self.network, to_bytes(images) if self.normalize else images, self.batch), real)

    def update_features(self, features: Tensor, real: bool) -> None:
        """Add features (n, d) of images, where they are there already."""
        (self.real if real else self.fake).update(features)

    def compute(self) -> Tensor:
        """The distance, a float64 scalar."""
        for name, seen in (("real", self.real), ("generated", self.fake)):
            if seen.count < 2:
                raise InputError(
                    f"{self.name} needs at least 2 real and 2 generated images; given {seen.count} {name} ones"
                )
        # The factor of the real ones is kept: many sets may be scored against them.
        real, covariance = self.real.factor(), self.fake.covariance
        if self.fake.count > len(covariance):
            return _quick_distance(self.real.mean, real, self.fake.mean, covariance).cpu()
        return _distance(self.real.mean, real, self.fake.mean, self.fake.factor().to(real)).cpu()

    def reset(self) -> None:
        """Forget the images; with `reset_real_features=False` the generated ones alone."""
        self.fake.reset()
        if self.reset_real_features:
            self.real.reset()

    def merge(self, other: FrechetDistance) -> None:
        """Add the images that another has seen, as of another process."""
        if other.name != self.name:
            raise InputError(f"{other.name} cannot be merged into {self.name}: the features differ")
        self.real.merge(other.real)
        self.fake.merge(other.fake)


def check_network(network: Any) -> None:
    """Whether features can be had of it."""
    if not callable(network):
        raise InputError(
            "network must map uint8 images (n, 3, height, width) to features (n, d); given"
            f" {type(network).__name__}: use ncode_lab.metrics.load_inception(path)"
        )


def features_name(network: FeatureNetwork, features: str | None) -> str:
    """How features are called in the name of a score."""
    if features is not None:
        return features
    if isinstance(network, Inception):
        return "Inception-v3 2015-12-05" if network.genuine else "Inception-v3 with other weights"
    return type(network).__name__ if isinstance(network, torch.nn.Module) else getattr(network, "__name__", "own")
