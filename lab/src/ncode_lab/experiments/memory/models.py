"""Models of the memory task: patterns are shown one after another, then one of them is recalled from a part of it.

All models are called as `model(stimuli, query)` with stimuli (batch, presentations, n) and query (batch, n), and return
the recalled pattern (batch, n), by its signs. Nothing is carried over between episodes.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ncode import InputError
from ncode.block import NCODE
from ncode.control import DataControl
from ncode.dynamics import Function
from ncode.errors import check_choice
from ncode.models import PlasticMemory

PaperModel = Literal["ncode", "data-control", "ode-rnn", "lstm", "lstm-miconi"]
RuleModel = Literal["delta", "hebb-held", "oja-held", "delta-held"]
Model = Literal[PaperModel, RuleModel, "nearest"]
PAPER_MODELS: tuple[PaperModel, ...] = get_args(PaperModel)
RULE_MODELS: tuple[RuleModel, ...] = get_args(RuleModel)
MODELS: tuple[Model, ...] = (*PAPER_MODELS, *RULE_MODELS, "nearest")

HOLD = 2.0  # diagonal of the plastic weights at the start of an episode, at first: a neuron keeps its sign
SOLVER_STEPS = 1  # Runge-Kutta steps per presentation
# Where the six numbers of the self-correcting memories start.
RULE_START = {"strength": 3.5, "hold": -1.0, "gain": 5.0, "leak": 1.0, "shared": True}
HEBB_START = {**RULE_START, "strength": 1.5}
QUERY_TIME = 4.0  # seconds, of memories whose bits are held
HELD_STEPS = 2  # Runge-Kutta steps per presentation in these
LSTM_STEPS = 5  # time steps per pattern, and for the query


class DrivenMemory(nn.Module):
    """A field f(t, x, shown) that each pattern, and then the query, drives for 0.5 s; the answer is x, from 0 on."""

    def __init__(self, field: nn.Module, n: int):
        super().__init__()
        duration = PlasticMemory.presentation_time
        # A graph of the few steps is small, and faster than repeating them in backward.
        settings = {"method": "rk4", "dt": duration / SOLVER_STEPS, "gradient": "autograd"}
        self.block = NCODE(Function(field, (n,), (n,)), DataControl(), t1=duration, **settings)

    def forward(self, stimuli: Tensor, query: Tensor) -> Tensor:
        x = torch.zeros_like(query)
        for shown in (*stimuli.unbind(1), query):
            x = self.block(x, context=shown)
        return x


class DataControlledMemory(DrivenMemory):
    """A data-controlled NODE (Massaroli et al., 2020): dx/dt = tanh(W [x, x_stim]), with W of n x 2n."""

    def __init__(self, n: int, scale: float = 1e-3):
        super().__init__(_Concatenated(n, scale), n)


class ODERNNMemory(DrivenMemory):
    """A continuous RNN with fixed weights and a linear read-out: dh/dt = tanh(W h + x_stim), answer R h, n x n each."""

    def __init__(self, n: int, scale: float = 1e-3):
        super().__init__(_Current(n, scale), n)
        self.read_out = nn.Parameter(scale * torch.randn(n, n))

    def forward(self, stimuli: Tensor, query: Tensor) -> Tensor:
        return super().forward(stimuli, query) @ self.read_out.mT


class LSTMMemory(nn.Module):
    """A plain LSTM and a linear read-out.

    Each pattern, and then the query, is its input for 5 time steps; the answer is read out at the end.
    """

    def __init__(self, n: int, units: int = 5000):
        super().__init__()
        self.lstm = nn.LSTM(n, units, batch_first=True)
        self.read_out = nn.Linear(units, n)

    def forward(self, stimuli: Tensor, query: Tensor) -> Tensor:
        shown = torch.cat([stimuli, query[:, None]], 1).repeat_interleave(LSTM_STEPS, 1)
        return self.read_out(self.lstm(shown)[0][:, -1])


class ClampedLSTMMemory(nn.Module):
    """An LSTM with strong inputs and clamped cells, after the description in Miconi et al. (2018).

    Driven as `LSTMMemory`, but inputs are multiplied by `strength`, and the first n units are visible: the cell of each
    is held at the bit shown to it for as long as it is shown (a bit of 0 leaves it free), and their outputs at the end
    of the query are the answer. The paper does not say how cells were clamped; this is our reading.
    """

    def __init__(self, n: int, units: int = 5000, strength: float = 20.0):
        super().__init__()
        if units < n:
            raise InputError(f"lstm-miconi needs a unit for each bit: given {units} units for {n} bits")
        self.units, self.strength = units, strength
        # Only its parameters are used: its forward pass cannot clamp cells.
        self.cell = nn.LSTMCell(n, units)

    def forward(self, stimuli: Tensor, query: Tensor) -> Tensor:
        shown = torch.cat([stimuli, query[:, None]], 1)
        driven = nn.functional.linear(self.strength * shown, self.cell.weight_ih, self.cell.bias_ih + self.cell.bias_hh)
        back = self.cell.weight_hh.mT
        h = c = query.new_zeros(len(query), self.units)
        for bits, drive in zip(shown.unbind(1), driven.unbind(1), strict=True):
            clamped = nn.functional.pad(bits, (0, self.units - bits.shape[1]))
            free = clamped == 0
            for _ in range(LSTM_STEPS):
                i, f, g, o = torch.addmm(drive, h, back).chunk(4, 1)
                c = torch.where(free, f.sigmoid() * c + i.sigmoid() * g.tanh(), clamped)
                h = o.sigmoid() * c.tanh()
        return h[:, : query.shape[1]]


class NearestPattern(nn.Module):
    """The stimulus that agrees best with the query: no memory of the patterns can do better on average."""

    def forward(self, stimuli: Tensor, query: Tensor) -> Tensor:
        best = torch.einsum("bpn,bn->bp", stimuli, query).argmax(1)
        return stimuli[torch.arange(len(query), device=query.device), best]


def build_rule(name: str, n: int, query_time: float) -> PlasticMemory:
    """A memory by Hebb's, Oja's or the delta rule whose neurons are all alike.

    "delta" sees episodes as ncode does. In the others, bits that are given are held while they are shown, and theta is
    constant during the query.
    """
    rule, _, held = name.partition("-")
    start = HEBB_START if rule == "hebb" else RULE_START
    how = {"clamp": True, "frozen_query": True, "query_time": query_time} if held else {}
    return PlasticMemory(n, solver_steps=HELD_STEPS if held else SOLVER_STEPS, rule=rule, **start, **how)


def build_memory(
    name: str, n: int, *, scale: float = 1e-3, units: int = 5000, query_time: float = QUERY_TIME
) -> nn.Module:
    """The model of that name, for patterns of n bits. ncode, data-control and ode-rnn have 2 n^2 parameters each.

    Args:
        scale: Initial size of the weights of ncode, data-control and ode-rnn.
        units: Hidden units of an LSTM.
        query_time: Seconds of the query, for memories whose bits are held.
    """
    match check_choice("model", name, MODELS):
        case "delta" | "hebb-held" | "oja-held" | "delta-held":
            return build_rule(name, n, query_time)
        case "nearest":
            return NearestPattern()
        case "ncode":
            return PlasticMemory(n, scale, HOLD, SOLVER_STEPS)
        case "data-control":
            return DataControlledMemory(n, scale)
        case "ode-rnn":
            return ODERNNMemory(n, scale)
        case "lstm":
            return LSTMMemory(n, units)
        case _:
            return ClampedLSTMMemory(n, units)


def evaluations(name: str, presentations: int, query_time: float = QUERY_TIME) -> int:
    """Evaluations of the field, or time steps of an LSTM, per episode."""
    if name == "nearest":
        return 0
    if name.endswith("-held"):
        duration = PlasticMemory.presentation_time
        return 4 * (HELD_STEPS * presentations + math.ceil(query_time * HELD_STEPS / duration))
    return (LSTM_STEPS if name.startswith("lstm") else 4 * SOLVER_STEPS) * (presentations + 1)


class _Concatenated(nn.Module):
    def __init__(self, n: int, scale: float):
        super().__init__()
        self.weight = nn.Parameter(scale * torch.randn(n, 2 * n))

    def forward(self, t: Tensor, x: Tensor, shown: Tensor) -> Tensor:
        return torch.tanh(torch.cat([x, shown], 1) @ self.weight.mT)


class _Current(nn.Module):
    def __init__(self, n: int, scale: float):
        super().__init__()
        self.weight = nn.Parameter(scale * torch.randn(n, n))

    def forward(self, t: Tensor, h: Tensor, shown: Tensor) -> Tensor:
        return torch.tanh(torch.addmm(shown, h, self.weight.mT))
