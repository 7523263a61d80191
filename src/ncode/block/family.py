"""The models of the paper, and those it compares with, as choices of dynamics and controller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..control import (
    ClosedLoop,
    Controller,
    DataControl,
    Drift,
    Feedback,
    Hebbian,
    OpenLoop,
    Static,
    TimeVarying,
)
from ..dynamics import MLP, Augmented, Dynamics, Recurrent, SecondOrder


class Member(NamedTuple):
    """One model: what it is, and how it is chosen.

    >>> import torch, ncode
    >>> member = ncode.NCODE.family()["ANODE"]
    >>> member.says, ncode.NCODE(*member.choose(2))(torch.zeros(3, 2)).shape
    ('room to pass one another (Dupont et al., 2019)', torch.Size([3, 7]))
    """

    dynamics: str
    controller: str
    says: str
    choose: Callable[[int], tuple[Dynamics, Controller]]  # for x (batch, dim)


def _trunk(dim: int) -> nn.Module:
    return nn.Sequential(nn.Linear(dim, 16), nn.Tanh())


def _fade(t: Tensor, theta: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: -torch.tanh(value) for name, value in theta.items()}


FAMILY: dict[str, Member] = {
    "NODE": Member(
        "MLP(dim)",
        "Static()",
        "one field for all (Chen et al., 2018)",
        lambda dim: (MLP(dim), Static()),
    ),
    "ANODE": Member(
        "Augmented(MLP(dim + 5), zeros=5)",
        "Static()",
        "room to pass one another (Dupont et al., 2019)",
        lambda dim: (Augmented(MLP(dim + 5), zeros=5), Static()),
    ),
    "data-controlled NODE": Member(
        "MLP(dim, controlled=(), context=dim)",
        "DataControl()",
        "f sees x(0) (Massaroli et al., 2020)",
        lambda dim: (MLP(dim, controlled=(), context=dim), DataControl()),
    ),
    "ANODEV2": Member(
        "MLP(dim)",
        "ClosedLoop(Drift(q))",
        "weights with an ODE of their own (Zhang et al., 2019)",
        lambda dim: (MLP(dim), ClosedLoop(Drift(_fade))),
    ),
    "depth-varying NODE": Member(
        "MLP(dim)",
        'TimeVarying("fourier", terms=5)',
        "weights as a function of time (Massaroli et al., 2020)",
        lambda dim: (MLP(dim), TimeVarying("fourier", terms=5)),
    ),
    "second-order NODE": Member(
        'SecondOrder(MLP(2 * dim, out=dim), velocity="zero")',
        "Static()",
        "an acceleration (Norcliffe et al., 2020)",
        lambda dim: (SecondOrder(MLP(2 * dim, out=dim), velocity="zero"), Static()),
    ),
    "open-loop N-CODE": Member(
        "MLP(dim)",
        "OpenLoop(trunk)",
        "a field for each sample, chosen once",
        lambda dim: (MLP(dim), OpenLoop(_trunk(dim))),
    ),
    "closed-loop N-CODE": Member(
        "MLP(dim)",
        "ClosedLoop(Feedback(trunk))",
        "a field that the state changes on its way",
        lambda dim: (MLP(dim), ClosedLoop(Feedback(_trunk(dim)))),
    ),
    "plastic N-CODE": Member(
        "Recurrent(dim)",
        "Hebbian()",
        "fast synapses",
        lambda dim: (Recurrent(dim), Hebbian()),
    ),
}
