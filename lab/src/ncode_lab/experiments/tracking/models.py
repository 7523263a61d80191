"""Models that read a word letter by letter, and say after each letter which element of the group it is.

    skew, ...         dx/dt = W(letter) x (+ b(letter)) for a time of 1 per letter. The flow of a letter is an affine
                      map, computed once per letter of the alphabet, and a word is a product of these maps.
    lstm, lstm-wide   an LSTM with one-hot letters

All end in a read-out of their state; it is linear except in `diagonal-wide`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import count
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ncode.closed_forms import linear_recurrence
from ncode.dynamics import BlockLinear, Skew
from ncode.errors import check_choice

Model = Literal["skew", "skew-blocks", "skew-planes", "dense", "diagonal", "diagonal-wide", "lstm", "lstm-wide"]
MODELS: tuple[Model, ...] = get_args(Model)

ANGLES = 1.0  # size of the initial rotation by a letter, relative to sqrt(3 / block)
START = 3.0  # size of the elements of the initial state
WIDE_STATES = 256  # of diagonal-wide
WIDE_UNITS = 128  # of lstm-wide


class Tracker(nn.Module, ABC):
    """A model of words. `read_out` maps states (..., m) to scores of elements."""

    read_out: nn.Module

    @abstractmethod
    def states(self, letters: Tensor, before: Any = None) -> tuple[Tensor, Any]:
        """The states after each of the letters (batch, K), and what to continue from. Default: a word's beginning."""

    def forward(self, letters: Tensor) -> tuple[Tensor, Tensor]:
        """The states (batch, K, m) and the scores (batch, K, elements)."""
        states, _ = self.states(letters)
        return states, self.read_out(states)


class FlowTracker(Tracker):
    """A linear flow that each letter controls, exact and in double precision.

    Args:
        dynamics: dx/dt = W x, with the control of W.
        letters: Size of the alphabet.
        read_out: The read-out.
        input: Whether letters also add to x: dx/dt = W x + b.
        decay: Whether W is minus a softplus of its parameters: for a diagonal, elements of x fade, as in Mamba.
    """

    def __init__(
        self,
        dynamics: Skew | BlockLinear,
        letters: int,
        read_out: nn.Module,
        *,
        input: bool = False,
        decay: bool = False,
    ):
        super().__init__()
        self.dynamics, self.decay, self.read_out = dynamics, decay, read_out
        shape = tuple(size for size in dynamics.control_shapes["weight"] if size is not None)
        self.control = nn.Parameter(initial_control(dynamics, torch.randn(letters, *shape)))
        self.input = nn.Parameter(torch.randn(letters, dynamics.m)) if input else None
        self.start = nn.Parameter(START * torch.randn(dynamics.m))
        self.double()

    def maps(self) -> tuple[Tensor, Tensor | None]:
        """The flow x -> E x + c of each letter: E (letters, n, b, b) by blocks, and c (letters, n, b)."""
        a = self.dynamics.blocks(-F.softplus(self.control) if self.decay else self.control)
        if self.input is None:
            return torch.linalg.matrix_exp(a), None
        # exp([[A, b], [0, 0]]) = [[E, c], [0, 1]]
        size = a.shape[-1]
        a = F.pad(torch.cat([a, self.input.reshape(*a.shape[:-1], 1)], -1), (0, 0, 0, 1))
        e = torch.linalg.matrix_exp(a)
        return e[..., :size, :size], e[..., :size, size]

    def states(self, letters: Tensor, before: Tensor | None = None) -> tuple[Tensor, Tensor]:
        x = self.start.expand(len(letters), -1) if before is None else before
        e, c = self.maps()
        n, b = e.shape[1:3]
        # Each block is a sequence of its own, (batch n, K, ...).
        e = e[letters].transpose(1, 2).flatten(0, 1)
        c = None if c is None else c[letters].transpose(1, 2).flatten(0, 1)
        xs = linear_recurrence(e, x.reshape(-1, b), c)[:, 1:]
        xs = xs.unflatten(0, (-1, n)).transpose(1, 2).flatten(2)
        return xs, xs[:, -1]


class LSTMTracker(Tracker):
    """An LSTM and a linear read-out."""

    def __init__(self, letters: int, units: int, read_out: nn.Module):
        super().__init__()
        self.letters, self.lstm, self.read_out = letters, nn.LSTM(letters, units, batch_first=True), read_out

    def states(
        self, letters: Tensor, before: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return self.lstm(F.one_hot(letters, self.letters).to(self.read_out.weight.dtype), before)  # pyright: ignore


def initial_control(dynamics: Skew | BlockLinear, noise: Tensor) -> Tensor:
    """Parameters at the start, from normal random numbers in their shape: rotations by about as much in all models."""
    if dynamics.block == 1:
        return noise
    noise = noise * ANGLES * (3 / dynamics.block) ** 0.5
    if isinstance(dynamics, Skew):
        return noise
    # A dense matrix starts as a rotation too, but need not stay one.
    blocks = dynamics.blocks(noise)
    return ((blocks - blocks.mT) / 2**0.5).reshape(noise.shape)


def build_tracker(name: str, letters: int, elements: int, *, states: int = 24, block: int = 6) -> Tracker:
    """The model of that name, for an alphabet of that many letters and a group of that many elements.

    diagonal and lstm have as many states as they need to have no fewer parameters than skew.

    Args:
        states: Elements of x of skew, skew-blocks, skew-planes and dense.
        block: Size of the blocks of skew-blocks.
    """

    def flow(dynamics: Skew | BlockLinear, **options: Any) -> Tracker:
        return FlowTracker(dynamics, letters, nn.Linear(dynamics.m, elements), **options)

    match check_choice("model", name, MODELS):
        case "skew":
            return flow(Skew(states))
        case "skew-blocks":
            return flow(Skew(states, block))
        case "skew-planes":
            return flow(Skew(states, 2))
        case "dense":
            return flow(BlockLinear(states, states))
        case "diagonal":
            # Per state: two numbers per letter, one at the start, and a column of the read-out.
            m = smallest(
                lambda m: (2 * letters + 1 + elements) * m + elements, skew_parameters(letters, elements, states)
            )
            return flow(BlockLinear(m), input=True, decay=True)
        case "diagonal-wide":
            m = WIDE_STATES
            read_out = nn.Sequential(nn.Linear(m, m), nn.GELU(), nn.Linear(m, elements))
            return FlowTracker(BlockLinear(m), letters, read_out, input=True, decay=True)
        case "lstm":
            target = skew_parameters(letters, elements, states)
            units = smallest(lambda u: 4 * u * (u + letters + 2) + (u + 1) * elements, target)
            return LSTMTracker(letters, units, nn.Linear(units, elements))
        case _:
            return LSTMTracker(letters, WIDE_UNITS, nn.Linear(WIDE_UNITS, elements))


def skew_parameters(letters: int, elements: int, states: int) -> int:
    """Number of parameters of skew."""
    return letters * states * (states - 1) // 2 + states + (states + 1) * elements


def smallest(parameters: Any, target: int) -> int:
    """The smallest size with at least as many parameters."""
    return next(size for size in count(1) if parameters(size) >= target)
