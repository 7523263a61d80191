"""What AutoN-CODE is compared with: the plain and the variational autoencoder, and noise on codes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ncode.errors import check_count, check_number
from ncode.models import Autoencoder, TrainingCode


class LinearCode(Autoencoder):
    """An autoencoder with a linear map from the encoder's `width` features to the code's values.

    `values` is the number of values per dimension of the code; encoder, decoder, loss, more: as for `Autoencoder`.
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        width: int,
        latent: int,
        loss: str = "mse",
        *,
        values: int = 1,
        **more: Any,
    ):
        super().__init__(encoder, decoder, loss, **more)
        self.code = nn.Linear(width, values * check_count("latent", latent))

    def encode(self, images: Tensor) -> Tensor:
        # Under autocast a linear map returns 16 bits, too few for codes.
        return self.code(self.features(images, self.code.in_features)).to(self.code.weight.dtype)


class PlainAutoencoder(LinearCode):
    """An autoencoder whose code is a linear map of the features.

    Args:
        noise: Standard deviation of the noise added to images in training (a denoising autoencoder).
        sparsity: Weight of the mean absolute code in the loss (a sparse autoencoder).
        parts, more: As for `LinearCode`.
    """

    def __init__(self, *parts: Any, noise: float = 0.0, sparsity: float = 0.0, **more: Any):
        super().__init__(*parts, **more)
        self.noise, self.sparsity = check_number("noise", noise, low=0.0), check_number("sparsity", sparsity, low=0.0)

    def training_code(self, images: Tensor) -> TrainingCode:
        code = self.encode(images + self.noise * torch.randn_like(images) if self.noise else images)
        size = code.abs().mean()
        return TrainingCode(code, self.sparsity * size, {"code size": size})


class VariationalAutoencoder(LinearCode):
    """A variational autoencoder: each code is a Gaussian, kept near N(0, I) (Kingma and Welling, 2013).

    The loss is the evidence bound per pixel: the error plus beta / pixels times the Kullback-Leibler divergence.

    Args:
        beta: Weight of the divergence. A decoder of variance s^2 has beta = 2 s^2 under "mse".
        parts, more: As for `LinearCode`.
    """

    def __init__(self, *parts: Any, beta: float = 1.0, **more: Any):
        super().__init__(*parts, values=2, **more)
        self.beta = check_number("beta", beta, low=0.0)

    def encode(self, images: Tensor) -> Tensor:
        return self._moments(images)[0]

    def training_code(self, images: Tensor) -> TrainingCode:
        mean, log_variance = self._moments(images)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        return TrainingCode(code, self.beta * divergence / images[0].numel(), {"divergence": divergence})

    def _moments(self, images: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = super().encode(images).chunk(2, 1)
        return mean, log_variance.clamp(-20, 10)


class CodeNoise(nn.Module):
    """Gaussian noise on codes in training, so that the decoder learns what lies between codes.

    It is relative to the deviation of the batch's codes: growing codes would make noise of any fixed size small.
    """

    def __init__(self, noise: float):
        super().__init__()
        self.noise = check_number("noise", noise, low=0.0)

    def forward(self, code: Tensor) -> Tensor:
        if not self.training or not self.noise or len(code) < 2:
            return code
        # Gradients flow through the deviation too: otherwise codes grow without bound, to drown the noise.
        # The tiny number keeps the square root away from 0, where its slope is infinite.
        spread = (code.var(0).mean() + torch.finfo(code.dtype).tiny).sqrt()
        return code + self.noise * spread * torch.randn_like(code)
