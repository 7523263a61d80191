"""How far images are from test images: FID and KID, or distances of another name where the FID network is not there."""

from __future__ import annotations

import functools
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from ncode import InputError
from ncode.checks import check_choice

from ..data import MissingData, find, stream
from ..metrics import FrechetDistance, Inception, KernelDistance, extract, find_weights, load_inception
from ..training import Trial, TrialContext
from .coding import Coding
from .kept_features import kept_features

Score = Literal["fid", "random"]
Precision = Literal["ieee", "tf32"]


class Names(NamedTuple):
    """What scores are called: as metrics, in tables and figures, and in short, where the whole name was said before.

    Kernel distances of other features are larger than KID by far, and want fewer digits.
    """

    frechet: str
    kernel: str
    title: str
    kernel_title: str
    short: str
    kernel_digits: int


FID = Names("fid", "kid", "FID", "KID", "FID", 4)
OTHER = Names(
    "distance",
    "kernel distance",
    "Fréchet distance (random features)",
    "kernel distance (random features)",
    "distance",
    1,
)


class RandomFeatures(nn.Module):
    """Bytes (n, 3, height, width) to features (n, 64): a small network with random weights, the same on every machine.

    It sees colours, edges and textures, at the price of nothing; what comes of it is not FID, and is not called so.

    >>> RandomFeatures()(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape
    torch.Size([2, 64])
    """

    def __init__(self) -> None:
        super().__init__()
        sizes = ((3, 32), (32, 64), (64, 64))
        # In single precision, whatever a run has made the default.
        layers = (nn.Conv2d(before, after, 3, 2, 1, bias=False, dtype=torch.float32) for before, after in sizes)
        self.layers = nn.Sequential(*layers)
        generator = stream(0, "random features")
        for layer in self.layers:
            assert isinstance(layer, nn.Conv2d)
            size = layer.weight[0].numel()
            drawn = torch.randn(layer.weight.shape, generator=generator, dtype=torch.float32)
            layer.weight.data = drawn * (2 / size) ** 0.5
        self.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        """Means over all places."""
        x = (images.float() - 128) / 128
        for layer in self.layers:
            x = torch.relu(layer(x))
        return 10 * x.mean((2, 3))


class Judge:
    """Scores images against test images.

    Args:
        test: The test images, bytes (n, 1 or 3, height, width).
        weights: The file of the FID network's weights; None: random features take its place.
        precision: Of that network's convolutions on CUDA: see `ncode_lab.metrics.Inception`.

    >>> judge = Judge(torch.randint(256, (50, 1, 28, 28), dtype=torch.uint8), None)
    >>> scores = judge(torch.randint(128, (50, 1, 28, 28), dtype=torch.uint8))
    >>> judge.names.title, sorted(scores)
    ('Fréchet distance (random features)', ['distance', 'kernel distance'])
    """

    def __init__(self, test: Tensor, weights: Path | None, precision: Precision = "ieee"):
        self.network = (RandomFeatures() if weights is None else _inception(weights, precision)).to(test.device)
        features = "random" if weights is None else None
        self.frechet = FrechetDistance(self.network, features, reset_real_features=False)
        self.names = OTHER if weights is None else FID
        if self.names == FID:
            # Minutes on a CPU, and the same for every run.
            self.real = kept_features(test, f"FID network, {precision} on {test.device.type}", self._features)
        else:
            self.real = self._features(test)
        self.frechet.update_features(self.real, real=True)

    def __call__(self, images: Tensor) -> dict[str, float]:
        """Both scores of images, bytes."""
        fake = self._features(images)
        self.frechet.reset()
        self.frechet.update_features(fake, real=False)
        # As many subsets as KID has by custom would cost more than all the rest where there is no GPU.
        subsets = 100 if self.names == FID else 10
        kernel = KernelDistance(self.network, subsets=subsets, subset_size=min(1000, len(fake), len(self.real)))
        kernel.update_features(self.real, real=True)
        kernel.update_features(fake, real=False)
        return {
            self.names.frechet: float(self.frechet.compute()),
            self.names.kernel: float(kernel.compute().mean),
        }

    def _features(self, images: Tensor) -> Tensor:
        # The network knows colour images only.
        return extract(self.network, images.expand(-1, 3, -1, -1), batch=500 if images.is_cuda else 100)


@dataclass(frozen=True)
class Scored(Coding, ABC):
    """Settings of experiments that score images."""

    score: Score = "fid"
    """fid: FID and KID, where the weights are found. random: distances of random features, which are cheap and have a
    name of their own."""
    fid_weights: str = ""
    """File of the FID network's weights. Unless given, it is looked for in the folder of data."""
    fid_precision: Precision = "ieee"
    """Of the FID network's convolutions on CUDA. tf32: rounds what is multiplied to 10 bits, and takes a fraction of
    the time."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("score", self.score, get_args(Score))
        check_choice("fid_precision", self.fid_precision, get_args(Precision))

    @property
    def weights(self) -> Path | None:
        """The file of the FID network's weights, where FID is wanted and they are found."""
        return find_fid_weights(self.fid_weights, self.data_dir) if self.score == "fid" else None

    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        """Each model with each seed. Damaged weights of the FID network are found out here, before training."""
        if self.weights is not None:
            _inception(self.weights, self.fid_precision)
        return super().trials(seeds)

    def judge(self, test: Tensor, context: TrialContext) -> Judge:
        """A judge by these settings. What takes the place of FID is said."""
        if self.weights is None and self.score == "fid":
            context.info(f"the weights of the FID network were not found: {OTHER.title} takes the place of FID")
        # What test images look like is found once for all models of a run.
        about = (self.dataset, self.data_dir, self.fallback, self.test_images, self.validate, test.device, len(test))
        about += (self.weights, self.fid_precision)
        if about not in _judges:
            _judges.clear()
            _judges[about] = Judge(test, self.weights, self.fid_precision)
        return _judges[about]


_judges: dict[tuple[Any, ...], Judge] = {}


@functools.lru_cache(maxsize=1)
def _inception(weights: Path, precision: Precision) -> Inception:
    """The FID network. Other weights than the published ones give no FID, and tables have no place for what they give.

    A file may be damaged and still hold numbers of the right shapes.
    """
    network = load_inception(weights, precision=precision)
    if not network.genuine:
        raise InputError(
            f"{weights} does not hold the published weights of the FID network: it is damaged, or of another network."
            " Fetch it again, or leave FID out with --score random"
        )
    return network


def find_fid_weights(named: str, data_dir: str) -> Path | None:
    """The file of the FID network's weights; None where none was named and none is found."""
    if named:
        return find_weights(named)
    try:
        return find("inception", data_dir or None, download=False)[0]
    except MissingData:
        return None
