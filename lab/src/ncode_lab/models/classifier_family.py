"""The image classifiers of the paper, those it compares with, and ours, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import nn

from ncode.block import NCODE
from ncode.checks import check_choice, check_count, check_number
from ncode.control import ClosedLoop, Controller, DataControl, Feedback, OpenLoop, Static
from ncode.dynamics import Augmented, ConvBlock, Dynamics
from ncode.models.classifier import Classifier, ImageClassifier, Shape, shrunk
from ncode.models.classifier_net import ClassifierNet
from ncode.models.classifier_trunk import TrunkClassifier
from ncode.models.gammas import GAMMAS, gamma

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
    "ncode": ("1x1 in", "3x3", "1x1 out"),
    "ncode-3x3": ("3x3",),
    "ncode-closed": ("1x1 in", "3x3", "1x1 out"),
}


@dataclass(frozen=True)
class Solver:
    """How the one block of a classifier is solved.

    Attributes:
        method: "dopri5", with steps chosen by the error, or "rk4", with `steps` of equal length.
        tolerance: Relative and absolute, of dopri5.
        steps: Of rk4.
        step: "sample": each chooses its steps. "batch": one step for all.
        compile: Compile the step and its backward.
    """

    method: str = "dopri5"
    tolerance: float = 1e-3
    steps: int = 2
    step: str = "sample"
    compile: bool = False

    def __post_init__(self) -> None:
        check_choice("solver", self.method, ("dopri5", "rk4"))
        check_number("tolerance", self.tolerance, low=0.0, strict=True)
        check_count("steps", self.steps)

    def settings(self, driven: bool = False) -> dict[str, Any]:
        """Keyword arguments of `NCODE`."""
        common: dict[str, Any] = {"method": self.method, "step": self.step, "compile": self.compile, "max_steps": 1000}
        if self.method == "dopri5":
            return {**common, "rtol": self.tolerance, "atol": self.tolerance}
        # A graph of few steps takes less time than evaluating again; a control that is driven would fill the memory.
        gradient = "discrete" if driven or self.compile else "autograd"
        return {**common, "dt": 1.0 / self.steps, "gradient": gradient}


@dataclass(frozen=True)
class Design:
    """What a classifier is built by, besides its name. 0 stands for what the paper, or the baseline's own paper, has.

    Attributes:
        filters: Of the block: 50 for N-CODE; 64 for ANODE and data control; for NODE 92 (grey images) or 125.
        zeros: Channels that start at 0: 5 for grey images, 10 for colour. -1 for none.
        gamma, hidden, dropout: The trunk: see `gamma`. "conv-pool" is ours; the paper's reading is "linear".
        scale: Of the part of the control that depends on the data: see `OpenLoop`.
        shrink: Means over fields of this size are taken of images first.
        widths: Of a network of blocks.
        solver: Of the one block.
    """

    filters: int = 0
    zeros: int = 0
    gamma: str = "conv-pool"
    hidden: int = 10
    dropout: float = 0.0
    scale: float = 0.1
    shrink: int = 1
    widths: tuple[int, ...] = (48, 96, 192)
    solver: Solver = field(default_factory=Solver)

    def __post_init__(self) -> None:
        check_choice("gamma", self.gamma, GAMMAS)


def build_classifier(name: str, shape: Shape, classes: int = 10, design: Design | None = None) -> ImageClassifier:
    """The classifier of that name for images (C, H, W).

    - node, anode: static weights, time as a channel, and for anode channels that start at 0 (Dupont et al., 2019).
    - anode-wide: with as many filters as it takes to have the number of parameters of ncode.
    - data-control: anode, whose first layer sees the image as well (Massaroli et al., 2020).
    - ncode: all three kernels are set by gamma; ncode-3x3: that in the middle alone.
    - ncode-closed: gamma sets the three kernels, and the state drives them on its way.
    - gamma-alone: a linear map of gamma's features, and no flow.
    - ncode-net: three blocks with down-sampling between them; static-net: the same with a control that all samples
      share; static-net-wide: with as many channels as it takes to have the number of parameters of ncode-net.

    >>> anode = build_classifier("anode", (3, 32, 32))
    >>> sum(p.numel() for p in anode.parameters())  # as in its own paper
    172452
    """
    check_choice("model", name, MODELS)
    design = Design() if design is None else design
    if name.startswith("static-net-wide"):
        return _wide_net(shape, classes, design)
    if name.endswith("-net"):
        return ClassifierNet(shape, classes, design.widths, adaptive=name == "ncode-net")
    if name == "gamma-alone":
        return TrunkClassifier(shape, classes, design.gamma, design.hidden, design.dropout, design.shrink)
    if name == "anode-wide":
        wanted = parameters(lambda: build_classifier("ncode", shape, classes, design))
        return _one_block(name, shape, classes, design, _filters(wanted, shape, classes, design))
    return _one_block(name, shape, classes, design, design.filters or _usual_filters(name, shape[0]))


def parameters(build: Callable[[], nn.Module]) -> int:
    """How many parameters a model would have. The stream of random numbers is left as it was.

    >>> parameters(lambda: nn.Linear(1000, 1000, bias=False))
    1000000
    """
    with torch.random.fork_rng(devices=[]):
        return sum(parameter.numel() for parameter in build().parameters())


def _one_block(name: str, shape: Shape, classes: int, design: Design, filters: int) -> Classifier:
    seen = shrunk(shape, design.shrink)
    zeros = 0 if name == "node" or design.zeros < 0 else design.zeros or (5 if shape[0] == 1 else 10)
    static = name not in CONTROLLED
    f: Dynamics = ConvBlock(
        seen[0] + zeros,
        filters,
        CONTROLLED.get(name, ()),
        time=static,
        context=seen[0] if name == "data-control" else 0,
    )
    f = Augmented(f, zeros) if zeros else f
    driven = name == "ncode-closed"
    block = NCODE(f, _controller(name, seen, zeros, design), **design.solver.settings(driven))
    return Classifier(block, shape, classes, design.shrink)


def _controller(name: str, seen: Shape, zeros: int, design: Design) -> Controller:
    if name == "data-control":
        return DataControl()
    if name not in CONTROLLED:
        return Static()
    start = OpenLoop(gamma(design.gamma, seen, design.hidden, design.dropout), scale=design.scale)
    if name != "ncode-closed":
        return start
    # Without dropout or batch norm: it is evaluated many times a solve, and again in backward.
    trunk = gamma("conv", (seen[0] + zeros, *seen[1:]), design.hidden)
    return ClosedLoop(Feedback(trunk, scale=design.scale), initial=start)


def _usual_filters(name: str, channels: int) -> int:
    if name == "node":
        return 92 if channels == 1 else 125
    return 50 if name in CONTROLLED else 64


def _filters(wanted: int, shape: Shape, classes: int, design: Design) -> int:
    """The number of filters with which a static block comes nearest to a number of parameters.

    Where they are many, the next multiple of 8: others cost a GPU half as much time again.
    """

    def count(filters: int) -> int:
        return parameters(lambda: _one_block("anode", shape, classes, design, filters))

    low, high = 1, 2
    while count(high) < wanted:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) < wanted else (low, middle)
    nearest = min((low, high), key=lambda filters: abs(count(filters) - wanted))
    return nearest if nearest < 64 else nearest + -nearest % 8


def _wide_net(shape: Shape, classes: int, design: Design) -> ClassifierNet:
    """The static network that comes nearest to the parameters of the adaptive one, in steps of an eighth of a width."""

    def widths(eighths: int) -> tuple[int, ...]:
        return tuple(max(1, width * eighths // 8) for width in design.widths)

    def excess(eighths: int) -> int:
        return abs(parameters(lambda: ClassifierNet(shape, classes, widths(eighths), adaptive=False)) - wanted)

    wanted = parameters(lambda: ClassifierNet(shape, classes, design.widths))
    return ClassifierNet(shape, classes, widths(min(range(8, 17), key=excess)), adaptive=False)
