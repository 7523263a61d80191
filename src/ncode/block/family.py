"""The models of the paper, and those it is compared with, as choices of dynamics and controller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..control import ClosedLoop, Controller, DataControl, Drift, Feedback, Hebbian, OpenLoop, Static, TimeVarying
from ..dynamics import MLP, Augmented, Dynamics, Recurrent, SecondOrder


class Member(NamedTuple):
    """One model: its dynamics and controller as text, a description, and a function that builds both.

    >>> import torch, ncode
    >>> member = ncode.NCODE.family()["ANODE"]
    >>> member.description, ncode.NCODE(*member.choose(2))(torch.zeros(3, 2)).shape
    ('additional dimensions (Dupont et al., 2019)', torch.Size([3, 7]))
    """

    dynamics: str
    controller: str
    description: str
    choose: Callable[[int], tuple[Dynamics, Controller]]  # for x (batch, dim)


class Family(dict[str, Member]):
    """Members by name, shown as a table."""

    def __repr__(self) -> str:
        rows = [("model", "controller", "dynamics", "what is special")]
        rows += [(name, member.controller, member.dynamics, member.description) for name, member in self.items()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def _trunk(dim: int) -> nn.Module:
    return nn.Sequential(nn.Linear(dim, 16), nn.Tanh())


def _decay(t: Tensor, theta: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: -torch.tanh(value) for name, value in theta.items()}


FAMILY = Family()
FAMILY["NODE"] = Member(
    "MLP(dim)", "Static()", "one field for all samples (Chen et al., 2018)", lambda dim: (MLP(dim), Static())
)
FAMILY["ANODE"] = Member(
    "Augmented(MLP(dim + 5), zeros=5)",
    "Static()",
    "additional dimensions (Dupont et al., 2019)",
    lambda dim: (Augmented(MLP(dim + 5), zeros=5), Static()),
)
FAMILY["data-controlled NODE"] = Member(
    "MLP(dim, controlled=(), context=dim)",
    "DataControl()",
    "x(0) is an input of f (Massaroli et al., 2020)",
    lambda dim: (MLP(dim, controlled=(), context=dim), DataControl()),
)
FAMILY["ANODEV2"] = Member(
    "MLP(dim)",
    "ClosedLoop(Drift(q))",
    "weights with an ODE of their own (Zhang et al., 2019)",
    lambda dim: (MLP(dim), ClosedLoop(Drift(_decay))),
)
FAMILY["depth-varying NODE"] = Member(
    "MLP(dim)",
    'TimeVarying("fourier", terms=5)',
    "weights as a function of time (Massaroli et al., 2020)",
    lambda dim: (MLP(dim), TimeVarying("fourier", terms=5)),
)
FAMILY["second-order NODE"] = Member(
    'SecondOrder(MLP(2 * dim, out=dim), velocity="zero")',
    "Static()",
    "an acceleration (Norcliffe et al., 2020)",
    lambda dim: (SecondOrder(MLP(2 * dim, out=dim), velocity="zero"), Static()),
)
FAMILY["open-loop N-CODE"] = Member(
    "MLP(dim)", "OpenLoop(trunk)", "one field per sample, set at t0", lambda dim: (MLP(dim), OpenLoop(_trunk(dim)))
)
FAMILY["closed-loop N-CODE"] = Member(
    "MLP(dim)",
    "ClosedLoop(Feedback(trunk))",
    "a field that the state changes along the trajectory",
    lambda dim: (MLP(dim), ClosedLoop(Feedback(_trunk(dim)))),
)
FAMILY["plastic N-CODE"] = Member(
    "Recurrent(dim)", "Hebbian()", "fast Hebbian synapses", lambda dim: (Recurrent(dim), Hebbian())
)
