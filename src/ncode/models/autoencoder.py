"""Autoencoders: the plain one and the variants that the paper compares with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy, mse_loss

from .._torch_private import is_symbolic
from ..checks import check_choice, check_count
from ..ode import InputError
from .code_noise import CodeNoise

LOSSES = ("mse", "bce")


class Coded(NamedTuple):
    """Codes in training, the price that the variant asks for them, and what is told about both.

    >>> Coded(torch.zeros(5, 8), 0.0, {"size": torch.tensor(0.0)}).code.shape
    torch.Size([5, 8])
    """

    code: Tensor
    price: Tensor | float
    parts: dict[str, Tensor]


class Judged(NamedTuple):
    """What training makes small, what it is made of, and the images that came back."""

    loss: Tensor
    parts: dict[str, Tensor]
    images: Tensor


class Autoencoder(nn.Module, ABC):
    """Images to codes and back. Abstract: a subclass says how a code is made of features.

    Args:
        encoder: Images (batch, channels, size, size) to features (batch, width).
        decoder: Codes (batch, latent) to images between 0 and 1.
        loss: "mse", the mean square over all pixels, or "bce", the binary cross-entropy (up to a constant the
            Kullback-Leibler divergence of pixels seen as probabilities), the mean over all pixels.
        disturb: What happens to codes in training before they are decoded: see `CodeNoise`. Nothing, unless told.
        terms: More terms of the loss, by name: modules that make a scalar of images that came back and of what they
            were, such as `Texture`.

    A variant of your own, whose codes have length 1:

    >>> class OnSphere(Autoencoder):
    ...     def encode(self, images):
    ...         return nn.functional.normalize(self.features(images, 8), dim=1)
    ...     def coded(self, images):
    ...         return Coded(self.encode(images), 0.0, {})
    >>> encoder = nn.Sequential(nn.Flatten(), nn.Linear(784, 8))
    >>> decoder = nn.Sequential(nn.Linear(8, 784), nn.Sigmoid(), nn.Unflatten(1, (1, 28, 28)))
    >>> model, images = OnSphere(encoder, decoder), torch.rand(5, 1, 28, 28)
    >>> model.judge(images).loss.backward()
    >>> model.encode(images).norm(dim=1).sum().round()
    tensor(5., grad_fn=<RoundBackward0>)
    """

    def __init__(
        self,
        encoder: nn.Module,
        decoder: nn.Module,
        loss: str = "mse",
        disturb: nn.Module | None = None,
        terms: Mapping[str, nn.Module] | None = None,
    ):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.measure = check_choice("loss", loss, LOSSES)
        self.disturb = CodeNoise() if disturb is None else disturb
        self.terms = nn.ModuleDict(terms or {})
        self._looked = False

    @abstractmethod
    def encode(self, images: Tensor) -> Tensor:
        """The codes of images, (batch, latent); the same each time."""

    @abstractmethod
    def coded(self, images: Tensor) -> Coded:
        """The codes of images in training, and what they cost."""

    def features(self, images: Tensor, width: int) -> Tensor:
        """What the encoder makes of images, (batch, width)."""
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
        """Images, there and back."""
        self._check(images)
        return self.decode(self.encode(images))

    def judge(self, images: Tensor) -> Judged:
        """The loss of a batch in training, with whatever the variant adds."""
        self._check(images)
        code, price, parts = self.coded(images)
        back = self.decode(self.disturb(code))
        error = self.error(back, images)
        more = {name: term(back, images) for name, term in self.terms.items()}
        parts = {"error": error, **{name: value.detach() for name, value in more.items()}, **parts}
        return Judged(error + price + sum(more.values()), parts, back)

    def error(self, back: Tensor, images: Tensor) -> Tensor:
        """How far images are from what came back of them."""
        back = back.to(images.dtype)  # autocast has no binary cross-entropy
        if back.shape != images.shape:
            raise InputError(
                f"the decoder made images {tuple(back.shape)} of images {tuple(images.shape)}: build it for their size"
            )
        if self.measure == "bce":
            return binary_cross_entropy(back.clamp(1e-6, 1 - 1e-6), images)
        return mse_loss(back, images)

    def _check(self, images: Tensor) -> None:
        """Refuse what are not images between 0 and 1."""
        if images.dim() != 4 or not images.is_floating_point():
            raise InputError(
                f"images must be numbers from 0 to 1, (batch, channels, height, width); given {images.dtype}"
                f" {tuple(images.shape)}: bytes become numbers by images.float() / 255"
            )
        # On a GPU looking would mean waiting: the first images speak for those that follow.
        if not images.numel() or is_symbolic() or (self._looked and images.device.type != "cpu"):
            return
        self._looked = True
        low, high = (float(bound) for bound in images.detach().aminmax())
        if not (low >= 0.0 and high <= 1.0):
            raise InputError(f"images must lie between 0 and 1; given {low:g} to {high:g}: scale them first")


class PlainAutoencoder(Autoencoder):
    """A code that is a linear map of the features.

    Args:
        encoder, decoder, loss, disturb, terms: As for `Autoencoder`.
        width: Features that the encoder returns.
        latent: Dimensions of the code.
        noise: Deviation of the noise that is added to the images in training, to be taken away again (a denoising
            autoencoder); 0 for none.
        sparsity: Weight of the mean absolute code in the loss (a sparse autoencoder).

    >>> import torch
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
        disturb: nn.Module | None = None,
        terms: Mapping[str, nn.Module] | None = None,
    ):
        super().__init__(encoder, decoder, loss, disturb, terms)
        if noise < 0 or sparsity < 0:
            raise InputError(f"noise and sparsity must be at least 0; given {noise} and {sparsity}")
        self.code = nn.Linear(width, check_count("latent", latent))
        self.noise, self.sparsity = noise, sparsity

    def encode(self, images: Tensor) -> Tensor:
        """The codes of images."""
        return full_precision(self.code(self.features(images, self.code.in_features)))

    def coded(self, images: Tensor) -> Coded:
        """The codes, of noisy images where asked for, and the price of large ones."""
        code = self.encode(images + self.noise * torch.randn_like(images) if self.noise else images)
        size = code.abs().mean()
        return Coded(code, self.sparsity * size, {"code size": size})


