"""LSTMs as memories: plain, and with what Miconi et al. (2018) found that one needs for this task."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ncode import InputError

SEEN = 5  # time steps that each pattern, and the query, is shown for


class LSTMMemory(nn.Module):
    """A plain LSTM and a linear read-out.

    How it is driven: each pattern, then the query, is its input for 5 time steps; the answer is read out at the end.

    Args:
        n: Bits of a pattern.
        units: Hidden units.

    >>> import torch
    >>> LSTMMemory(10, 32)(torch.ones(2, 6, 10), torch.ones(2, 10)).shape
    torch.Size([2, 10])
    """

    def __init__(self, n: int, units: int = 5000):
        super().__init__()
        self.lstm = nn.LSTM(n, units, batch_first=True)
        self.read_out = nn.Linear(units, n)

    def forward(self, stimuli: Tensor, query: Tensor) -> Tensor:
        """What is read out at the end of the query."""
        shown = torch.cat([stimuli, query[:, None]], 1).repeat_interleave(SEEN, 1)
        return self.read_out(self.lstm(shown)[0][:, -1])

    def nfe(self, presentations: int) -> int:
        """Time steps an episode."""
        return SEEN * (presentations + 1)


class ClampedLSTMMemory(nn.Module):
    """An LSTM with strong inputs and clamped cells, after what Miconi et al. (2018) tell of theirs.

    How it is driven: as `LSTMMemory`, but inputs are multiplied by `strength`, and the first n units are visible: the
    cell of each is held at the bit shown to it for as long as it is shown (a bit of 0 leaves it free), and their
    outputs at the end of the query are the answer. How cells were clamped is not told; this is our reading.

    Args:
        n: Bits of a pattern.
        units: Hidden units, the visible ones among them.
        strength: What inputs are multiplied by.

    >>> import torch
    >>> ClampedLSTMMemory(10, 32)(torch.ones(2, 6, 10), torch.ones(2, 10)).shape
    torch.Size([2, 10])
    """

    def __init__(self, n: int, units: int = 5000, strength: float = 20.0):
        super().__init__()
        if units < n:
            raise InputError(f"lstm-miconi needs a unit for each bit: given {units} units for {n} bits")
        self.units, self.strength = units, strength
        # Its parameters, with their usual start; its forward pass does not let cells be clamped.
        self.cell = nn.LSTMCell(n, units)

    def forward(self, stimuli: Tensor, query: Tensor) -> Tensor:
        """Outputs of the visible units at the end of the query."""
        shown = torch.cat([stimuli, query[:, None]], 1)
        driven = nn.functional.linear(self.strength * shown, self.cell.weight_ih, self.cell.bias_ih + self.cell.bias_hh)
        back = self.cell.weight_hh.mT
        h = c = query.new_zeros(len(query), self.units)
        for bits, drive in zip(shown.unbind(1), driven.unbind(1), strict=True):
            clamped = nn.functional.pad(bits, (0, self.units - bits.shape[1]))
            free = clamped == 0
            for _ in range(SEEN):
                i, f, g, o = torch.addmm(drive, h, back).chunk(4, 1)
                c = torch.where(free, f.sigmoid() * c + i.sigmoid() * g.tanh(), clamped)
                h = o.sigmoid() * c.tanh()
        return h[:, : query.shape[1]]

    def nfe(self, presentations: int) -> int:
        """Time steps an episode."""
        return SEEN * (presentations + 1)
