"""`CodeNoise`: what happens to codes between the encoder and the decoder, in training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..ode import InputError


class CodeNoise(nn.Module):
    """Noise and dropout of codes in training, so that the decoder learns what lies between codes; nothing later.

    Args:
        noise: Deviation of the Gaussian noise, relative to that of the batch's codes. Relative, since a code that grows
            would make noise of any one size small.
        dropout: Part of the values that are set to 0; the others grow to make up for it.

    >>> disturb = CodeNoise(noise=0.1, dropout=0.5)
    >>> code = torch.randn(100, 8)
    >>> int((disturb(code) == 0).sum()) > 0, torch.equal(disturb.eval()(code), code)
    (True, True)
    """

    def __init__(self, noise: float = 0.0, dropout: float = 0.0):
        super().__init__()
        if not noise >= 0:
            raise InputError(f"noise must be at least 0; given {noise}")
        self.noise, self.dropout = noise, check_part("dropout", dropout)

    def forward(self, code: Tensor) -> Tensor:
        """Codes (batch, m), disturbed."""
        if not self.training:
            return code
        if self.noise and len(code) > 1:
            # Gradients flow through the deviation too: else codes grow without end, to drown the noise.
            # Never the root of 0, whose slope is infinite.
            spread = (code.var(0).mean() + torch.finfo(code.dtype).tiny).sqrt()
            code = code + self.noise * spread * torch.randn_like(code)
        return nn.functional.dropout(code, self.dropout) if self.dropout else code

    def extra_repr(self) -> str:
        """Its arguments."""
        return f"noise={self.noise:g}, dropout={self.dropout:g}"


def check_part(name: str, value: float) -> float:
    """A part of what there is, but not all.

    >>> check_part("dropout", 0.5)
    0.5
    """
    if not 0 <= value < 1:
        raise InputError(f"{name} must be at least 0 and below 1; given {value}")
    return value
