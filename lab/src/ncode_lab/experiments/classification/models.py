"""The image classifiers of the paper, its baselines and ours, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

import ncode
from ncode.block import NCODE
from ncode.checks import check_choice, check_count, check_number
from ncode.control import ClosedLoop, Controller, DataControl, Feedback, OpenLoop, Static
from ncode.dynamics import Augmented, ConvBlock, Dynamics
from ncode.models import (
    GAMMAS,
    Classifier,
    ClassifierNet,
    ClassifierOutput,
    ImageClassifier,
    gamma,
    shrunk_shape,
)

Shape = tuple[int, int, int]
Model = Literal[
    "node",
    "anode",
    "anode-wide",
    "data-control",
    "ncode",
    "ncode-3x3",
    "ncode-closed",
    "gamma-alone",
    "ncode-net",
    "static-net",
    "static-net-wide",
]
MODELS: tuple[Model, ...] = get_args(Model)
CONTROLLED = {
    "ncode": ("conv_in", "conv_3x3", "conv_out"),
    "ncode-3x3": ("conv_3x3",),
    "ncode-closed": ("conv_in", "conv_3x3", "conv_out"),
}
TOLERANCE = 1e-3  # relative and absolute, of dopri5
WIDTHS = (48, 96, 192)  # channels of the blocks of a network


@dataclass(frozen=True)
class Solver:
    """How the block of a classifier is solved.

    Attributes:
        method: "dopri5", with adaptive steps, or "rk4", with `steps` steps of equal length.
        tolerance: Relative and absolute tolerance of dopri5.
        steps: Steps of rk4.
        step: "sample": each sample has its own step size. "batch": one step size for all.
        compile: Compile the step and its backward.
    """

    method: str = "dopri5"
    tolerance: float = TOLERANCE
    steps: int = 2
    step: str = "sample"
    compile: bool = False

    def __post_init__(self) -> None:
        check_choice("solver", self.method, ("dopri5", "rk4"))
        check_number("tolerance", self.tolerance, low=0.0, strict=True)
        check_count("steps", self.steps)

    def settings(self, driven: bool = False) -> dict[str, Any]:
        """Keyword arguments of `NCODE`; `driven` if the state drives the control."""
        common: dict[str, Any] = {"method": self.method, "step": self.step, "compile": self.compile, "max_steps": 1000}
        if self.method == "dopri5":
            return {**common, "rtol": self.tolerance, "atol": self.tolerance}
        # A graph of few steps is faster than repeating them; that of a driven control would fill the memory.
        gradient = "discrete" if driven or self.compile else "autograd"
        return {**common, "dt": 1.0 / self.steps, "gradient": gradient}


@dataclass(frozen=True)
class Design:
    """What a classifier is built by, besides its name. 0 stands for the value in the paper, or in the baseline's own.

    Attributes:
        filters: Filters of the block: 50 for N-CODE; 64 for ANODE and data control; 92 (grey images) or 125 for NODE.
        zeros: Channels that start at 0: 5 for grey images, 10 for colour. -1: none.
        gamma, hidden, dropout: The trunk: see `ncode.models.gamma`.
        scale: Initial size of the data-dependent part of the control: see `OpenLoop`.
        shrink: Factor by which images are first reduced.
        widths: Channels of the blocks of a network.
        solver: Solver of a single block.
    """

    filters: int = 0
    zeros: int = 0
    gamma: str = "conv-pool"
    hidden: int = 10
    dropout: float = 0.0
    scale: float = 0.1
    shrink: int = 1
    widths: tuple[int, ...] = WIDTHS
    solver: Solver = field(default_factory=Solver)

    def __post_init__(self) -> None:
        check_choice("gamma", self.gamma, GAMMAS)


class TrunkClassifier(ImageClassifier):
    """A linear map of gamma's features: N-CODE without its flow.

    Args:
        shape: Shape of an image, (channels, height, width).
        classes: Number of classes.
        kind, hidden, dropout: The trunk: see `ncode.models.gamma`.
        shrink: Factor by which images are first reduced.

    >>> import torch
    >>> TrunkClassifier((3, 16, 16))(torch.zeros(2, 3, 16, 16, dtype=torch.uint8)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        shape: Shape,
        classes: int = 10,
        kind: str = "conv-pool",
        hidden: int = 10,
        dropout: float = 0.0,
        shrink: int = 1,
    ):
        super().__init__(shape, classes, shrink)
        self.kind, self.hidden, self.dropout = kind, hidden, dropout
        self.trunk = gamma(kind, shrunk_shape(self.shape, shrink), hidden, dropout)
        self.readout = nn.Linear(hidden, self.classes)

    def classify(self, images: Tensor, cost: Any = None, **changes: Any) -> ClassifierOutput:
        """Logits. There are no blocks, so costs and solver options have no effect."""
        logits = self.readout(self.trunk(self.normalise(images)))
        return ClassifierOutput(logits, (), torch.ones_like(logits[:, 0], dtype=torch.bool))

    def config(self) -> dict[str, Any]:
        names = ("shape", "classes", "kind", "hidden", "dropout", "shrink")
        return {name: getattr(self, name) for name in names}


