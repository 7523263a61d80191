"""Image classifiers: one block whose state is the image, and a linear read-out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._modules import Configurable
from ..block import NCODE, from_pretrained, save_pretrained
from ..checks import check_count
from ..costs import CostLike
from ..errors import InputError
from ..ode import Solution

ImageShape = tuple[int, int, int]  # channels, height, width


class ClassifierOutput(NamedTuple):
    """The logits of a batch, and how each block was solved.

    Attributes:
        logits: (batch, classes).
        solutions: One per block, in order.
        ok: (batch,): whether every block could be solved. The logits of the other samples mean nothing.

    >>> import torch, ncode
    >>> f = ncode.dynamics.ConvBlock(1, filters=2)
    >>> model = Classifier(ncode.NCODE(f, method="rk4", dt=0.5), (1, 8, 8))
    >>> output = model.classify(torch.zeros(3, 1, 8, 8))
    >>> output.logits.shape, output.ok.tolist()
    (torch.Size([3, 10]), [True, True, True])
    """

    logits: Tensor
    solutions: tuple[Solution, ...]
    ok: Tensor

    @property
    def nfe(self) -> Tensor:
        """Evaluations of the dynamics in forward, summed over blocks, (batch,)."""
        return self._sum([solution.stats.nfe for solution in self.solutions])

    @property
    def nfe_backward(self) -> Tensor:
        """Evaluations in backward, once it has run, (batch,); 0 where a graph was kept instead."""
        backward = [solution.stats.nfe_backward for solution in self.solutions]
        return self._sum([0 * self.nfe if count is None else count for count in backward])

    @property
    def rejected(self) -> Tensor:
        """Rejected steps, summed over blocks, (batch,)."""
        return self._sum([solution.stats.rejected for solution in self.solutions])

    @property
    def cost(self) -> Tensor:
        """Running costs, summed over blocks, (batch,); 0 for samples that failed."""
        costs = [solution.cost for solution in self.solutions if solution.cost is not None]
        return torch.where(self.ok, torch.stack(costs).sum(0), 0) if costs else torch.zeros_like(self.logits[:, 0])

    @property
    def control_norm(self) -> Tensor:
        """The norm of each sample's control, (batch,); 0 where all samples share their control."""
        squares = torch.zeros_like(self.logits[:, 0], dtype=torch.float32)
        for solution in self.solutions:
            for value in solution.theta.values():
                if value.stride(0):  # a shared control is an expanded view, of stride 0
                    norm = torch.linalg.vector_norm(value.detach().flatten(1), dim=1, dtype=torch.float32)
                    squares = squares + norm.square()
        return squares.sqrt()

    def _sum(self, counts: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(counts)).sum(0) if counts else torch.zeros_like(self.ok, dtype=torch.long)


