"""KID: the squared maximum mean discrepancy of features, without the bias that FID has on few images."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ncode import InputError

from .checks import check_codes, check_count
from .fid import check_network, features_name
from .images import FeatureNetwork, extract, to_bytes
from .inception import Inception


class Spread(NamedTuple):
    """A mean over subsets, and the standard deviation between them.

    >>> import torch, ncode_lab.metrics
    >>> features = torch.randn(20, 3)
    >>> ncode_lab.metrics.kernel_distance(features, features + 1, subsets=1, subset_size=20)._fields
    ('mean', 'std')
    """

    mean: Tensor
    std: Tensor


def kernel_distance(
    real: Tensor,
    fake: Tensor,
    subsets: int = 100,
    subset_size: int = 1000,
    generator: torch.Generator | None = None,
) -> Spread:
    """The unbiased estimate of MMD^2 under the kernel (x . y / d + 1)^3, on random subsets of features (n, d).

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
    # Drawn before anything is computed, and sent at once: a GPU is waited for once, and not for each subset.
    for ours, theirs in zip(*_choose((len(real), len(fake)), subsets, size, generator, real.device), strict=True):
        x, y = real[ours], fake[theirs]
        values.append(_within(x) + _within(y) - 2 * _kernel(x, y).mean())
    scores = torch.stack(values)
    return Spread(scores.mean(), scores.std(unbiased=False))


def _choose(
    counts: tuple[int, int], subsets: int, size: int, generator: torch.Generator | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Which real and which generated ones are in each subset, (subsets, size) each."""
    # Drawn where the generator lives, so that a seed gives the same subsets on every device.
    where = generator.device if generator else None
    drawn = [
        torch.randperm(count, generator=generator, device=where)[:size] for _ in range(subsets) for count in counts
    ]
    ours, theirs = torch.stack(drawn).to(device).view(subsets, 2, size).unbind(1)
    return ours, theirs


def _within(x: Tensor) -> Tensor:
    """The mean of the kernel over all pairs of two different ones."""
    diagonal = (x.square().sum(1) / x.shape[1] + 1).pow(3).sum()
    return (_kernel(x, x).sum() - diagonal) / (len(x) * (len(x) - 1))


def _kernel(x: Tensor, y: Tensor) -> Tensor:
    return (x @ y.T).div_(x.shape[1]).add_(1).pow_(3)


class KernelDistance:
    """The kernel distance of two sets of images; with the network of `load_inception` it is KID.

    It keeps the features, in float32. `compute` gives the mean over subsets and their standard deviation; the subsets
    are fixed by the seed.

    >>> import torch, ncode_lab.metrics
    >>> colour = lambda images: images.flatten(2).float().mean(2)
    >>> score = ncode_lab.metrics.KernelDistance(colour, features="mean colour", subsets=5, subset_size=20)
    >>> score.update(torch.randint(256, (40, 3, 8, 8), dtype=torch.uint8), real=True)
    >>> score.update(torch.randint(128, (40, 3, 8, 8), dtype=torch.uint8), real=False)
    >>> score.name, bool(score.compute().mean > 0)
    ('kernel distance (mean colour features)', True)
    """

    def __init__(
        self,
        network: FeatureNetwork,
        features: str | None = None,
        *,
        subsets: int = 100,
        subset_size: int = 1000,
        seed: int = 0,
        normalize: bool = False,
        reset_real_features: bool = True,
        batch: int = 250,
    ):
        check_network(network)
        self.network, self.normalize, self.batch = network, normalize, batch
        self.subsets, self.subset_size, self.seed = subsets, subset_size, seed
        self.reset_real_features = reset_real_features
        self.features = features_name(network, features)
        self.real: list[Tensor] = []
        self.fake: list[Tensor] = []

    @property
    def name(self) -> str:
        """KID for the network of FID with its published weights, and a name of its own for any other."""
        genuine = isinstance(self.network, Inception) and self.network.genuine
        return "KID" if genuine else f"kernel distance ({self.features} features)"

    def update(self, images: Tensor, real: bool) -> None:
        """Add images (n, 3, height, width) to the real or to the generated ones."""
        self.update_features(extract(self.network, to_bytes(images) if self.normalize else images, self.batch), real)

    def update_features(self, features: Tensor, real: bool) -> None:
        """Add features (n, d) of images, where they are there already."""
        (self.real if real else self.fake).append(check_codes(features, "features").float())

    def compute(self) -> Spread:
        """The mean over subsets, and the standard deviation between them."""
        if not self.real or not self.fake:
            missing = "real" if not self.real else "generated"
            raise InputError(f"{self.name} needs real and generated images; there are no {missing} ones")
        generator = torch.Generator().manual_seed(self.seed)
        return kernel_distance(torch.cat(self.real), torch.cat(self.fake), self.subsets, self.subset_size, generator)

    def reset(self) -> None:
        """Forget the images; with `reset_real_features=False` the generated ones alone."""
        self.fake.clear()
        if self.reset_real_features:
            self.real.clear()

    def merge(self, other: KernelDistance) -> None:
        """Add the images that another has seen, as of another process."""
        if other.name != self.name:
            raise InputError(f"{other.name} cannot be merged into {self.name}: the features differ")
        self.real += other.real
        self.fake += other.fake
