"""Image classifiers: a block whose state is the image, and a linear read-out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..block import NCODE, from_pretrained, register, save_pretrained
from ..checks import check_count
from ..costs import Regulariser
from ..ode import InputError, Solution
from ..ode.field import Cost

Shape = tuple[int, int, int]
Costs = Cost | Regulariser | Sequence[Cost | Regulariser] | None


class Answer(NamedTuple):
    """What a classifier says about a batch.

    Attributes:
        logits: (batch, classes).
        solutions: Of its blocks, in order.
        ok: (batch,): for which samples every block could be solved. The others' logits mean nothing.
    """

    logits: Tensor
    solutions: tuple[Solution, ...]
    ok: Tensor

    @property
    def nfe(self) -> Tensor:
        """Evaluations of the dynamics in forward, all blocks together, (batch,)."""
        return self._sum([solution.stats.nfe for solution in self.solutions])

    @property
    def nfe_backward(self) -> Tensor:
        """Evaluations in backward, once it has run; 0 where a graph was kept instead, (batch,)."""
        backward = [solution.stats.nfe_backward for solution in self.solutions]
        return self._sum([0 * self.nfe if count is None else count for count in backward])

    @property
    def rejected(self) -> Tensor:
        """Steps that were rejected, (batch,)."""
        return self._sum([solution.stats.rejected for solution in self.solutions])

    @property
    def cost(self) -> Tensor:
        """Running costs, all blocks together, (batch,); 0 for samples that failed."""
        costs = [solution.cost for solution in self.solutions if solution.cost is not None]
        return torch.where(self.ok, torch.stack(costs).sum(0), 0) if costs else torch.zeros_like(self.logits[:, 0])

    @property
    def control_norm(self) -> Tensor:
        """The norm of what controls each sample, (batch,); 0 where all samples share their control."""
        squares = torch.zeros_like(self.logits[:, 0], dtype=torch.float32)
        for solution in self.solutions:
            for value in solution.theta.values():
                if value.stride(0):  # a control that all share is a view
                    norm = torch.linalg.vector_norm(value.detach().flatten(1), dim=1, dtype=torch.float32)
                    squares = squares + norm.square()
        return squares.sqrt()

    def _sum(self, counts: Sequence[Tensor]) -> Tensor:
        """Over all blocks; 0 where there is none."""
        return torch.stack(list(counts)).sum(0) if counts else torch.zeros_like(self.ok, dtype=torch.long)


class ImageClassifier(nn.Module, ABC):
    """Images in, logits out, and what the blocks between them took.

    Abstract: `Classifier` is the paper's, `ClassifierNet` a network of blocks, `TrunkClassifier` has none. All take
    uint8 images, or floats from 0 to 1, and scale them by a mean and a deviation that are part of the weights.

    >>> from ncode.models import build_classifier
    >>> model = build_classifier("gamma-alone", (1, 28, 28))
    >>> isinstance(model, ImageClassifier), model(torch.zeros(2, 1, 28, 28)).shape
    (True, torch.Size([2, 10]))
    """

    mean: Tensor
    std: Tensor

    def __init__(self, shape: Shape, classes: int):
        super().__init__()
        self.shape, self.classes = _check_shape(shape), check_count("classes", classes)
        self.register_buffer("mean", torch.zeros(self.shape[0]))
        self.register_buffer("std", torch.ones(self.shape[0]))

    @abstractmethod
    def answer(self, images: Tensor, cost: Costs = None, **changes: Any) -> Answer:
        """Logits, and how each block was solved. Samples that fail are marked.

        `cost` is charged in each block; `changes` are other settings of the solver for this time: method="dopri5", ...
        """

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """The arguments that build this classifier again."""

    def forward(self, images: Tensor) -> Tensor:
        """Logits (batch, classes)."""
        return self.answer(images).logits

    def scale_by(self, mean: Tensor, std: Tensor) -> Self:
        """Set the mean and the deviation of each channel of images from 0 to 1."""
        self.mean.copy_(mean)
        self.std.copy_(std)
        return self

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the classifier into a folder, as `NCODE.save_pretrained` does."""
        save_pretrained(self, folder)

    @classmethod
    def from_pretrained(cls, folder: str | Path, revision: str | None = None) -> Self:
        """The classifier that was written into a folder, in evaluation mode."""
        found = from_pretrained(folder, revision)
        if not isinstance(found, cls):
            raise InputError(f"{folder} holds a {type(found).__name__}, and not a {cls.__name__}")
        return found

    def scaled(self, images: Tensor) -> Tensor:
        """Images of mean 0 and deviation 1 a channel."""
        if images.dim() != 4 or tuple(images.shape[1:]) != self.shape:
            raise InputError(
                f"this classifier takes images (batch, {', '.join(map(str, self.shape))}); given {tuple(images.shape)}"
            )
        x = images.to(self.mean.dtype) / 255 if images.dtype == torch.uint8 else images
        return (x - self.mean[:, None, None]) / self.std[:, None, None]


