"""AutoN-CODE with parts left out or replaced: codes on a sphere without a flow, and flows that are rotations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ncode import InputError
from ncode.block import NCODE
from ncode.control import DataControl
from ncode.dynamics import SparseLinear
from ncode.errors import check_count, check_number
from ncode.models import AutoNCODE, ControlNorm, TrainingCode

from .baselines import LinearCode


class SphereCode(LinearCode):
    """A spherical autoencoder: the code is centred and scaled to one norm, as AutoN-CODE's control is, without a flow.

    It has as many parameters as AutoN-CODE with one non-zero per row.

    Args:
        parts, more: As for `LinearCode`.
        gain: Norm of the code.
        horizon: Above 0, the code is exp(horizon z) of the point z on the sphere, value by value: the flow of a
            diagonal control from (1, ..., 1).
    """

    def __init__(self, *parts: Any, gain: float = 1.0, horizon: float = 0.0, **more: Any):
        super().__init__(*parts, **more)
        self.norm = ControlNorm("sphere", self.code.out_features, 1, gain)
        self.horizon = check_number("horizon", horizon, low=0.0)

    def encode(self, images: Tensor) -> Tensor:
        point = self.norm(super().encode(images)[..., None])[..., 0]
        return (self.horizon * point).exp() if self.horizon else point

    def training_code(self, images: Tensor) -> TrainingCode:
        return TrainingCode(self.encode(images), 0.0, {})


class RotationCode(AutoNCODE):
    """AutoN-CODE with a skew-symmetric control: x(T) = exp(T theta) x(0) is a rotation of x(0).

    Codes lie on a sphere because of the dynamics, whatever the norm of the control. The control has as many free values
    as that of AutoN-CODE; each stands twice, with opposite signs, so that a row has twice as many non-zeros.

    Args:
        parts, more: As for `AutoNCODE`. `nonzeros` is the number of free values per row.
    """

    partners: Tensor

    def __init__(self, *parts: Any, **more: Any):
        super().__init__(*parts, **more)
        if 2 * self.nonzeros >= self.latent:
            raise InputError(
                f"a rotation of {self.latent} dimensions has fewer than {self.latent / 2:g} free values per row; given"
                f" nonzeros={self.nonzeros}"
            )
        dynamics = SparseLinear(self.latent, 2 * self.nonzeros, self.seed)
        dynamics.columns, partners = skew_pattern(self.latent, self.nonzeros, self.seed)
        self.register_buffer("partners", partners, persistent=False)
        self.block = NCODE(dynamics, DataControl(), **self.block.settings.as_dict())

    def control(self, images: Tensor) -> Tensor:
        """theta for images, the non-zeros of its rows (batch, latent, 2 nonzeros)."""
        free = super().control(images)
        # The value in row i at column j stands in row j at column i with the other sign.
        return torch.cat([free, -free.transpose(1, 2).gather(2, self.partners.T.expand(len(free), -1, -1)).mT], 2)


def skew_pattern(m: int, free: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Columns (m, 2 free) of the rows of a sparse skew-symmetric matrix, and the rows (m, free) of the second half.

    Row i has its own values in the first `free` columns, and minus the k-th value of row `partners[i, k]` in the
    others. Dimensions are put on a circle in random order, and coupled to those at `free` different distances. The
    first distance is 1, so that all dimensions are connected.
    """
    check_count("free", free)
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(m, generator=generator)
    place = order.argsort()
    further = 2 + torch.randperm((m - 1) // 2 - 1, generator=generator)[: free - 1]
    distances = torch.cat([torch.ones(1, dtype=torch.int64), further])
    ahead, behind = (order[(place[:, None] + step * distances) % m] for step in (1, -1))
    return torch.cat([ahead, behind], 1), behind
