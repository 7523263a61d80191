"""Codes in units of their own deviations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Units(NamedTuple):
    """Where each value of a code lies, and how far it varies.

    The scale of a code is the model's business: the end of a flow varies by hundredths in one value and by tenths in
    the next, a linear map of features by ones, and the decoder sees all of them alike. k-means, the least variance of a
    mixture and the width of a kernel are not indifferent to scale, so densities are fitted to codes in these units.

    >>> codes = torch.tensor([[1.0, 5.0], [3.0, 5.0]])
    >>> units = Units.of(codes)
    >>> units(codes), torch.equal(units.undo(units(codes)), codes)
    (tensor([[-0.7071,  0.0000],
            [ 0.7071,  0.0000]]), True)
    """

    mean: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, codes: Tensor) -> Units:
        """The units of codes (n, values). What does not vary keeps its own."""
        deviation = codes.std(0)
        return cls(codes.mean(0), torch.where(deviation > 0, deviation, 1.0))

    def __call__(self, codes: Tensor) -> Tensor:
        """Codes in these units."""
        return (codes - self.mean) / self.deviation

    def undo(self, codes: Tensor) -> Tensor:
        """Codes in these units as the model has them."""
        return self.mean + self.deviation * codes.to(self.mean)
