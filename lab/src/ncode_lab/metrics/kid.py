"""KID: the squared maximum mean discrepancy of features, without the bias that FID has on few images."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ncode import InputError
from ncode.checks import check_count

from .checks import check_codes
from .fid import FeatureDistance, FeatureNetwork


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
