"""The image classifiers of the paper, its baselines and ours, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

import ncode
from ncode.block import NCODE
from ncode.control import ClosedLoop, Controller, DataControl, Feedback, OpenLoop, Static
from ncode.dynamics import Augmented, ConvBlock, Dynamics
from ncode.errors import check_choice, check_count, check_fraction
from ncode.models import GAMMAS, Classifier, ClassifierOutput, Gamma, ImageClassifier, gamma, shrunk_shape

from ..common import check_not_negative, check_positive
from .fusion import FusedClassifier, Place, ReadOut
from .network import ClassifierNet

Shape = tuple[int, int, int]
OneBlock = Literal["node", "anode", "anode-wide", "data-control", "ncode", "ncode-3x3", "ncode-closed", "gamma-alone"]
Fused = Literal["late-fusion", "gamma-channels"]
Network = Literal["ncode-net", "static-net", "static-net-wide"]
Model = Literal[OneBlock, Fused, Network]
MODELS: tuple[Model, ...] = get_args(Model)
NETWORKS: tuple[Network, ...] = get_args(Network)  # several blocks: compared with each other, not with single blocks
CONTROLLED = {
    "ncode": ("conv_in", "conv_3x3", "conv_out"),
    "ncode-3x3": ("conv_3x3",),
    "ncode-closed": ("conv_in", "conv_3x3", "conv_out"),
}
FUSED: dict[str, Place] = {"late-fusion": "read-out", "gamma-channels": "channels"}
TOLERANCE = 1e-3  # relative and absolute, of dopri5
WIDTHS = (48, 96, 192)  # channels of the blocks of a network


@dataclass(frozen=True)
class ClassifierSettings:
    """Settings by which classifiers are built."""

    gamma: Gamma = "conv-pool"
    """Trunk that sets the control. linear and perceptron: two readings of the paper; the convolutions are ours."""
    hidden: int = 10
    """Number of features of gamma."""
    dropout: float = 0.0
    """Dropout before gamma's last layer."""
    scale: float = 0.1
    """Initial size of the data-dependent part of the control, relative to a static weight."""
    filters: int = 0
    """Filters of the block. 0: 50 for N-CODE, 64 for ANODE and data control, 92 (grey images) or 125 for NODE."""
    zeros: int = 0
    """Channels that start at 0. 0: 5 for grey images and 10 for colour; below 0: none."""
    readout: ReadOut = "flattened"
    """What the linear read-out sees of the final state: all values, as in the paper, or means over 2 x 2 fields."""
    shrink: int = 1
    """Reduce images by this factor first, by averaging, for quick runs."""
    solver: Literal["dopri5", "rk4"] = "dopri5"
    """dopri5 with adaptive steps at a tolerance of 1e-3, or rk4 with fixed steps. Networks of blocks take two midpoint
    steps per block."""
    steps: int = 2
    """Steps of rk4."""
    compile: bool = False
    """Compile the solver's step and its backward."""

    def __post_init__(self) -> None:
        check_choice("gamma", self.gamma, GAMMAS)
        check_choice("solver", self.solver, ("dopri5", "rk4"))
        check_choice("readout", self.readout, get_args(ReadOut))
        check_count("steps", self.steps)
        check_fraction("dropout", self.dropout)
        check_positive(self, "shrink", "scale")
        check_not_negative(self, "filters")

    def solver_options(self, driven: bool = False) -> dict[str, Any]:
        """Solver options of `NCODE`; `driven` if the state drives the control."""
        common: dict[str, Any] = {"method": self.solver, "compile": self.compile, "max_steps": 1000}
        if self.solver == "dopri5":
            return {**common, "rtol": TOLERANCE, "atol": TOLERANCE}
        # A graph of few steps is faster than repeating them; that of a driven control would fill the memory.
        gradient = "discrete" if driven or self.compile else "autograd"
        return {**common, "dt": 1.0 / self.steps, "gradient": gradient}


