"""The classifiers of the annuli: a flow of the plane, and a line."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor, nn

from ncode import InputError
from ncode.block import NCODE
from ncode.control import ClosedLoop, Feedback, OpenLoop
from ncode.dynamics import MLP, Augmented

from ..data import Points

Model = Literal["node", "anode", "open-loop", "closed-loop"]
MODELS: tuple[Model, ...] = get_args(Model)


class Classifier(nn.Module):
    """A block and a linear read-out: positive for the outer class.

    >>> import torch
    >>> Classifier(NCODE(MLP(2)), 2)(torch.zeros(5, 2)).shape
    torch.Size([5])
    """

    def __init__(self, block: NCODE, dim: int):
        super().__init__()
        self.block, self.read_out = block, nn.Linear(dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The logit of the outer class, (batch,)."""
        return self.read(self.block(x))

    def read(self, x: Tensor) -> Tensor:
        """The logit of a final state."""
        return self.read_out(x)[:, 0]


def build(model: str, width: int, hidden: int = 6, zeros: int = 1, tolerance: float = 1e-3) -> Classifier:
    """A classifier with the controller of that name.

    Args:
        model: Its name.
        width: Units in each of the two hidden layers of NODE and ANODE; in the hidden layer of gamma and g otherwise.
        hidden: Units of the field that N-CODE controls.
        zeros: Dimensions that ANODE adds.
        tolerance: Of dopri5.

    >>> import torch
    >>> build("open-loop", width=16)(torch.zeros(5, 2)).shape
    torch.Size([5])
    """

    def trunk() -> nn.Module:
        return nn.Sequential(nn.Linear(2, width), nn.Tanh())

    def gamma() -> OpenLoop:
        return OpenLoop(trunk(), scale=0.5)

    match model:
        case "node":
            parts = (MLP(2, hidden=(width, width)), None)
        case "anode":
            parts = (Augmented(MLP(2 + zeros, hidden=(width, width)), zeros=zeros), None)
        case "open-loop":
            parts = (MLP(2, hidden=hidden), gamma())
        case "closed-loop":
            parts = (MLP(2, hidden=hidden), ClosedLoop(Feedback(trunk(), scale=0.5), initial=gamma()))
        case _:
            raise InputError(f"there is no model {model!r}; choose one of: {', '.join(MODELS)}")
    return Classifier(NCODE(*parts, rtol=tolerance, atol=tolerance), 2 + zeros if model == "anode" else 2)


def like(points: Points, model: Classifier) -> Points:
    """On the device and in the precision of the model."""
    weight = model.read_out.weight
    return Points(points.x.to(weight), points.y.to(weight.device))