class ImageClassifier(Configurable, ABC):
    """Base class of image classifiers. Abstract: a subclass defines `classify`.

    Takes uint8 images, or floats from 0 to 1, and normalises them by a mean and a standard deviation that are part of
    the weights.

    Args:
        shape: Shape of an image, (channels, height, width).
        classes: Number of classes.
        shrink: Factor by which images are first reduced, by means over shrink x shrink pixels, for quick runs.

    >>> class Linear(ImageClassifier):
    ...     def __init__(self, shape):
    ...         super().__init__(shape, classes=10)
    ...         self.readout = nn.Sequential(nn.Flatten(), nn.LazyLinear(self.classes))
    ...     def classify(self, images, cost=None, **changes):
    ...         logits = self.readout(self.normalise(images))
    ...         return ClassifierOutput(logits, (), torch.ones(len(logits), dtype=torch.bool))
    >>> Linear((1, 28, 28))(torch.zeros(2, 1, 28, 28, dtype=torch.uint8)).shape
    torch.Size([2, 10])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, shape: ImageShape, classes: int, shrink: int = 1):
        super().__init__()
        self.shape, self.classes = _check_shape(shape), check_count("classes", classes)
        self.shrink = check_count("shrink", shrink)
        shrunk_shape(self.shape, self.shrink)
        self.register_buffer("mean", torch.zeros(self.shape[0]))
        self.register_buffer("std", torch.ones(self.shape[0]))

    @abstractmethod
    def classify(self, images: Tensor, cost: CostLike | None = None, **changes: Any) -> ClassifierOutput:
        """Logits, and how each block was solved. Samples that fail are marked in `ok`.

        Args:
            images: (batch, *shape).
            cost: A running cost in each block.
            changes: Other solver options for this call: method="dopri5", ...
        """

    def forward(self, images: Tensor) -> Tensor:
        """Logits (batch, classes)."""
        return self.classify(images).logits

    def set_normalisation(self, mean: Tensor, std: Tensor) -> Self:
        """Set the mean and the standard deviation per channel, of images scaled to 0 to 1."""
        self.mean.copy_(mean)
        self.std.copy_(std)
        return self

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the classifier into a folder, as `NCODE.save_pretrained` does."""
        save_pretrained(self, folder)

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, revision: str | None = None, allow_imports: Sequence[str] = ()
    ) -> Self:
        """Load a classifier from a folder, in evaluation mode, as `NCODE.from_pretrained` does."""
        found = from_pretrained(folder, revision, allow_imports)
        if not isinstance(found, cls):
            raise InputError(f"{folder} holds a {type(found).__name__}, not a {cls.__name__}")
        return found

    def normalise(self, images: Tensor) -> Tensor:
        """Images with mean 0 and deviation 1 per channel, reduced by `shrink`."""
        if images.dim() != 4 or tuple(images.shape[1:]) != self.shape:
            raise InputError(
                f"this classifier takes images (batch, {', '.join(map(str, self.shape))}); given {tuple(images.shape)}"
            )
        x = images.to(self.mean.dtype) / 255 if images.dtype == torch.uint8 else images
        x = (x - self.mean[:, None, None]) / self.std[:, None, None]
        return F.avg_pool2d(x, self.shrink) if self.shrink > 1 else x


class Classifier(ImageClassifier):
    """The paper's classifier: an image flows through one block, and a linear map of x(1) gives the logits.

    Args:
        block: What the image flows through; its state is (channels, height, width).
        shape: Shape of an image, (channels, height, width).
        classes: Number of classes.
        shrink: Factor by which images are first reduced: the block then sees (C, H / shrink, W / shrink).

    >>> import torch, ncode
    >>> from ncode.models import gamma
    >>> f = ncode.dynamics.Augmented(ncode.dynamics.ConvBlock(3 + 5, filters=8), zeros=5)
    >>> block = ncode.NCODE(f, ncode.OpenLoop(gamma("conv", (3, 16, 16))))
    >>> model = Classifier(block, (3, 16, 16))
    >>> model(torch.zeros(2, 3, 16, 16, dtype=torch.uint8)).shape
    torch.Size([2, 10])
    """

    def __init__(self, block: NCODE, shape: ImageShape, classes: int = 10, shrink: int = 1):
        super().__init__(shape, classes, shrink)
        if not isinstance(block, NCODE):
            raise InputError(f"block must be an ncode.NCODE; given {type(block).__name__}")
        state = block.dynamics.state_shape
        if state is None or len(state) != 3 or state[0] is None:
            raise InputError(f"the block's state must be (channels, height, width); given {state}")
        self.block = block
        _, height, width = shrunk_shape(self.shape, self.shrink)
        self.readout = nn.Linear(state[0] * height * width, self.classes)

    def classify(self, images: Tensor, cost: CostLike | None = None, **changes: Any) -> ClassifierOutput:
        solution = self.block.solve(self.normalise(images), cost=cost, throw=False, **changes)
        return ClassifierOutput(self.readout(mask_failed(solution).flatten(1)), (solution,), solution.ok)


def mask_failed(solution: Solution) -> Tensor:
    """x at t1, with 0 for failed samples: nan would reach the gradients of parameters that all samples share."""
    return torch.where(solution.ok[:, None, None, None], solution.x, 0)


def shrunk_shape(shape: ImageShape, shrink: int) -> ImageShape:
    """The shape of an image that is reduced by means over shrink x shrink pixels.

    >>> shrunk_shape((3, 32, 32), 2)
    (3, 16, 16)
    """
    channels, height, width = shape
    if min(height, width) < 4 * shrink:
        raise InputError(f"images of {height} x {width} cannot be shrunk by {shrink}: fewer than 4 pixels are left")
    return channels, height // shrink, width // shrink


def _check_shape(shape: Sequence[int]) -> ImageShape:
    sizes = tuple(shape)
    if len(sizes) != 3 or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise InputError(f"shape must be (channels, height, width) of an image; given {shape!r}")
    return sizes
