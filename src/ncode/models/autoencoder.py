"""`Autoencoder`, the base class of autoencoders of images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy, mse_loss

from .._modules import Configurable
from ..block.pretrained import Pretrained
from ..errors import InputError, check_choice, check_tensor, format_value
from .scaling import check_values


class TrainingCode(NamedTuple):
    """Codes as a model makes them in training.

    >>> import torch
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


class Autoencoder(Configurable, Pretrained, ABC):
    """Images to codes and back. Abstract: a subclass defines how a code is computed from features.

    Args:
        encoder: Maps images (batch, channels, height, width) to features (batch, width).
        decoder: Maps codes (batch, latent) to images between 0 and 1.
        loss: "mse" or "bce" (binary cross-entropy), the mean over all pixels.
        code_noise: A module that is applied to codes in training, before they are decoded. Default: nothing.
        terms: Further terms of the loss, by name: modules that map reconstructed images and the originals to a scalar.

    >>> import torch
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
        for name, module in (("encoder", encoder), ("decoder", decoder)):
            if not isinstance(module, nn.Module):
                raise InputError(f"{name} must be a module; given {format_value(module)}")
        if terms is not None and not isinstance(terms, Mapping):
            raise InputError(f"terms must be a dict of modules by name; given {format_value(terms)}")
        self.encoder, self.decoder = encoder, decoder
        self.loss = check_choice("loss", loss, ("mse", "bce"))
        self.code_noise = nn.Identity() if code_noise is None else code_noise
        self.terms = nn.ModuleDict(terms or {})

    def config(self) -> dict[str, Any]:
        arguments = super().config()
        return {**arguments, "terms": dict(self.terms.items())} if "terms" in arguments else arguments

    def card_lines(self) -> dict[str, str]:
        """Lines of the model card: what goes in and what comes out."""
        return {
            "Input": "images (batch, channels, height, width), floats from 0 to 1",
            "Use": "`model(images)` reconstructs; `model.encode(images)` gives codes, `model.decode(codes)` images",
        }

    @abstractmethod
    def encode(self, images: Tensor) -> Tensor:
        """The codes of images, (batch, latent), without noise."""

    @abstractmethod
    def training_code(self, images: Tensor) -> TrainingCode:
        """The codes of images in training, and the penalty for them."""

    def features(self, images: Tensor, width: int) -> Tensor:
        """The encoder's features of images, checked to be (batch, width)."""
        self._check_type(images)
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
        self._check_type(images)
        check_values(self, images, (0.0, 1.0))

    def _check_type(self, images: Tensor) -> None:
        if check_tensor("images", images).dim() != 4 or not images.is_floating_point():
            raise InputError(
                f"images must be numbers from 0 to 1, (batch, channels, height, width); given {images.dtype}"
                f" {tuple(images.shape)}: convert bytes with images.float() / 255"
            )
