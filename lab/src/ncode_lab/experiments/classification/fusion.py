"""Classifiers that use gamma's features without control: what they gain is not due to multiplication."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ncode
from ncode.block import NCODE
from ncode.errors import check_choice, check_count
from ncode.models import ClassifierOutput, ImageClassifier, shrunk_shape

Shape = tuple[int, int, int]
ReadOut = Literal["flattened", "pooled"]
Place = Literal["none", "channels", "read-out"]
FIELDS = 2  # per side, whose means a pooled read-out sees


class FusedClassifier(ImageClassifier):
    """One block, whose read-out may be pooled, and a trunk of features that enter as channels or at the read-out.

    Args:
        block: What the image flows through, with the features as further channels if they enter there.
        trunk: Maps images to features (batch, features).
        features: Number of features.
        place: Where features enter: as constant "channels" of the initial value, at the "read-out" next to the final
            state (late fusion), or nowhere ("none": the block may have a control instead).
        readout: "flattened": a linear map of all values of the final state, as in the paper. "pooled": of its means
            over 2 x 2 fields.
        shape, classes, shrink: As for `ncode.models.Classifier`.
    """

    def __init__(
        self,
        block: NCODE,
        trunk: nn.Module,
        shape: Shape,
        classes: int = 10,
        features: int = 10,
        place: str = "none",
        readout: str = "flattened",
        shrink: int = 1,
    ):
        super().__init__(shape, classes, shrink)
        self.block, self.trunk, self.features = block, trunk, check_count("features", features)
        self.place = check_choice("place", place, ("none", "channels", "read-out"))
        self.readout = check_choice("readout", readout, ("flattened", "pooled"))
        state = block.dynamics.state_shape
        assert state is not None
        assert state[0] is not None
        _, height, width = shrunk_shape(self.shape, shrink)
        values = state[0] * (FIELDS**2 if readout == "pooled" else height * width)
        self.linear = nn.Linear(values + (self.features if place == "read-out" else 0), self.classes)

    def classify(self, images: Tensor, cost: Any = None, **changes: Any) -> ClassifierOutput:
        x = self.normalise(images)
        found = None if self.place == "none" else self.trunk(x)
        if self.place == "channels":
            assert found is not None
            x = torch.cat([x, found.to(x.dtype)[:, :, None, None].expand(-1, -1, *x.shape[2:])], 1)
        solution = self.block.solve(x, cost=cost, throw=False, **changes)
        # 0 for failed samples: nan would reach the gradients of parameters that all samples share.
        end = torch.where(solution.ok[:, None, None, None], solution.x, 0)
        seen = (F.adaptive_avg_pool2d(end, FIELDS) if self.readout == "pooled" else end).flatten(1)
        if self.place == "read-out":
            assert found is not None
            seen = torch.cat([seen, found.to(seen.dtype)], 1)
        return ClassifierOutput(self.linear(seen), (solution,), solution.ok)


ncode.register(FusedClassifier, name="ncode_lab.FusedClassifier")