class VariationalAutoencoder(Autoencoder):
    """Codes with a Gaussian around each, held near N(0, I) (Kingma and Welling, 2013).

    The loss is the evidence bound, a pixel: the error plus beta / pixels times the Kullback-Leibler divergence.

    Args:
        encoder, decoder, width, latent, loss, disturb, terms: As for `PlainAutoencoder`.
        beta: Weight of the divergence. A decoder of variance s^2 has beta = 2 s^2 under "mse".

    >>> encoder = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU())
    >>> decoder = nn.Sequential(nn.Linear(8, 784), nn.Sigmoid(), nn.Unflatten(1, (1, 28, 28)))
    >>> model, images = VariationalAutoencoder(encoder, decoder, width=32, latent=8), torch.rand(2, 1, 28, 28)
    >>> drawn = [model.coded(images).code for _ in range(2)]
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
        disturb: nn.Module | None = None,
        terms: Mapping[str, nn.Module] | None = None,
    ):
        super().__init__(encoder, decoder, loss, disturb, terms)
        if not beta >= 0:
            raise InputError(f"beta must be at least 0; given {beta}")
        self.code = nn.Linear(width, 2 * check_count("latent", latent))
        self.beta = beta

    def encode(self, images: Tensor) -> Tensor:
        """The means of the codes."""
        return self._moments(images)[0]

    def coded(self, images: Tensor) -> Coded:
        """One code drawn an image, and the divergence."""
        mean, log_variance = self._moments(images)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
        return Coded(code, self.beta * divergence / images[0].numel(), {"divergence": divergence})

    def _moments(self, images: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = full_precision(self.code(self.features(images, self.code.in_features))).chunk(2, 1)
        return mean, log_variance.clamp(-20, 10)


def full_precision(x: Tensor) -> Tensor:
    """What autocast computed in 16 bits, in 32; anything else as it is.

    >>> full_precision(torch.zeros(1, dtype=torch.bfloat16)).dtype
    torch.float32
    """
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
