"""What AutoN-CODE is compared with: the plain and the variational autoencoder, and noise on codes."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ncode.checks import check_count, check_number
from ncode.models import Autoencoder, TrainingCode


class PlainAutoencoder(Autoencoder):
    """An autoencoder whose code is a linear map of the features.

    Args:
        encoder, decoder, loss, code_noise, terms: As for `Autoencoder`.
        width: Number of features that the encoder returns.
        latent: Dimensions of the code.
        noise: Standard deviation of the noise added to images in training (a denoising autoencoder).
        sparsity: Weight of the mean absolute code in the loss (a sparse autoencoder).

    >>> encoder = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU())
    >>> decoder = nn.Sequential(nn.Linear(8, 784), nn.Sigmoid(), nn.Unflatten(1, (1, 28, 28)))
    >>> PlainAutoencoder(encoder, decoder, width=32, latent=8)(torch.rand(2, 1, 28, 28)).shape
    torch.Size([2, 1, 28, 28])
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        width: int,
        latent: int,
        loss: str = "mse",
        noise: float = 0.0,
        sparsity: float = 0.0,
        code_noise: nn.Module | None = None,
        terms: Mapping[str, nn.Module] | None = None,
    ):
        super().__init__(encoder, decoder, loss, code_noise, terms)
        self.code = nn.Linear(width, check_count("latent", latent))
        self.noise, self.sparsity = check_number("noise", noise, low=0.0), check_number("sparsity", sparsity, low=0.0)

    def encode(self, images: Tensor) -> Tensor:
        # Under autocast a linear map returns 16 bits, too few for codes.
        return self.code(self.features(images, self.code.in_features)).to(self.code.weight.dtype)

    def training_code(self, images: Tensor) -> TrainingCode:
        code = self.encode(images + self.noise * torch.randn_like(images) if self.noise else images)
        size = code.abs().mean()
        return TrainingCode(code, self.sparsity * size, {"code size": size})


class VariationalAutoencoder(Autoencoder):
    """A variational autoencoder: each code is a Gaussian, kept near N(0, I) (Kingma and Welling, 2013).

    The loss is the evidence bound per pixel: the error plus beta / pixels times the Kullback-Leibler divergence.

    Args:
        encoder, decoder, width, latent, loss, code_noise, terms: As for `PlainAutoencoder`.
        beta: Weight of the divergence. A decoder of variance s^2 has beta = 2 s^2 under "mse".

    >>> encoder = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU())
    >>> model = VariationalAutoencoder(encoder, nn.Linear(8, 784), width=32, latent=8)
    >>> images = torch.rand(2, 1, 28, 28)
    >>> drawn = [model.training_code(images).code for _ in range(2)]
    >>> torch.equal(*drawn), torch.equal(model.encode(images), model.encode(images))
    (False, True)
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        width: int,
        latent: int,
        loss: str = "mse",
        beta: float = 1.0,
        code_noise: nn.Module | None = None,
        terms: Mapping[str, nn.Module] | None = None,
    ):
        super().__init__(encoder, decoder, loss, code_noise, terms)
        self.code = nn.Linear(width, 2 * check_count("latent", latent))
        self.beta = check_number("beta", beta, low=0.0)

    def encode(self, images: Tensor) -> Tensor:
        return self._moments(images)[0]

    def training_code(self, images: Tensor) -> TrainingCode:
        mean, log_variance = self._moments(images)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        return TrainingCode(code, self.beta * divergence / images[0].numel(), {"divergence": divergence})

    def _moments(self, images: Tensor) -> tuple[Tensor, Tensor]:
        moments = self.code(self.features(images, self.code.in_features)).to(self.code.weight.dtype)
        mean, log_variance = moments.chunk(2, 1)
        return mean, log_variance.clamp(-20, 10)


class CodeNoise(nn.Module):
    """Gaussian noise on codes in training, so that the decoder learns what lies between codes.

    Args:
        noise: Its standard deviation, relative to that of the batch's codes: growing codes would make noise of any
            fixed size small.

    >>> disturb, code = CodeNoise(noise=0.1), torch.randn(100, 8)
    >>> torch.equal(disturb(code), code), torch.equal(disturb.eval()(code), code)
    (False, True)
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

    def extra_repr(self) -> str:
        return f"noise={self.noise:g}"