class TrunkClassifier(ImageClassifier):
    """A linear map of gamma's features: N-CODE without its flow.

    Args:
        kind, hidden, dropout: The trunk: see `ncode.models.gamma`.
        shape, classes, shrink: As for `ncode.models.Classifier`.
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


ncode.register(TrunkClassifier, name="ncode.TrunkClassifier")  # the name in files written before it moved here


def build_classifier(
    name: str, shape: Shape, classes: int = 10, settings: ClassifierSettings | None = None, **solver: Any
) -> ImageClassifier:
    """The classifier of that name for images (C, H, W); `solver` are further options of a single block.

    On a CPU, use ClassifierSettings(solver="rk4"), two fixed steps: a training step of 64 images then takes about a
    second on one core, and two to three with dopri5, the default and the solver of the tables.

    - node, anode: static weights, time as a channel, and for anode channels that start at 0 (Dupont et al., 2019).
    - anode-wide: anode with about as many parameters as ncode.
    - data-control: anode, whose first layer sees the image as well (Massaroli et al., 2020).
    - ncode: gamma sets all three kernels; ncode-3x3: only the middle one.
    - ncode-closed: gamma sets the three kernels, and the state drives them.
    - gamma-alone: a linear map of gamma's features, without a flow.
    - late-fusion: anode, whose read-out sees gamma's features too; gamma-channels: anode with gamma's features as
      channels instead of zeros. Neither has a control.
    - ncode-net: three blocks with down-sampling between them; static-net: the same with a control that all samples
      share; static-net-wide: static-net with about as many parameters as ncode-net.
    """
    check_choice("model", name, MODELS)
    settings = ClassifierSettings() if settings is None else settings
    if name == "static-net-wide":
        return _wide_net(shape, classes)
    if name.endswith("-net"):
        return ClassifierNet(shape, classes, WIDTHS, adaptive=name == "ncode-net")
    if name == "gamma-alone":
        return TrunkClassifier(shape, classes, settings.gamma, settings.hidden, settings.dropout, settings.shrink)
    if name == "anode-wide":
        wanted = count_parameters(lambda: build_classifier("ncode", shape, classes, settings))
        filters = _filters_for(wanted, shape, classes, settings)
    else:
        filters = settings.filters or _default_filters(name, shape[0])
    return _one_block(name, shape, classes, settings, filters, **solver)


def count_parameters(build: Callable[[], nn.Module]) -> int:
    """Number of parameters of the model that `build` makes. The random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        return sum(parameter.numel() for parameter in build().parameters())


def _one_block(
    name: str, shape: Shape, classes: int, settings: ClassifierSettings, filters: int, **solver: Any
) -> ImageClassifier:
    seen = shrunk_shape(shape, settings.shrink)
    zeros = 0 if name == "node" or settings.zeros < 0 else settings.zeros or (5 if shape[0] == 1 else 10)
    zeros, channels = (0, seen[0] + settings.hidden) if name == "gamma-channels" else (zeros, seen[0])
    context = seen[0] if name == "data-control" else 0
    controlled = CONTROLLED.get(name, ())
    f: Dynamics = ConvBlock(channels + zeros, filters, controlled, time=not controlled, context=context)
    f = Augmented(f, zeros) if zeros else f
    options = {**settings.solver_options(driven=name == "ncode-closed"), **solver}
    block = NCODE(f, _controller(name, seen, zeros, settings), **options)
    if name not in FUSED and settings.readout == "flattened":
        return Classifier(block, shape, classes, settings.shrink)
    fused = name in FUSED
    trunk = gamma(settings.gamma, seen, settings.hidden, settings.dropout) if fused else nn.Identity()
    how = {"place": FUSED.get(name, "none"), "readout": settings.readout, "shrink": settings.shrink}
    return FusedClassifier(block, trunk, shape, classes, settings.hidden, **how)


def _controller(name: str, seen: Shape, zeros: int, settings: ClassifierSettings) -> Controller:
    if name == "data-control":
        return DataControl()
    if name not in CONTROLLED:
        return Static()
    start = OpenLoop(gamma(settings.gamma, seen, settings.hidden, settings.dropout), scale=settings.scale)
    if name != "ncode-closed":
        return start
    # Without dropout or batch norm: it is evaluated many times per solve, and again in backward.
    trunk = gamma("conv", (seen[0] + zeros, *seen[1:]), settings.hidden)
    return ClosedLoop(Feedback(trunk, scale=settings.scale), initial=start)


def _default_filters(name: str, channels: int) -> int:
    if name == "node":
        return 92 if channels == 1 else 125
    return 50 if name in CONTROLLED else 64


def _filters_for(wanted: int, shape: Shape, classes: int, settings: ClassifierSettings) -> int:
    """The number of filters with which a static block comes nearest to a number of parameters.

    From 64 on, the next multiple of 8: other numbers take a GPU half as long again.
    """

    def count(filters: int) -> int:
        return count_parameters(lambda: _one_block("anode", shape, classes, settings, filters))

    low, high = 1, 2
    while count(high) < wanted:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) < wanted else (low, middle)
    nearest = min((low, high), key=lambda filters: abs(count(filters) - wanted))
    return nearest if nearest < 64 else nearest + -nearest % 8


def _wide_net(shape: Shape, classes: int) -> ClassifierNet:
    """The static network nearest in parameters to the adaptive one, in steps of an eighth of a width."""

    def widths(eighths: int) -> tuple[int, ...]:
        return tuple(max(1, width * eighths // 8) for width in WIDTHS)

    def excess(eighths: int) -> int:
        return abs(count_parameters(lambda: ClassifierNet(shape, classes, widths(eighths), adaptive=False)) - wanted)

    wanted = count_parameters(lambda: ClassifierNet(shape, classes, WIDTHS))
    return ClassifierNet(shape, classes, widths(min(range(8, 17), key=excess)), adaptive=False)
