"""A network of blocks with down-sampling between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..block import NCODE, register
from ..checks import check_count
from ..control import Controller, OpenLoop, Static
from .classifier import Answer, Costs, ImageClassifier, Shape, reached
from .classifier_field import WeighedConv
from .gammas import gamma


class ClassifierNet(ImageClassifier):
    """A convolution, then for each width a block, with half the height and width from one to the next; then a mean.

    Each block sets its control from the state that it is given, or, with `adaptive=False`, shares one among all
    samples: the same network with static blocks.

    Args:
        shape: Of an image, (C, H, W).
        classes: How many.
        widths: Channels of each block.
        adaptive: Whether the blocks' control is set from the data.
        hidden: Features that gamma sees of a state.
        rank: Of the convolution that is a sample's own: see `WeighedConv`.
        scale: The size of the part of the control that depends on the data: see `OpenLoop`.
        method, steps: Steps of the solver in each block, of equal length.

    >>> import torch
    >>> model = ClassifierNet((3, 16, 16), widths=(8, 16))
    >>> model(torch.zeros(2, 3, 16, 16, dtype=torch.uint8)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        shape: Shape,
        classes: int = 10,
        widths: Sequence[int] = (48, 96, 192),
        *,
        adaptive: bool = True,
        hidden: int = 32,
        rank: int = 8,
        scale: float = 0.3,
        method: str = "midpoint",
        steps: int = 2,
    ):
        super().__init__(shape, classes)
        self.widths = tuple(check_count("widths", width) for width in widths)
        self.adaptive, self.hidden, self.rank, self.scale = adaptive, hidden, rank, scale
        self.method, self.steps = method, check_count("steps", steps)
        channels, height, width = self.shape
        self.stem = nn.Sequential(_conv(channels, self.widths[0]), nn.BatchNorm2d(self.widths[0]))
        blocks, downs = [], []
        for number, now in enumerate(self.widths):
            if number:
                before, height, width = self.widths[number - 1], (height + 1) // 2, (width + 1) // 2
                norms = nn.BatchNorm2d(before), nn.BatchNorm2d(now)
                downs.append(nn.Sequential(norms[0], nn.ReLU(), _conv(before, now, stride=2), norms[1]))
            blocks.append(self._block((now, height, width)))
        self.blocks, self.downs = nn.ModuleList(blocks), nn.ModuleList(downs)
        self.norm = nn.BatchNorm2d(self.widths[-1])
        self.readout = nn.Linear(self.widths[-1], self.classes)
        self.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]

    def answer(self, images: Tensor, cost: Costs = None, **changes: Any) -> Answer:
        """Logits, and how each block was solved."""
        x = self.stem(self.scaled(images).contiguous(memory_format=torch.channels_last))
        solutions = []
        for number, block in enumerate(cast(Sequence[NCODE], self.blocks)):
            # Under autocast a convolution returns less precision than a state is integrated in.
            x = self.downs[number - 1](x) if number else x
            solutions.append(block.solve(x.to(self.mean.dtype), cost=cost, throw=False, **changes))
            x = reached(solutions[-1])
        ok = torch.stack([solution.ok for solution in solutions]).all(0)
        return Answer(self.readout(F.relu(self.norm(x)).mean((2, 3))), tuple(solutions), ok)

    def config(self) -> dict[str, Any]:
        """All arguments."""
        return {
            "shape": self.shape,
            "classes": self.classes,
            "widths": self.widths,
            "adaptive": self.adaptive,
            "hidden": self.hidden,
            "rank": self.rank,
            "scale": self.scale,
            "method": self.method,
            "steps": self.steps,
        }

    def _block(self, shape: Shape) -> NCODE:
        controller: Controller = Static()
        if self.adaptive:
            controller = OpenLoop(gamma("conv", shape, self.hidden), scale=self.scale)
        # Few steps: a graph of them takes less time than evaluating again in backward, and memory for it is at hand.
        options: dict[str, Any] = {"method": self.method, "dt": 1.0 / self.steps, "gradient": "autograd"}
        return NCODE(WeighedConv(shape[0], rank=self.rank), controller, **options)


def _conv(before: int, after: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)


register(ClassifierNet, name="ncode.ClassifierNet")
