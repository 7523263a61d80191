"""The test images nearest to samples: who draws from memory is found out here."""

from __future__ import annotations

import torch
from torch import Tensor

from ..data import Images, ImageSets


def neighbours_of(images: Tensor, sets: ImageSets, count: int = 4) -> tuple[Tensor, float]:
    """The test images nearest to images (n, count, C, H, W), and how often one is nearer than as many training images.

    >>> from ncode_lab.data import ImageSets, draw_digits
    >>> sets = ImageSets(draw_digits(30, generator=0), draw_digits(20, generator=1, split="test"))
    >>> near, nearer = neighbours_of(sets.test.images[:5], sets)
    >>> torch.equal(near[:, 0], sets.test.images[:5]), nearer
    (True, 1.0)
    """
    same = min(len(sets.test), len(sets.train))
    of_test, index = _nearest(images, sets.test.take(slice(0, same)), min(count, same))
    of_train, _ = _nearest(images, sets.train.take(slice(0, same)), 1)
    return sets.test.images[index], float((of_test[:, 0] < of_train[:, 0]).double().mean())


def _nearest(images: Tensor, among: Images, count: int) -> tuple[Tensor, Tensor]:
    """Distances of pixels to the nearest, and which they are."""
    x = images.flatten(1).float()
    parts = [torch.cdist(x, part.flatten(1).float()) for part in among.images.split(5000)]
    found = torch.cat(parts, 1).topk(count, largest=False)
    return found.values, found.indices