ncode.register(TrunkClassifier, name="ncode.TrunkClassifier")  # the name in files written before it moved here


def build_classifier(name: str, shape: Shape, classes: int = 10, design: Design | None = None) -> ImageClassifier:
    """The classifier of that name for images (C, H, W).

    - node, anode: static weights, time as a channel, and for anode channels that start at 0 (Dupont et al., 2019).
    - anode-wide: anode with about as many parameters as ncode.
    - data-control: anode, whose first layer sees the image as well (Massaroli et al., 2020).
    - ncode: gamma sets all three kernels; ncode-3x3: only the middle one.
    - ncode-closed: gamma sets the three kernels, and the state drives them.
    - gamma-alone: a linear map of gamma's features, without a flow.
    - ncode-net: three blocks with down-sampling between them; static-net: the same with a control that all samples
      share; static-net-wide: static-net with about as many parameters as ncode-net.

    >>> anode = build_classifier("anode", (3, 32, 32))
    >>> sum(p.numel() for p in anode.parameters())  # as in its own paper
    172452
    """
    check_choice("model", name, MODELS)
    design = Design() if design is None else design
    if name == "static-net-wide":
        return _wide_net(shape, classes, design)
    if name.endswith("-net"):
        return ClassifierNet(shape, classes, design.widths, adaptive=name == "ncode-net")
    if name == "gamma-alone":
        return TrunkClassifier(shape, classes, design.gamma, design.hidden, design.dropout, design.shrink)
    if name == "anode-wide":
        wanted = count_parameters(lambda: build_classifier("ncode", shape, classes, design))
        return _one_block(name, shape, classes, design, _filters_for(wanted, shape, classes, design))
    return _one_block(name, shape, classes, design, design.filters or _default_filters(name, shape[0]))


def count_parameters(build: Callable[[], nn.Module]) -> int:
    """Number of parameters of the model that `build` makes. The random state is left as it was.

    >>> count_parameters(lambda: nn.Linear(1000, 1000, bias=False))
    1000000
    """
    with torch.random.fork_rng(devices=[]):
        return sum(parameter.numel() for parameter in build().parameters())


def _one_block(name: str, shape: Shape, classes: int, design: Design, filters: int) -> Classifier:
    seen = shrunk_shape(shape, design.shrink)
    zeros = 0 if name == "node" or design.zeros < 0 else design.zeros or (5 if shape[0] == 1 else 10)
    context = seen[0] if name == "data-control" else 0
    controlled = CONTROLLED.get(name, ())
    f: Dynamics = ConvBlock(seen[0] + zeros, filters, controlled, time=not controlled, context=context)
    f = Augmented(f, zeros) if zeros else f
    settings = design.solver.settings(driven=name == "ncode-closed")
    return Classifier(NCODE(f, _controller(name, seen, zeros, design), **settings), shape, classes, design.shrink)


def _controller(name: str, seen: Shape, zeros: int, design: Design) -> Controller:
    if name == "data-control":
        return DataControl()
    if name not in CONTROLLED:
        return Static()
    start = OpenLoop(gamma(design.gamma, seen, design.hidden, design.dropout), scale=design.scale)
    if name != "ncode-closed":
        return start
    # Without dropout or batch norm: it is evaluated many times per solve, and again in backward.
    trunk = gamma("conv", (seen[0] + zeros, *seen[1:]), design.hidden)
    return ClosedLoop(Feedback(trunk, scale=design.scale), initial=start)


def _default_filters(name: str, channels: int) -> int:
    if name == "node":
        return 92 if channels == 1 else 125
    return 50 if name in CONTROLLED else 64


def _filters_for(wanted: int, shape: Shape, classes: int, design: Design) -> int:
    """The number of filters with which a static block comes nearest to a number of parameters.

    From 64 on, the next multiple of 8: other numbers take a GPU half as long again.
    """

    def count(filters: int) -> int:
        return count_parameters(lambda: _one_block("anode", shape, classes, design, filters))

    low, high = 1, 2
    while count(high) < wanted:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) < wanted else (low, middle)
    nearest = min((low, high), key=lambda filters: abs(count(filters) - wanted))
    return nearest if nearest < 64 else nearest + -nearest % 8


def _wide_net(shape: Shape, classes: int, design: Design) -> ClassifierNet:
    """The static network nearest in parameters to the adaptive one, in steps of an eighth of a width."""

    def widths(eighths: int) -> tuple[int, ...]:
        return tuple(max(1, width * eighths // 8) for width in design.widths)

    def excess(eighths: int) -> int:
        return abs(count_parameters(lambda: ClassifierNet(shape, classes, widths(eighths), adaptive=False)) - wanted)

    wanted = count_parameters(lambda: ClassifierNet(shape, classes, design.widths))
    return ClassifierNet(shape, classes, widths(min(range(8, 17), key=excess)), adaptive=False)
