"""How classifiers are trained: as the paper does, as far as it says, and as one would today."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

Dataset = Literal["mnist", "fashion-mnist", "cifar10"]
RegimeName = Literal["paper", "modern"]
DATASETS: tuple[Dataset, ...] = get_args(Dataset)


class Regime(NamedTuple):
    """What "paper" and "modern" stand for. Each number can be told otherwise."""

    epochs: Mapping[str, int]
    batch: int
    lr: float
    weight_decay: float
    clip: float
    keep: Literal["best", "last"]
    modern: bool  # crops and flips, AdamW, and a learning rate that rises and falls


REGIMES: Mapping[str, Regime] = {
    # At a constant learning rate models learn the training images by heart: the last epoch is not the best one.
    "paper": Regime({"mnist": 20, "fashion-mnist": 20, "cifar10": 50}, 256, 1e-3, 0.0, 0.0, "best", False),
    # Without clipping, one of three trainings of N-CODE broke down at the highest learning rate and never recovered.
    "modern": Regime({"mnist": 24, "fashion-mnist": 24, "cifar10": 30}, 128, 4e-3, 1e-2, 1.0, "last", True),
}
