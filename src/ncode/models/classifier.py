"""Image classifiers: one block whose state is the image, a linear read-out, and trunks of gamma for images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal, NamedTuple, Self, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._modules import Configurable, check_shape
from ..block import NCODE
from ..block.pretrained import Pretrained
from ..costs import CostLike
from ..errors import InputError, allocating, check_choice, check_count, check_fraction, check_tensor, format_value
from ..ode import Solution
from .scaling import ValueRange, check_value_range, check_values

ImageShape = tuple[int, int, int]  # channels, height, width
Gamma = Literal["linear", "perceptron", "conv", "conv-norm", "conv-pool"]
GAMMAS: tuple[Gamma, ...] = get_args(Gamma)


class ClassifierOutput(NamedTuple):
    """The logits of a batch, and how each block was solved.

    >>> import torch, ncode
    >>> f = ncode.dynamics.ConvBlock(1, filters=2)
    >>> model = Classifier(ncode.NCODE(f, method="rk4", dt=0.5), (1, 8, 8))
    >>> output = model.classify(torch.zeros(3, 1, 8, 8))
    >>> output.logits.shape, output.ok.tolist()
    (torch.Size([3, 10]), [True, True, True])
    """

    logits: Tensor  # (batch, classes)
    solutions: tuple[Solution, ...]  # one per block, in order
    ok: Tensor  # (batch,): whether every block could be solved; the logits of the other samples mean nothing

    @property
    def nfe(self) -> Tensor:
        """Evaluations of the dynamics in forward, summed over blocks, (batch,)."""
        return self._sum("nfe")

    @property
    def nfe_backward(self) -> Tensor:
        """Evaluations in backward, once it has run, (batch,); 0 where a graph was kept instead."""
        return self._sum("nfe_backward")

    @property
    def rejected(self) -> Tensor:
        """Rejected steps, summed over blocks, (batch,)."""
        return self._sum("rejected")

    @property
    def cost(self) -> Tensor:
        """Running costs, summed over blocks, (batch,); 0 for samples that failed."""
        costs = [solution.cost for solution in self.solutions if solution.cost is not None]
        return torch.where(self.ok, torch.stack(costs).sum(0), 0) if costs else torch.zeros_like(self.logits[:, 0])

    def _sum(self, name: str) -> Tensor:
        counts = [getattr(solution.stats, name) for solution in self.solutions]
        return sum((count for count in counts if count is not None), torch.zeros_like(self.ok, dtype=torch.long))


class ImageClassifier(Configurable, Pretrained, ABC):
    """Base class of image classifiers. Abstract: a subclass defines `classify`.

    Takes uint8 images, or floats in `value_range`, and normalises them by a mean and a standard deviation that are part
    of the weights. Images beyond that range by more than a tenth of it are refused: bytes given as floats, for example.

    Args:
        shape: Shape of an image, (channels, height, width).
        classes: Number of classes.
        shrink: Factor by which images are first reduced, by means over shrink x shrink pixels.
        value_range: The darkest and the brightest value of images that are floats.

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

    def __init__(self, shape: ImageShape, classes: int, shrink: int = 1, value_range: ValueRange = (0.0, 1.0)):
        super().__init__()
        self.shape = channels, _, _ = _check_image_shape(shape)
        self.classes, self.shrink = check_count("classes", classes), check_count("shrink", shrink)
        shrunk_shape(self.shape, self.shrink)
        self.value_range = check_value_range(value_range)
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("std", torch.ones(channels))

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
        """Set the mean and the standard deviation per channel, of images that are floats in `value_range`."""
        self.mean.copy_(mean)
        self.std.copy_(std)
        return self

    def normalise(self, images: Tensor) -> Tensor:
        """Images with mean 0 and deviation 1 per channel, reduced by `shrink`."""
        if check_tensor("images", images).dim() != 4 or tuple(images.shape[1:]) != self.shape:
            raise InputError(
                f"this classifier takes images (batch, {', '.join(map(str, self.shape))}); given {tuple(images.shape)}"
            )
        x = self._as_floats(images)
        x = (x - self.mean[:, None, None]) / self.std[:, None, None]
        return F.avg_pool2d(x, self.shrink) if self.shrink > 1 else x

    def _as_floats(self, images: Tensor) -> Tensor:
        low, high = self.value_range
        if images.dtype == torch.uint8:
            return images.to(self.mean.dtype) * ((high - low) / 255) + low
        if not images.is_floating_point():
            raise InputError(f"images must be uint8 or floats from {low:g} to {high:g}; given {images.dtype}")
        check_values(self, images, self.value_range, slack=0.1)
        return images

    def card_lines(self) -> dict[str, str]:
        """Lines of the model card: what goes in, its scaling, and what comes out."""
        low, high = self.value_range
        mean, std = ([round(value, 4) for value in it.tolist()] for it in (self.mean, self.std))
        return {
            "Input": f"images (batch, {', '.join(map(str, self.shape))}), uint8, or floats from {low:g} to {high:g}",
            "Scaling": f"by the model itself, as floats: mean {mean}, standard deviation {std} per channel",
            "Output": f"logits (batch, {self.classes})",
        }


