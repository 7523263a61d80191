"""Distances of images from test images: FID and KID, or substitutes if the FID network's weights are not found."""

from __future__ import annotations

import functools
import hashlib
from abc import ABC
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn

from ncode import InputError
from ncode.errors import check_choice

from ...data import MissingData, cache_dir, find, stream
from ...metrics import FrechetDistance, Inception, KernelDistance, extract, load_inception
from ...training import RunError, Trial, TrialContext
from ...training.files import write_file
from .settings import Coding

Score = Literal["fid", "random"]
Precision = Literal["ieee", "tf32"]


class Names(NamedTuple):
    """Names of the two scores: as metrics, in tables and figures, and a short title for repeated use.

    Kernel distances of other features are far larger than KID, and are shown with fewer digits.
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

    It sees colours, edges and textures and costs nothing. Its distances are not FID, and are not called so.
    """

    def __init__(self) -> None:
        super().__init__()
        sizes = ((3, 32), (32, 64), (64, 64))
        # In single precision, whatever the default dtype of a run.
        layers = (nn.Conv2d(before, after, 3, 2, 1, bias=False, dtype=torch.float32) for before, after in sizes)
        self.layers = nn.Sequential(*layers)
        generator = stream(0, "random features")
        for layer in self.layers:
            assert isinstance(layer, nn.Conv2d)
            drawn = torch.randn(layer.weight.shape, generator=generator, dtype=torch.float32)
            layer.weight.data = drawn * (2 / layer.weight[0].numel()) ** 0.5
        self.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        x = (images.float() - 128) / 128
        for layer in self.layers:
            x = torch.relu(layer(x))
        return 10 * x.mean((2, 3))


class Judge:
    """Scores images against test images, bytes (n, 1 or 3, height, width).

    `weights` is the file of the FID network's weights, None for random features instead; `precision` is that of its
    convolutions on CUDA: see `ncode_lab.metrics.Inception`.

    """

    def __init__(self, test: Tensor, weights: Path | None, precision: Precision = "ieee"):
        self.network = (RandomFeatures() if weights is None else _inception(weights, precision)).to(test.device)
        features = "random" if weights is None else None
        self.frechet = FrechetDistance(self.network, features)
        self.names = OTHER if weights is None else FID
        if self.names == FID:
            # These take minutes on a CPU, and are the same for every run.
            self.real = cached_features(test, f"FID network, {precision} on {test.device.type}", self._features)
        else:
            self.real = self._features(test)
        self.frechet.update_features(self.real, real=True)

    def __call__(self, images: Tensor) -> dict[str, float]:
        """Both scores of images, bytes."""
        fake = self._features(images)
        self.frechet.reset()
        self.frechet.update_features(fake, real=False)
        # The usual 100 subsets would take longer than everything else without a GPU.
        subsets = 100 if self.names == FID else 10
        kernel = KernelDistance(self.network, subsets=subsets, subset_size=min(1000, len(fake), len(self.real)))
        kernel.update_features(self.real, real=True)
        kernel.update_features(fake, real=False)
        return {self.names.frechet: float(self.frechet.compute()), self.names.kernel: float(kernel.compute().mean)}

    def _features(self, images: Tensor) -> Tensor:
        # The network takes colour images only.
        return extract(self.network, images.expand(-1, 3, -1, -1), batch=500 if images.is_cuda else 100)


@dataclass(frozen=True)
class Scored(Coding, ABC):
    """Settings of experiments that score images."""

    score: Score = "fid"
    """fid: FID and KID, if the weights are found. random: distances of random features, which are cheap and have names
    of their own."""
    fid_weights: str = ""
    """File of the FID network's weights. Default: look for it in the folder of the data."""
    fid_precision: Precision = "ieee"
    """Precision of the FID network's convolutions on CUDA. tf32 is several times faster, with 10-bit factors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("score", self.score, get_args(Score))
        check_choice("fid_precision", self.fid_precision, get_args(Precision))

    @property
    def weights(self) -> Path | None:
        """The file of the FID network's weights, if FID is wanted and the file is found."""
        if self.score != "fid":
            return None
        if self.fid_weights:
            if not Path(self.fid_weights).is_file():
                raise InputError(f"there is no file {self.fid_weights}: it should hold the FID network's weights")
            return Path(self.fid_weights)
        try:
            return find("inception", self.data_dir or None, download=False)[0]
        except MissingData:
            return None

    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        """Each model with each seed. Damaged weights of the FID network are detected here, before training."""
        if self.weights is not None:
            _inception(self.weights, self.fid_precision)
        return super().trials(seeds)

    def judge(self, test: Tensor, context: TrialContext) -> Judge:
        """A judge by these settings, shared by all models of a run."""
        if self.weights is None and self.score == "fid":
            context.info(f"the weights of the FID network were not found: using {OTHER.title} instead of FID")
        about = (self.dataset, self.data_dir, self.fallback, self.test_images, self.validate, test.device, len(test))
        about += (self.weights, self.fid_precision, self.data().get("sha256"))
        if about not in _judges:
            _judges.clear()
            _judges[about] = Judge(test, self.weights, self.fid_precision)
        return _judges[about]


_judges: dict[tuple[Any, ...], Judge] = {}


@functools.lru_cache(maxsize=1)
def _inception(weights: Path, precision: Precision) -> Inception:
    """The FID network. Only the published weights give FID, and a damaged file may still hold the right shapes."""
    network = load_inception(weights, precision=precision)
    if not network.genuine:
        raise InputError(
            f"{weights} does not hold the published weights of the FID network: it is damaged, or of another network."
            " Fetch it again, or leave FID out with --score random"
        )
    return network


def cached_features(images: Tensor, about: str, compute: Callable[[Tensor], Tensor]) -> Tensor:
    """Features of images, from the cache if they were computed before.

    The key is made of all bytes of the images and of `about`, everything else that features depend on. A damaged file
    is computed again, and a cache that cannot be written does not stop a run.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load, save

    digest = hashlib.sha256(f"{about}, {tuple(images.shape)}".encode())
    digest.update(images.cpu().contiguous().numpy().tobytes())
    path = cache_dir() / "features" / f"{digest.hexdigest()[:32]}.safetensors"
    with suppress(OSError, SafetensorError, KeyError):
        found = load(path.read_bytes())["features"]
        if len(found) == len(images) and found.isfinite().all():
            return found.to(images.device)
    found = compute(images)
    with suppress(OSError, RunError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, save({"features": found.detach().cpu().contiguous()}))
    return found.to(images.device)
