"""The classifiers of the annuli, a flow of the plane and a line; and the tensors that the figures show of them."""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ncode import InputError
from ncode.block import NCODE
from ncode.control import ClosedLoop, Feedback, OpenLoop
from ncode.dynamics import MLP, Augmented
from ncode.errors import check_choice

from ...data import Points

Model = Literal["node", "anode", "open-loop", "closed-loop"]
MODELS: tuple[Model, ...] = get_args(Model)

PARAMETERS = 910  # trained numbers that a model may have
ZEROS = 1  # dimensions that ANODE adds
TOLERANCE = 1e-3  # relative and absolute, of dopri5

REACH = 1.9  # half the side of the square in which boundaries are drawn
SHOWN = 300  # held-out points in a panel
FOLLOWED = 40  # points of each class whose trajectory is drawn
CIRCLE = 1.25  # radius, in the middle of the outer annulus
TIMES = 5  # of figure A.1


class Classifier(nn.Module):
    """A block and a linear read-out: positive for the outer class."""

    def __init__(self, block: NCODE, dim: int):
        super().__init__()
        self.block, self.read_out = block, nn.Linear(dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The logit of the outer class, (batch,)."""
        return self.read(self.block(x))

    def read(self, x: Tensor) -> Tensor:
        return self.read_out(x)[:, 0]


def build(model: str, width: int, hidden: int = 6, tolerance: float = TOLERANCE) -> Classifier:
    """A classifier with the controller of that name.

    NODE and ANODE have two hidden layers of `width` units, gamma and g one; the field of N-CODE has `hidden` units.
    """

    def trunk() -> nn.Module:
        return nn.Sequential(nn.Linear(2, width), nn.Tanh())

    def gamma() -> OpenLoop:
        return OpenLoop(trunk(), scale=0.5)

    match check_choice("model", model, MODELS):
        case "node":
            parts = (MLP(2, hidden=(width, width)), None)
        case "anode":
            parts = (Augmented(MLP(2 + ZEROS, hidden=(width, width)), zeros=ZEROS), None)
        case "open-loop":
            parts = (MLP(2, hidden=hidden), gamma())
        case _:
            parts = (MLP(2, hidden=hidden), ClosedLoop(Feedback(trunk(), scale=0.5), initial=gamma()))
    return Classifier(NCODE(*parts, rtol=tolerance, atol=tolerance), 2 + ZEROS if model == "anode" else 2)


def build_within(model: str, hidden: int, seed: int) -> Classifier:
    """The widest classifier of that name with at most 910 parameters."""

    def make(width: int) -> Classifier:
        torch.manual_seed(seed)
        return build(model, width, hidden)

    found = None
    for width in range(1, PARAMETERS + 1):
        wider = make(width)
        if sum(each.numel() for each in wider.parameters()) > PARAMETERS:
            break
        found = wider
    if found is None:
        least = sum(each.numel() for each in make(1).parameters())
        raise InputError(
            f"{model} with hidden={hidden} has at least {least} parameters, and models may have {PARAMETERS}: make"
            " hidden smaller"
        )
    return found


def like(points: Points, model: Classifier) -> Points:
    """Points on the device and in the precision of the model."""
    weight = model.read_out.weight
    return Points(points.x.to(weight), points.y.to(weight.device))


@torch.no_grad()
def circle_error(model: Classifier, points: int = 10_000) -> float:
    """The fraction of a circle within the outer annulus that is on the wrong side.

    A NODE maps the circle to a closed curve around the image of the disc. A half-plane that holds a point of the disc
    reaches beyond that curve, and so holds a part of it.
    """
    angle = torch.arange(points) * (2 * math.pi / points)
    logits = model(CIRCLE * torch.stack([angle.cos(), angle.sin()], 1).to(model.read_out.weight))
    return float((logits <= 0).float().mean())


@torch.no_grad()
def boundary(model: Classifier, points: Points, size: int = 151) -> dict[str, Tensor]:
    """The probability of the outer class on a square, and some held-out points."""
    axis = torch.linspace(-REACH, REACH, size).to(points.x)
    probability = model(_grid(axis)).sigmoid().reshape(size, size)
    return {"axis": axis, "probability": probability, "x": points.x[:SHOWN], "y": points.y[:SHOWN]}


@torch.no_grad()
def paths(model: Classifier, points: Points, times: int = 41) -> dict[str, Tensor]:
    """The trajectories of some points of each class, and the line that separates them at the end."""
    chosen = torch.cat([(points.y == kind).nonzero()[:FOLLOWED, 0] for kind in (0, 1)])
    ts = torch.linspace(0, 1, times).to(points.x)
    xs = model.block.trajectory(points.x[chosen], ts)
    weight, bias = model.read_out.weight[0], model.read_out.bias
    line = torch.cat([weight, bias]) if len(weight) == 2 else weight[:0]
    return {"xs": xs[..., :2], "y": points.y[chosen], "line": line}


@torch.no_grad()
def flows(model: Classifier, points: Points, size: int = 15, times: int = 61) -> dict[str, Tensor]:
    """The fields that the first held-out point of each class meets."""
    two = torch.stack([points.x[points.y == kind][0] for kind in (0, 1)])
    ts = torch.linspace(0, 1, times).to(two)
    sol = model.block.solve(two, save_at=ts)
    xs, thetas = sol.xs, sol.thetas
    assert xs is not None
    axis = torch.linspace(-1, 1, size).to(two) * max(REACH, 1.15 * float(xs[..., :2].abs().max()))
    steps = torch.linspace(0, times - 1, TIMES).round().long().tolist()
    fields = []
    for kind in (0, 1):
        controls = [{name: value[kind, at] for name, value in thetas.items()} for at in steps]
        at_steps = zip(steps, controls, strict=True)
        fields.append(torch.stack([_field(model.block, ts[at], xs[kind, at], theta, axis) for at, theta in at_steps]))
    return {"ts": ts[steps], "axis": axis, "fields": torch.stack(fields), "times": ts, "xs": xs[..., :2]}


def _field(block: NCODE, t: Tensor, x: Tensor, theta: dict[str, Tensor], axis: Tensor) -> Tensor:
    """The part of the field in the plane, (G, G, 2), with the other dimensions as in x."""
    places = _grid(axis)
    rest = x[2:].expand(len(places), -1)
    control = {name: value.expand(len(places), *value.shape) for name, value in theta.items()}
    slope = block.dynamics(t.expand(len(places)), torch.cat([places, rest], 1), control)
    return slope[:, :2].reshape(len(axis), len(axis), 2)


def _grid(axis: Tensor) -> Tensor:
    """All points of a square, one row per height: (G * G, 2)."""
    height, place = torch.meshgrid(axis, axis, indexing="ij")
    return torch.stack([place, height], -1).reshape(-1, 2)
