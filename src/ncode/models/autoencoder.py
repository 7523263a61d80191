"""Autoencoders of images: the abstract base class, and the plain and the variational one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy, mse_loss

from .._modules import Configurable
from .._torch_private import is_symbolic
from ..checks import check_choice, check_count, check_number
from ..errors import InputError


class TrainingCode(NamedTuple):
    """Codes as a model makes them in training.

    >>> TrainingCode(torch.zeros(5, 8), 0.0, {"code size": torch.tensor(0.0)}).code.shape
    torch.Size([5, 8])
    """

    code: Tensor  # (batch, latent)
    penalty: Tensor | float  # what the model adds to the loss for these codes
    parts: dict[str, Tensor]  # scalars to log


class AutoencoderLoss(NamedTuple):
    """The training loss of a batch, its parts by name, and the reconstructed images."""

    loss: Tensor
    parts: dict[str, Tensor]
    images: Tensor


class Autoencoder(nn.Module, ABC):
    """Images to codes and back. Abstract: a subclass defines how a code is computed from features.

    Args:
        encoder: Maps images (batch, channels, height, width) to features (batch, width).
        decoder: Maps codes (batch, latent) to images between 0 and 1.
        loss: "mse" or "bce" (binary cross-entropy), the mean over all pixels.
        code_noise: Applied to codes in training before they are decoded, see `CodeNoise`. Default: nothing.
        terms: Further terms of the loss, by name: modules that map reconstructed images and the originals to a scalar.

    >>> class OnSphere(Autoencoder):  # codes have length 1
    ...     def encode(self, images):
    ...         return nn.functional.normalize(self.features(images, 8), dim=1)
    ...     def training_code(self, images):
    ...         return TrainingCode(self.encode(images), 0.0, {})
    >>> encoder = nn.Sequential(nn.Flatten(), nn.Linear(784, 8))
    >>> decoder = nn.Sequential(nn.Linear(8, 784), nn.Sigmoid(), nn.Unflatten(1, (1, 28, 28)))
    >>> model, images = OnSphere(encoder, decoder), torch.rand(5, 1, 28, 28)
    >>> model.training_loss(images).loss.backward()
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        loss: str = "mse",
        code_noise: nn.Module | None = None,
        terms: Mapping[str, nn.Module] | None = None,
    ):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.loss = check_choice("loss", loss, ("mse", "bce"))
        self.code_noise = nn.Identity() if code_noise is None else code_noise
        self.terms = nn.ModuleDict(terms or {})
        self._range_checked = False

    @abstractmethod
    def encode(self, images: Tensor) -> Tensor:
        """The codes of images, (batch, latent), without noise."""

    @abstractmethod
    def training_code(self, images: Tensor) -> TrainingCode:
        """The codes of images in training, and the penalty for them."""

    def features(self, images: Tensor, width: int) -> Tensor:
        """The encoder's features of images, checked to be (batch, width)."""
        found = self.encoder(images)
        if found.shape[1:] != (width,):
            raise InputError(
                f"the encoder must give features (batch, {width}), as width says; given {tuple(found.shape)}: flatten"
                " them, or set width to their number"
            )
        return found

    def decode(self, code: Tensor) -> Tensor:
        """The images of codes."""
        return self.decoder(code)

    def forward(self, images: Tensor) -> Tensor:
        """Reconstruct images."""
        self._check(images)
        return self.decode(self.encode(images))

    def training_loss(self, images: Tensor) -> AutoencoderLoss:
        """The loss of a batch in training, with all terms that the model adds to the error."""
        self._check(images)
        code, penalty, parts = self.training_code(images)
        back = self.decode(self.code_noise(code))
        error = self.error(back, images)
        more = {name: term(back, images) for name, term in self.terms.items()}
        parts = {"error": error, **{name: value.detach() for name, value in more.items()}, **parts}
        return AutoencoderLoss(error + penalty + sum(more.values()), parts, back)

    def error(self, back: Tensor, images: Tensor) -> Tensor:
        """The distance between reconstructed images and the originals."""
        back = back.to(images.dtype)  # autocast has no binary cross-entropy
        if back.shape != images.shape:
            raise InputError(
                f"the decoder made images {tuple(back.shape)} of images {tuple(images.shape)}: build it for their size"
            )
        if self.loss == "mse":
            return mse_loss(back, images)
        return binary_cross_entropy(back.clamp(1e-6, 1 - 1e-6), images)

    def _check(self, images: Tensor) -> None:
        if images.dim() != 4 or not images.is_floating_point():
            raise InputError(
                f"images must be numbers from 0 to 1, (batch, channels, height, width); given {images.dtype}"
                f" {tuple(images.shape)}: convert bytes with images.float() / 255"
            )
        # Checking every batch would synchronise with the GPU: only the first one is checked there.
        if not images.numel() or is_symbolic() or (self._range_checked and images.device.type != "cpu"):
            return
        self._range_checked = True
        low, high = (float(bound) for bound in images.detach().aminmax())
        if not (low >= 0.0 and high <= 1.0):
            raise InputError(f"images must lie between 0 and 1; given {low:g} to {high:g}: scale them first")


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
        return full_precision(self.code(self.features(images, self.code.in_features)))

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
        mean, log_variance = full_precision(self.code(self.features(images, self.code.in_features))).chunk(2, 1)
        return mean, log_variance.clamp(-20, 10)


class CodeNoise(Configurable):
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


def full_precision(x: Tensor) -> Tensor:
    """Convert 16-bit tensors, as autocast makes them, to float32."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
