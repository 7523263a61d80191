"""Sets of images with their labels: uint8, each set in one tensor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ncode import InputError
from ncode.errors import check_count

from .sampling import stream


@dataclass(frozen=True, eq=False)
class Images:
    """A set of images, uint8 as published; `to` puts the whole set on a device, where batches are then taken.

    >>> import torch
    >>> from ncode_lab.data import Images
    >>> images = Images(torch.full((4, 3, 8, 8), 255, dtype=torch.uint8), torch.arange(4), "four", tuple("abcd"))
    >>> images, images.float([0, 2]).shape, float(images.float().max())
    (Images(four, train, 4 of 3 x 8 x 8, on cpu), torch.Size([2, 3, 8, 8]), 1.0)
    """

    images: Tensor  # (N, C, H, W), uint8
    labels: Tensor  # (N,), int64; all 0 if the set has none, and `classes` is then empty
    name: str
    classes: tuple[str, ...] = ()
    split: str = "train"
    generated: bool = False  # drawn by `draw_digits` or `draw_shapes` in place of a published set

    def __post_init__(self) -> None:
        """Check shapes and dtypes."""
        if self.images.dtype != torch.uint8 or self.images.dim() != 4:
            raise InputError(
                f"images must be uint8 of shape (N, C, H, W); given {self.images.dtype}, {tuple(self.images.shape)}"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise InputError(
                f"labels must be int64, one per image, ({len(self.images)},); given {self.labels.dtype},"
                f" {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.shape))
        return f"Images({self.name}, {self.split}, {len(self)} of {shape}, on {self.images.device})"

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape (C, H, W) of one image."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    @property
    def device(self) -> torch.device:
        """The device of the images."""
        return self.images.device

    def to(self, device: str | torch.device) -> Images:
        """Copy the whole set to a device, as uint8."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def take(self, indices: Tensor | list[int] | slice) -> Images:
        """Select images by index."""
        if isinstance(indices, list):
            indices = torch.tensor(indices, dtype=torch.int64)
        return replace(self, images=self.images[indices], labels=self.labels[indices])

    def float(self, indices: Tensor | list[int] | slice | None = None) -> Tensor:
        """Return the images, or those at `indices`, as float32 from 0 to 1."""
        images = self.images if indices is None else self.images[indices]
        return images.float() / 255


class Labelled(NamedTuple):
    """Images (N, C, H, W), bytes, and their labels (N,), int64; None if there are none."""

    images: Tensor
    labels: Tensor | None


class Parts(NamedTuple):
    """What a reader of own data found: training images, test images if they are given, and the names of classes."""

    train: Labelled
    test: Labelled | None
    classes: tuple[str, ...]


class ImageSets(NamedTuple):
    """The training and the test images of a data set; unpacks into both.

    >>> from ncode_lab.data import ImageSets, draw_digits
    >>> train, test = ImageSets(draw_digits(20, generator=0), draw_digits(10, generator=1, split="test"))
    >>> train.split, len(train), test.split, len(test)
    ('train', 20, 'test', 10)
    """

    train: Images
    test: Images

    @property
    def name(self) -> str:
        """The name of the data set."""
        return self.train.name

    @property
    def generated(self) -> bool:
        """Whether the images were drawn in place of a published set."""
        return self.train.generated

    def to(self, device: str | torch.device) -> ImageSets:
        """Copy both to a device."""
        return ImageSets(self.train.to(device), self.test.to(device))


def hold_out(images: Images, count: int = 5000, seed: int = 0) -> tuple[Images, Images]:
    """Split images at random into the rest and `count` held-out ones, to choose models without the test set.

    Both parts keep the order of the images; the split depends on the seed alone.

    >>> from ncode_lab.data import draw_digits, hold_out
    >>> rest, held_out = hold_out(draw_digits(100, generator=0), 20)
    >>> len(rest), len(held_out), held_out.split
    (80, 20, 'held-out')
    """
    count = check_count("count", count)
    if count >= len(images):
        raise InputError(f"cannot hold out {count} of {len(images)} images: nothing would be left to train on")
    order = torch.randperm(len(images), generator=stream(seed, "hold out"))
    held_out, rest = (part.sort().values.to(images.device) for part in (order[:count], order[count:]))
    return images.take(rest), replace(images.take(held_out), split="held-out")


@dataclass(frozen=True, eq=False)
class Normalisation:
    """(x - mean) / std per channel, for images from 0 to 1. Compute it from the training images, and use it for all.

    >>> import torch
    >>> from ncode_lab.data import Normalisation, draw_shapes
    >>> images = draw_shapes(50, generator=0)
    >>> normalise = Normalisation.of(images)
    >>> x = normalise(images.images)
    >>> bool(x.mean().abs() < 1e-4), bool((normalise.undo(x) - images.float()).abs().max() < 1e-5)
    (True, True)
    """

    mean: Tensor  # (C,), float32
    std: Tensor  # (C,), float32

    @classmethod
    def of(cls, images: Images) -> Normalisation:
        """Compute it from a set, on its device. Pixels are counted, so the result is the same on every device."""
        mean, std = [], []
        level = torch.arange(256, dtype=torch.float64)
        for channel in images.images.unbind(1):
            count = torch.bincount(channel.flatten(), minlength=256).cpu().double()
            mean.append((count @ level) / count.sum() / 255)
            std.append(((count @ level**2) / count.sum() / 255**2 - mean[-1] ** 2).clamp(min=0).sqrt())
        # A constant channel is not scaled.
        scale = [value if value > 0 else torch.ones_like(value) for value in std]
        return cls(torch.stack(mean).float(), torch.stack(scale).float()).to(images.device)

    def to(self, device: str | torch.device) -> Normalisation:
        """Copy to a device."""
        return Normalisation(self.mean.to(device), self.std.to(device))

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise images (..., C, H, W): uint8, or floats from 0 to 1."""
        x = images.float() / 255 if images.dtype == torch.uint8 else images
        return (x - self.mean[:, None, None]) / self.std[:, None, None]

    def undo(self, x: Tensor) -> Tensor:
        """Return images from 0 to 1."""
        return x * self.std[:, None, None] + self.mean[:, None, None]
