"""Images with their labels, as they are kept: uint8, the whole set in one tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ncode import InputError
from ncode.checks import check_count

from .streams import stream


@dataclass(frozen=True, eq=False)
class Images:
    """A set of images, uint8 as published; `to` puts the whole of it on a device, where batches are then taken.

    >>> import torch
    >>> from ncode_lab.data import Images
    >>> images = Images(torch.full((4, 3, 8, 8), 255, dtype=torch.uint8), torch.arange(4), "four", tuple("abcd"))
    >>> images, images.float([0, 2]).shape, float(images.float().max())
    (Images(four, train, 4 of 3 x 8 x 8, on cpu), torch.Size([2, 3, 8, 8]), 1.0)
    """

    images: Tensor  # (N, C, H, W), uint8
    labels: Tensor  # (N,), int64; all 0 where the set has none, and `classes` is then empty
    name: str
    classes: tuple[str, ...] = ()
    split: str = "train"
    generated: bool = False  # drawn by us in place of a published set

    def __post_init__(self) -> None:
        """Check shapes and dtypes."""
        if self.images.dtype != torch.uint8 or self.images.dim() != 4:
            raise InputError(
                f"images must be uint8 of shape (N, C, H, W); given {self.images.dtype}, {tuple(self.images.shape)}"
            )
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise InputError(
                f"labels must be int64, one an image, ({len(self.images)},); given {self.labels.dtype},"
                f" {tuple(self.labels.shape)}"
            )

    def __len__(self) -> int:
        """How many."""
        return len(self.images)

    def __repr__(self) -> str:
        """Name, split, number, shape and device."""
        shape = " x ".join(map(str, self.shape))
        return f"Images({self.name}, {self.split}, {len(self)} of {shape}, on {self.images.device})"

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        channels, height, width = self.images.shape[1:]
        return channels, height, width

    @property
    def device(self) -> torch.device:
        """Where the images are."""
        return self.images.device

    def to(self, device: str | torch.device) -> Images:
        """The whole set on another device, as uint8."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def take(self, indices: Tensor | list[int] | slice) -> Images:
        """Some of them."""
        if isinstance(indices, list):
            indices = torch.tensor(indices, dtype=torch.int64)
        return replace(self, images=self.images[indices], labels=self.labels[indices])

    def float(self, indices: Tensor | list[int] | slice | None = None) -> Tensor:
        """Images, or some of them, as float32 from 0 to 1."""
        images = self.images if indices is None else self.images[indices]
        return images.float() / 255


@dataclass(frozen=True, eq=False)
class ImageSets:
    """The training and the test images of a data set; unpacks into both.

    >>> from ncode_lab.data import ImageSets, draw_digits
    >>> train, test = ImageSets(draw_digits(20, generator=0), draw_digits(10, generator=1, split="test"))
    >>> train.split, len(train), test.split, len(test)
    ('train', 20, 'test', 10)
    """

    train: Images
    test: Images

    def __iter__(self) -> Iterator[Images]:
        """Training, then test images."""
        return iter((self.train, self.test))

    @property
    def name(self) -> str:
        """Of the data set."""
        return self.train.name

    @property
    def generated(self) -> bool:
        """Whether it was drawn by us in place of a published set."""
        return self.train.generated

    def to(self, device: str | torch.device) -> ImageSets:
        """Both on another device."""
        return ImageSets(self.train.to(device), self.test.to(device))


def hold_out(images: Images, count: int = 5000, seed: int = 0) -> tuple[Images, Images]:
    """Set images aside to choose models by, so that the test set never is. A function of the seed alone.

    Returns the rest and those set aside, each in the order in which they were.

    >>> from ncode_lab.data import draw_digits, hold_out
    >>> rest, chosen_by = hold_out(draw_digits(100, generator=0), 20)
    >>> len(rest), len(chosen_by), chosen_by.split
    (80, 20, 'held-out')
    """
    count = check_count("count", count)
    if count >= len(images):
        raise InputError(f"cannot hold out {count} of {len(images)} images: nothing would be left to train on")
    order = torch.randperm(len(images), generator=stream(seed, "hold out"))
    held, rest = (part.sort().values.to(images.device) for part in (order[:count], order[count:]))
    return images.take(rest), replace(images.take(held), split="held-out")
