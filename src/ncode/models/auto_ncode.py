"""AutoN-CODE: an autoencoder whose code is the end of a flow that the image controls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from ..block import NCODE, Settings
from ..block.settings import check_settings
from ..control import DataControl
from ..costs import Regulariser
from ..dynamics import SparseLinear
from ..errors import InputError, allocating, check_choice, check_count, check_number, format_value
from .autoencoder import Autoencoder, TrainingCode

FlowStart = Literal["ones", "stored"]
ControlNormKind = Literal["sphere", "l2", "none"]


class AutoNCODE(Autoencoder):
    """An autoencoder whose code is x(T) of dx/dt = theta x, x(0) = x_0, with a sparse theta = gamma(image).

    gamma is the encoder, a linear map and a normalisation. The flow is solved exactly, by the matrix exponential.

    Args:
        encoder, decoder, loss, code_noise, terms: As for `Autoencoder`.
        width: Number of features that the encoder returns.
        latent: Dimensions of the code.
        nonzeros: Non-zeros per row of theta.
        norm, gain: How theta is normalised, and to what norm: see `ControlNorm`.
        start: x_0 is "ones" (all couplings then move the code alike) or "stored" (drawn from N(0, I) once).
        horizon: T.
        costs: Running costs on the latent flow, added to the loss; with any, the solver replaces the exact flow.
        seed: Seed of the sparsity pattern of theta and of x_0.
        solver: Settings of the block that solves the flow, as for `NCODE`: {"method": "rk4", "dt": 0.5} for an export.
            Default: the exact flow.

    >>> encoder = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU())
    >>> decoder = nn.Sequential(nn.Linear(8, 784), nn.Sigmoid(), nn.Unflatten(1, (1, 28, 28)))
    >>> model = AutoNCODE(encoder, decoder, width=32, latent=8)
    >>> images = torch.rand(2, 1, 28, 28)
    >>> model(images).shape, model.trajectory(images, torch.linspace(0, 10, 5)).shape
    (torch.Size([2, 1, 28, 28]), torch.Size([2, 5, 8]))
    """

    x0: Tensor

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
        code_noise: nn.Module | None = None,
        terms: Mapping[str, nn.Module] | None = None,
        solver: Mapping[str, Any] | None = None,
    ):
        super().__init__(encoder, decoder, loss, code_noise, terms)
        self.start = check_choice("start", start, get_args(FlowStart))
        if not isinstance(costs, (tuple, list)):
            raise InputError(f"costs must be a list of regularisers; given {format_value(costs)}")
        self.latent, self.nonzeros = check_count("latent", latent), check_count("nonzeros", nonzeros)
        self.costs = list(costs)
        with allocating("the weights of gamma"):
            self.gamma = nn.Linear(check_count("width", width), self.latent * self.nonzeros)
        self.norm = ControlNorm(norm, latent, nonzeros, gain)
        # gamma is part of this module, so the block takes its context as the control.
        settings = Settings(t1=horizon).changed(check_settings(solver))
        self.block = NCODE(SparseLinear(latent, nonzeros, seed), DataControl(), **settings.as_dict())
        self.seed = seed
        drawn = torch.randn(latent, generator=torch.Generator().manual_seed(seed))
        self.register_buffer("x0", torch.ones(latent) if start == "ones" else drawn)

    def config(self) -> dict[str, Any]:
        settings = self.block.settings
        return {
            "encoder": self.encoder,
            "decoder": self.decoder,
            "width": self.gamma.in_features,
            "latent": self.latent,
            "loss": self.loss,
            "nonzeros": self.nonzeros,
            "norm": self.norm.kind,
            "gain": float(self.norm.gain),
            "start": self.start,
            "horizon": settings.t1,
            "costs": self.costs,
            "seed": self.seed,
            "code_noise": self.code_noise,
            "terms": dict(self.terms.items()),
            "solver": settings.changes_from(Settings(t1=settings.t1)),
        }

    def card_lines(self) -> dict[str, str]:
        """Lines of the model card: what goes in, what comes out, and the flow of the code."""
        flow = f"the code is x({self.block.settings.t1:g}) of dx/dt = theta x, with theta = gamma(image)"
        return {**super().card_lines(), "Code": f"{self.latent} numbers per image: {flow}"}

    def control(self, images: Tensor) -> Tensor:
        """theta for images, (batch, latent, nonzeros)."""
        # In single precision also under autocast: exp(10 theta) has no digits to spare.
        features = self.features(images, self.gamma.in_features).to(self.gamma.weight.dtype)
        with torch.autocast(images.device.type, enabled=False):
            return self.norm(self.gamma(features).unflatten(1, (self.latent, self.nonzeros)))

    def flow(self, control: Tensor) -> Tensor:
        """The code x(T) for a control."""
        # A flow that overflows gives nan, and so does the loss: checking here would synchronise with the GPU.
        return self.block.solve(self._x0(control), context=control, throw=False).x

    def encode(self, images: Tensor) -> Tensor:
        return self.flow(self.control(images))

    def trajectory(self, images: Tensor, ts: Tensor) -> Tensor:
        """The latent states at times ts, (batch, T, latent)."""
        control = self.control(images)
        return self.block.trajectory(self._x0(control), ts, context=control)

    def training_code(self, images: Tensor) -> TrainingCode:
        control = self.control(images)
        parts = {"control norm": control.detach().flatten(1).norm(dim=1).mean()}
        if not self.costs:
            return TrainingCode(self.flow(control), 0.0, parts)
        solution = self.block.solve(self._x0(control), context=control, cost=self.costs)
        assert solution.cost is not None
        cost = solution.cost.mean()
        return TrainingCode(solution.x, cost, {**parts, "cost": cost.detach()})

    def _x0(self, control: Tensor) -> Tensor:
        return self.x0.to(control.dtype).expand(control.shape[0], -1)


class ControlNorm(nn.Module):
    """Normalise a control (batch, m, k), and multiply it by a gain.

    The paper calls normalisation "crucial for good performance" and leaves open which. Without any, exp(10 theta)
    overflows at the start of training.

    Args:
        kind: "l2": the control of a sample has norm 1. "sphere": the same after subtracting the mean over the batch,
            since otherwise nearly all of a control may be a direction that all samples share. "none": no normalisation.
        m, k: Rows, and non-zeros per row.
        gain: The norm of the result (for "none": a plain factor).

    >>> norm = ControlNorm("l2", 128, 2, gain=3.0)
    >>> norm(torch.randn(3, 128, 2)).flatten(1).norm(dim=1)
    tensor([3.0000, 3.0000, 3.0000])
    """

    def __init__(self, kind: str, m: int, k: int, gain: float = 1.0):
        super().__init__()
        self.kind = check_choice("normalisation", kind, get_args(ControlNormKind))
        self.m, self.k = check_count("m", m), check_count("k", k)
        self.gain = nn.Parameter(torch.tensor(check_number("gain", gain, low=-math.inf)), requires_grad=False)
        self.centre = _Centre(self.m * self.k) if kind == "sphere" else nn.Identity()

    def forward(self, control: Tensor) -> Tensor:
        flat = self.centre(control.flatten(1))
        if self.kind != "none":
            flat = nn.functional.normalize(flat, dim=1)
        return self.gain * flat.reshape(-1, self.m, self.k)

    def extra_repr(self) -> str:
        return f"{self.kind!r}, m={self.m}, k={self.k}, gain={float(self.gain):g}"


class _Centre(nn.Module):
    """Subtract the mean: of the batch in training, a running mean in evaluation mode or for a single sample."""

    mean: Tensor

    def __init__(self, size: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or len(x) < 2:
            return x - self.mean
        mean = x.mean(0)
        with torch.no_grad():
            self.mean.lerp_(mean.to(self.mean), 0.1)
        return x - mean