class Classifier(ImageClassifier):
    """The paper's classifier: an image flows through one block, and a linear map of x(1) gives the logits.

    Args:
        block: What the image flows through; its state is (channels, height, width).
        shape: Of an image, (C, H, W).
        classes: How many.
        shrink: Means over fields of this size are taken first, for quick runs: the block then sees (C, H/2, W/2).

    >>> import torch, ncode
    >>> from ncode.models.gammas import gamma
    >>> f = ncode.dynamics.Augmented(ncode.dynamics.ConvBlock(3 + 5, filters=8), zeros=5)
    >>> block = ncode.NCODE(f, ncode.OpenLoop(gamma("conv", (3, 16, 16))))
    >>> model = Classifier(block, (3, 16, 16))
    >>> model(torch.zeros(2, 3, 16, 16, dtype=torch.uint8)).shape
    torch.Size([2, 10])
    """

    def __init__(self, block: NCODE, shape: Shape, classes: int = 10, shrink: int = 1):
        super().__init__(shape, classes)
        if not isinstance(block, NCODE):
            raise InputError(f"block must be an ncode.NCODE; given {type(block).__name__}")
        state = block.dynamics.state_shape
        if state is None or len(state) != 3 or state[0] is None:
            raise InputError(f"the block's state must be (channels, height, width); given {state}")
        self.block, self.shrink = block, check_count("shrink", shrink)
        _, height, width = shrunk(self.shape, self.shrink)
        self.readout = nn.Linear(state[0] * height * width, self.classes)

    def answer(self, images: Tensor, cost: Costs = None, **changes: Any) -> Answer:
        """Logits, and how the block was solved."""
        x = shrink_by(self.scaled(images), self.shrink)
        solution = self.block.solve(x, cost=cost, throw=False, **changes)
        return Answer(self.readout(reached(solution).flatten(1)), (solution,), solution.ok)

    def config(self) -> dict[str, Any]:
        """block, shape, classes, shrink."""
        return {"block": self.block, "shape": self.shape, "classes": self.classes, "shrink": self.shrink}


def reached(solution: Solution) -> Tensor:
    """x at t1, with 0 for the samples that failed: a nan there would reach the gradients of what all samples share."""
    return torch.where(solution.ok[:, None, None, None], solution.x, 0)


def shrink_by(images: Tensor, shrink: int) -> Tensor:
    """Means over fields of shrink x shrink pixels."""
    return F.avg_pool2d(images, shrink) if shrink > 1 else images


def shrunk(shape: Shape, shrink: int) -> Shape:
    """The shape of an image after means over fields."""
    channels, height, width = shape
    if min(height, width) < 4 * shrink:
        raise InputError(f"images of {height} x {width} cannot be shrunk by {shrink}: fewer than 4 pixels are left")
    return channels, height // shrink, width // shrink


def _check_shape(shape: Sequence[int]) -> Shape:
    sizes = tuple(shape)
    if len(sizes) != 3 or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise InputError(f"shape must be (channels, height, width) of an image; given {shape!r}")
    return sizes


register(Classifier, name="ncode.Classifier")
