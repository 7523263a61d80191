"""Models of the memory task: patterns are shown one after another, then one of them is asked for by a part of it.

All of them take `model(stimuli, query)`, stimuli (batch, presentations, n) and query (batch, n), and give the pattern
asked for, (batch, n), by its signs. Between episodes nothing is carried over.
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor, nn

from ncode.checks import check_choice
from ncode.models.memory_plastic import PlasticMemory

from .memory_lstm import ClampedLSTMMemory, LSTMMemory
from .memory_static import DataControlledMemory, ODERNNMemory

MemoryModel = Literal["ncode", "data-control", "ode-rnn", "lstm", "lstm-miconi"]
MEMORY_MODELS: tuple[MemoryModel, ...] = get_args(MemoryModel)

Memory = PlasticMemory | DataControlledMemory | ODERNNMemory | LSTMMemory | ClampedLSTMMemory


def build_memory(
    name: str, n: int, *, scale: float = 1e-3, hold: float = 2.0, solver_steps: int = 1, units: int = 5000
) -> Memory:
    """The model of that name.

    ncode, data-control and ode-rnn have 2 n^2 parameters each.

    Args:
        name: ncode: plastic N-CODE; data-control: data-controlled NODE; ode-rnn: continuous RNN with fixed weights;
            lstm; lstm-miconi: LSTM with strong inputs and clamped cells.
        n: Bits of a pattern.
        scale: Size of all weights of ncode, data-control and ode-rnn at first.
        hold: How strongly a neuron of ncode excites itself at first.
        solver_steps: Runge-Kutta steps a presentation.
        units: Of an LSTM.

    >>> import torch
    >>> model = build_memory("ode-rnn", 8)
    >>> model(torch.ones(2, 6, 8), torch.ones(2, 8)).shape, count(model) == count(build_memory("ncode", 8))
    (torch.Size([2, 8]), True)
    """
    check_choice("model", name, MEMORY_MODELS)
    if name == "ncode":
        return PlasticMemory(n, scale, hold, solver_steps)
    if name == "data-control":
        return DataControlledMemory(n, scale, solver_steps)
    if name == "ode-rnn":
        return ODERNNMemory(n, scale, solver_steps)
    return LSTMMemory(n, units) if name == "lstm" else ClampedLSTMMemory(n, units)


def count(model: nn.Module) -> int:
    """How many numbers are trained.

    >>> count(build_memory("data-control", 10))
    200
    """
    return sum(each.numel() for each in model.parameters() if each.requires_grad)


def recall(model: Memory, stimuli: Tensor, query: Tensor) -> Tensor:
    """The pattern as the model recalls it, of -1 and 1 (0 where it says nothing).

    >>> import torch
    >>> recall(build_memory("ncode", 3, scale=0.0), torch.ones(1, 2, 3), torch.tensor([[1.0, -1.0, 0.0]]))
    tensor([[ 1., -1.,  0.]])
    """
    return model(stimuli, query).detach().sign()
