"""What the figures of the annuli show: boundaries, ways through the plane, and the fields met on the way."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ncode.block import NCODE

from ..data import Points
from .annuli_models import Classifier

REACH = 1.9  # of the square in which boundaries are drawn
SHOWN = 300  # held-out points in a panel
FOLLOWED = 40  # points of each class whose way is drawn
CIRCLE = 1.25  # radius, in the middle of the outer annulus
TIMES = 5  # of figure A.1


@torch.no_grad()
def circle(model: Classifier, points: int = 10_000) -> float:
    """The part of a circle within the outer annulus that is on the wrong side.

    A NODE maps the circle to a closed curve around the image of the disc. A half-plane that holds a point of the disc
    reaches beyond that curve, and so holds a part of it.
    """
    angle = torch.arange(points) * (2 * math.pi / points)
    logits = model(CIRCLE * torch.stack([angle.cos(), angle.sin()], 1).to(model.read_out.weight))
    return float((logits <= 0).float().mean())


@torch.no_grad()
def boundary(model: Classifier, points: Points, size: int = 151) -> dict[str, Tensor]:
    """The probability of the outer class all over a square, and some held-out points."""
    axis = torch.linspace(-REACH, REACH, size).to(points.x)
    probability = model(_grid(axis)).sigmoid().reshape(size, size)
    return {"axis": axis, "probability": probability, "x": points.x[:SHOWN], "y": points.y[:SHOWN]}


@torch.no_grad()
def paths(model: Classifier, points: Points, times: int = 41) -> dict[str, Tensor]:
    """The ways of some points of each class, and the line that they are told apart by at the end."""
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
    places = torch.linspace(0, times - 1, TIMES).round().long().tolist()
    fields = [
        torch.stack([_field(model.block, ts[at], xs[kind, at], _one(thetas, kind, at), axis) for at in places])
        for kind in (0, 1)
    ]
    return {"ts": ts[places], "axis": axis, "fields": torch.stack(fields), "times": ts, "xs": xs[..., :2]}


def _one(thetas: dict[str, Tensor], sample: int, time: int) -> dict[str, Tensor]:
    return {name: value[sample, time] for name, value in thetas.items()}


def _field(block: NCODE, t: Tensor, x: Tensor, theta: dict[str, Tensor], axis: Tensor) -> Tensor:
    """The part of the field in the plane, (G, G, 2), where the other dimensions are as x has them."""
    places = _grid(axis)
    rest = x[2:].expand(len(places), -1)
    control = {name: value.expand(len(places), *value.shape) for name, value in theta.items()}
    slope = block.dynamics(t.expand(len(places)), torch.cat([places, rest], 1), control)
    return slope[:, :2].reshape(len(axis), len(axis), 2)


def _grid(axis: Tensor) -> Tensor:
    """All places of a square, a row a height: (G * G, 2)."""
    height, place = torch.meshgrid(axis, axis, indexing="ij")
    return torch.stack([place, height], -1).reshape(-1, 2)
