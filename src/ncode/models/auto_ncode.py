"""AutoN-CODE: an autoencoder whose code is the end of a flow that the image controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from ..block import NCODE
from ..checks import check_choice
from ..control import DataControl
from ..costs import Regulariser
from ..dynamics import SparseLinear
from .autoencoder import Autoencoder, Coded, full_precision
from .control_norms import ControlNorm

Start = Literal["ones", "stored", "learned", "drawn"]


class AutoNCODE(Autoencoder):
    """The code is x(T) of dx/dt = theta x, x(0) = x_0, where theta = gamma(image) has a few non-zeros a row.

    gamma is the encoder, a linear map and a normalisation. The flow is solved exactly, by the matrix exponential or
    its action.

    Args:
        encoder, decoder, width, latent, loss, disturb, terms: As for `PlainAutoencoder`.
        nonzeros: Non-zeros a row of theta.
        norm, gain: How theta is normalised, and to what size: see `ControlNorm`.
        start: x_0 is "ones" (a coupling to a value of x_0 near 0 does little, and with ones all of them move the code
            alike), "stored" (drawn from N(0, I) once), "learned" (from there), or "drawn" for each image anew.
        horizon: T.
        costs: Running costs on the latent flow, of `ncode.costs`, added to the loss. With any, the solver takes the
            place of the exact flow.
        seed: Of the pattern of theta and of x_0.

    With an encoder and a decoder of your own:

    >>> import torch
    >>> encoder = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU())
    >>> decoder = nn.Sequential(nn.Linear(8, 784), nn.Sigmoid(), nn.Unflatten(1, (1, 28, 28)))
    >>> model = AutoNCODE(encoder, decoder, width=32, latent=8)
    >>> images = torch.rand(2, 1, 28, 28)
    >>> model(images).shape, model.orbit(images, torch.linspace(0, 10, 5)).shape
    (torch.Size([2, 1, 28, 28]), torch.Size([2, 5, 8]))
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        width: int,
        latent: int,
        loss: str = "mse",
        nonzeros: int = 1,
        norm: str = "sphere",
        gain: float = 0.25,
        start: str = "ones",
        horizon: float = 10.0,
        costs: Sequence[Regulariser] = (),
        seed: int = 0,
        disturb: nn.Module | None = None,
        terms: Mapping[str, nn.Module] | None = None,
    ):
        super().__init__(encoder, decoder, loss, disturb, terms)
        self.start = check_choice("start", start, get_args(Start))
        self.latent, self.nonzeros, self.costs = latent, nonzeros, list(costs)
        self.gamma = nn.Linear(width, latent * nonzeros)
        self.norm = ControlNorm(norm, latent, nonzeros, gain)
        # gamma lives here, so the block takes what it is shown as the control.
        self.block = NCODE(SparseLinear(latent, nonzeros, seed), DataControl(), t1=horizon)
        drawn = torch.randn(latent, generator=torch.Generator().manual_seed(seed))
        x0 = torch.ones(latent) if start == "ones" else drawn
        if start == "learned":
            self.x0 = nn.Parameter(x0)
        else:
            self.register_buffer("x0", x0)

    def control(self, images: Tensor) -> Tensor:
        """theta, the couplings that images ask for, (batch, latent, nonzeros)."""
        features = full_precision(self.features(images, self.gamma.in_features))
        # In single precision also under autocast: exp(10 theta) has no digits to spare.
        with torch.autocast(images.device.type, enabled=False):
            return self.norm(self.gamma(features).unflatten(1, (self.latent, self.nonzeros)))

    def flow(self, control: Tensor) -> Tensor:
        """The code that a control leads to: x(T)."""
        # What cannot be computed becomes nan, and so does the loss: to look here would be to wait for the GPU.
        return self.block.solve(self._x0(control), context=control, throw=False).x

    def encode(self, images: Tensor) -> Tensor:
        """The codes of images."""
        return self.flow(self.control(images))

    def orbit(self, images: Tensor, ts: Tensor) -> Tensor:
        """The latent states at times ts, (batch, T, latent)."""
        control = self.control(images)
        return self.block.trajectory(self._x0(control), ts, context=control)

    def coded(self, images: Tensor) -> Coded:
        """The codes and, where there are any, the running costs of the flow."""
        control = self.control(images)
        parts = {"control norm": control.detach().flatten(1).norm(dim=1).mean()}
        if not self.costs:
            return Coded(self.flow(control), 0.0, parts)
        solution = self.block.solve(self._x0(control), context=control, cost=self.costs)
        assert solution.cost is not None
        price = solution.cost.mean()
        return Coded(solution.x, price, {**parts, "cost": price.detach()})

    def _x0(self, control: Tensor) -> Tensor:
        if self.start == "drawn":
            return torch.randn(len(control), self.latent, device=control.device, dtype=control.dtype)
        return self.x0.to(control.dtype).expand(len(control), -1)
