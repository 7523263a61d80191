"""gamma alone as a classifier: what is left of N-CODE without its flow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..block import register
from ..checks import check_count
from .classifier import Answer, Costs, ImageClassifier, Shape, shrink_by, shrunk
from .gammas import gamma


class TrunkClassifier(ImageClassifier):
    """A linear map of the features by which N-CODE sets its kernels. It has no flow, and so nothing to solve.

    Args:
        shape: Of an image, (C, H, W).
        classes: How many.
        kind, hidden, dropout: The trunk: see `gamma`.
        shrink: Means over fields of this size are taken first.

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
        super().__init__(shape, classes)
        self.kind, self.hidden, self.dropout, self.shrink = kind, hidden, dropout, check_count("shrink", shrink)
        self.trunk = gamma(kind, shrunk(self.shape, shrink), hidden, dropout)
        self.readout = nn.Linear(hidden, self.classes)

    def answer(self, images: Tensor, cost: Costs = None, **changes: Any) -> Answer:
        """Logits. There are no blocks: costs and settings of the solver mean nothing here."""
        logits = self.readout(self.trunk(shrink_by(self.scaled(images), self.shrink)))
        return Answer(logits, (), torch.ones_like(logits[:, 0], dtype=torch.bool))

    def config(self) -> dict[str, Any]:
        """shape, classes, kind, hidden, dropout, shrink."""
        names = ("shape", "classes", "kind", "hidden", "dropout", "shrink")
        return {name: getattr(self, name) for name in names}


register(TrunkClassifier, name="ncode.TrunkClassifier")