class Classifier(ImageClassifier):
    """The paper's classifier: an image flows through one block, and a linear map of x(t1) gives the logits.

    On a CPU, use fixed steps: a training step of 64 images of 28 x 28 with 50 filters takes 0.7 s on one core with
    method="rk4" and dt=0.5, and 1.9 s with the adaptive default. Fewer filters and `shrink` make it faster.

    Args:
        block: What the image flows through. Its state is (channels, height, width), with each side divided by shrink.
        shape, classes, shrink, value_range: As for `ImageClassifier`.

    >>> import torch, ncode
    >>> f = ncode.dynamics.Augmented(ncode.dynamics.ConvBlock(3 + 5, filters=8), zeros=5)
    >>> block = ncode.NCODE(f, ncode.OpenLoop(gamma("conv", (3, 16, 16))), method="rk4", dt=0.5)
    >>> model = Classifier(block, (3, 16, 16))
    >>> model(torch.zeros(2, 3, 16, 16, dtype=torch.uint8)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        block: NCODE,
        shape: ImageShape,
        classes: int = 10,
        shrink: int = 1,
        value_range: ValueRange = (0.0, 1.0),
    ):
        super().__init__(shape, classes, shrink, value_range)
        if not isinstance(block, NCODE):
            raise InputError(f"block must be an ncode.NCODE; given {type(block).__name__}")
        state = block.dynamics.state_shape
        if state is None or len(state) != 3 or state[0] is None:
            raise InputError(f"the block's state must be (channels, height, width); given {state}")
        self.block = block
        _, height, width = shrunk_shape(self.shape, self.shrink)
        with allocating("the weights of the readout"):
            self.readout = nn.Linear(state[0] * height * width, self.classes)

    def classify(self, images: Tensor, cost: CostLike | None = None, **changes: Any) -> ClassifierOutput:
        solution = self.block.solve(self.normalise(images), cost=cost, throw=False, **changes)
        # 0 for failed samples: nan would reach the gradients of parameters that all samples share.
        x = torch.where(solution.ok[:, None, None, None], solution.x, 0)
        return ClassifierOutput(self.readout(x.flatten(1)), (solution,), solution.ok)


def shrunk_shape(shape: ImageShape, shrink: int) -> ImageShape:
    """The shape of an image that is reduced by means over shrink x shrink pixels.

    >>> shrunk_shape((3, 32, 32), 2)
    (3, 16, 16)
    """
    channels, height, width = shape
    if min(height, width) < 4 * shrink:
        raise InputError(f"images of {height} x {width} cannot be shrunk by {shrink}: fewer than 4 pixels are left")
    return channels, height // shrink, width // shrink


def gamma(kind: str, shape: ImageShape, hidden: int = 10, dropout: float = 0.0) -> nn.Sequential:
    """A trunk for `OpenLoop` that maps images to `hidden` features.

    Args:
        kind: "linear", as in the paper's appendix: a linear map of all pixels. "perceptron": the same with a tanh,
            another reading of the paper. "conv": two convolutions of stride 2 with 16 and 32 channels, a mean over 2x2
            fields, linear, tanh. "conv-norm": three convolutions with 32, 64 and 128 channels and batch norm, then as
            "conv". "conv-pool": the same with stride 1 and max pooling. The last three are not in the paper; they
            generalise, whereas the first two memorise the training images.
        shape: Shape of an image, (channels, height, width).
        hidden: Number of features.
        dropout: Probability of dropping an input of the last layer in training, drawn once per solve.

    >>> gamma("conv", (3, 32, 32))(torch.zeros(5, 3, 32, 32)).shape
    torch.Size([5, 10])
    """
    check_choice("gamma", kind, GAMMAS)
    hidden, dropout = check_count("hidden", hidden), check_fraction("dropout", dropout)
    channels, height, width = _check_image_shape(shape)
    layers, features = _convolutions(kind, channels) if kind.startswith("conv") else ([], channels * height * width)
    with allocating("the weights of gamma"):
        last = nn.Linear(features, hidden)
    layers += [nn.Flatten(), *([nn.Dropout(dropout)] if dropout else []), last]
    return nn.Sequential(*layers) if kind == "linear" else nn.Sequential(*layers, nn.Tanh())


def _check_image_shape(shape: Any) -> ImageShape:
    if not isinstance(shape, (tuple, list)) or len(shape) != 3 or None in check_shape("shape", shape):
        raise InputError(f"shape must be (channels, height, width) of an image; given {format_value(shape)}")
    channels, height, width = shape
    return channels, height, width


def _convolutions(kind: str, channels: int) -> tuple[list[nn.Module], int]:
    """The layers up to the mean over 2x2 fields, and the number of values that they return."""
    widths, norm, pool = (16, 32) if kind == "conv" else (32, 64, 128), kind != "conv", kind == "conv-pool"
    layers: list[nn.Module] = []
    for before, after in zip((channels, *widths), widths, strict=False):
        layers.append(nn.Conv2d(before, after, 3, stride=1 if pool else 2, padding=1, bias=not norm))
        layers += [nn.BatchNorm2d(after), nn.ReLU()] if norm else [nn.ReLU()]
        layers += [nn.MaxPool2d(2, ceil_mode=True)] if pool else []
    return [*layers, nn.AdaptiveAvgPool2d(2)], 4 * widths[-1]
