"""Encoders and decoders of the paper's autoencoders (its table of architectures, after Ghosh et al., 2020).

An encoder maps images (batch, channels, size, size) to features (batch, width); a decoder maps codes (batch, m) to
images between 0 and 1. Where the table leaves a choice open:

- The code's own layer (FC 128 * 2 and so on) belongs to the model, not to the encoder.
- The table's decoder for CelebA ends at 32 x 32; ours has one layer more.
- The last layer, a transposed convolution of stride 1, is written as a convolution, which it equals.

Convolutions use the channels-last memory format, which is faster on GPUs in 16 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ncode import InputError
from ncode.errors import check_choice, check_count, check_number


class Architecture(NamedTuple):
    """Sizes of an encoder and a decoder."""

    channels: int  # of the images
    size: int  # side length of the images
    latent: int  # dimensions of the code
    nonzeros: int  # per row of AutoN-CODE's control
    kernel: int  # kernel size of the convolutions; 0 for fully connected layers
    down: tuple[int, ...]  # filters of the encoder's layers, each of which halves the image
    up: tuple[int, ...]  # filters of the decoder's layers, each of which doubles it


ARCHITECTURES = {
    "mnist": Architecture(1, 28, 25, 1, 0, (400,), (400,)),
    "cifar10": Architecture(3, 32, 128, 2, 4, (256, 512, 1024), (1024, 512, 256)),
    "celeba": Architecture(3, 64, 64, 10, 5, (256, 512, 1024), (1024, 512, 256, 128)),
}
ARCHITECTURES["fashion-mnist"] = ARCHITECTURES["mnist"]


def architecture(dataset: str, width: float = 1.0) -> Architecture:
    """The paper's architecture for "mnist", "fashion-mnist", "cifar10" or "celeba", with `width` times the filters."""
    paper = ARCHITECTURES[check_choice("data set", dataset, ARCHITECTURES)]
    check_number("width", width, low=0.0, strict=True)
    down, up = (tuple(max(8, round(width * filters)) for filters in sizes) for sizes in (paper.down, paper.up))
    return paper._replace(down=down, up=up)


def own_architecture(channels: int, size: int, width: float = 1.0) -> Architecture:
    """The paper's architecture that is nearest to images of another size.

    That of MNIST for small grey images, of CIFAR-10 for others below 48 pixels, and of CelebA for larger ones.
    """
    nearest = "mnist" if channels == 1 and size <= 32 else "cifar10" if size < 48 else "celeba"
    found = architecture(nearest, width)._replace(channels=channels, size=size)
    factor = 2 ** (len(found.up) - 1) if found.kernel else 1
    if size % factor or size < 8:
        better = max(8, round(size / factor) * factor)
        raise InputError(
            f"autoencoders halve images of {size} x {size} several times: their size must be a multiple of {factor}, at"
            f" least 8; --image-size {better} resizes them"
        )
    return found


class Encoder(nn.Module):
    """Map images (batch, channels, size, size) to features (batch, width)."""

    def __init__(self, architecture: Architecture):
        super().__init__()
        n = self.architecture = architecture
        if n.kernel:
            self.layers, self.width = _halving_layers(n)
            _store_channels_last(self)
        else:
            self.layers = nn.Sequential(nn.Flatten(), *_dense((n.channels * n.size**2, *n.down)))
            self.width = n.down[-1]

    def forward(self, images: Tensor) -> Tensor:
        n = self.architecture
        if images.shape[1:] != (n.channels, n.size, n.size):
            raise InputError(
                f"images must be (batch, {n.channels}, {n.size}, {n.size}); given {tuple(images.shape)}: resize or crop"
                " them, or build the coders for their size"
            )
        if not n.kernel:
            return self.layers(images)
        features = self.layers(images.contiguous(memory_format=torch.channels_last))
        # Channels are last in memory, so this order is flattened without a copy.
        return features.movedim(1, -1).flatten(1)


class Decoder(nn.Module):
    """Map codes (batch, latent) to images (batch, channels, size, size) between 0 and 1.

    With `standardise`, each component of a code is first normalised to mean 0 and deviation 1, over the batch in
    training and by running statistics later: the codes of a flow lie close together, which would make training slow.
    """

    def __init__(self, architecture: Architecture, latent: int, standardise: bool = True):
        super().__init__()
        n, self.latent = architecture, check_count("latent", latent)
        self.scale = nn.BatchNorm1d(latent, affine=False) if standardise else nn.Identity()
        if n.kernel:
            side = n.size // 2 ** (len(n.up) - 1)
            self.layers = nn.Sequential(_SmallImage(latent, n.up[0], side), *_doubling_layers(n))
            _store_channels_last(self)
        else:
            last = nn.Linear(n.up[-1], n.channels * n.size**2)
            self.layers = nn.Sequential(*_dense((latent, *n.up)), last, nn.Unflatten(1, (n.channels, n.size, n.size)))

    def forward(self, code: Tensor) -> Tensor:
        if code.dim() != 2 or code.shape[1] != self.latent:
            raise InputError(f"codes must be (batch, {self.latent}); given {tuple(code.shape)}")
        pixels = self.layers(self.scale(code))
        # bfloat16 is too coarse for colours of 8 bits.
        return torch.sigmoid(pixels if pixels.dtype == torch.float64 else pixels.float())


class _SmallImage(nn.Module):
    """Map codes to the small images that the decoder enlarges."""

    def __init__(self, latent: int, filters: int, side: int):
        super().__init__()
        self.filters, self.side = filters, side
        self.dense = nn.Linear(latent, filters * side**2, bias=False)
        self.norm = nn.BatchNorm2d(filters)

    def forward(self, code: Tensor) -> Tensor:
        small = self.dense(code).unflatten(1, (self.side, self.side, self.filters)).movedim(-1, 1)
        return torch.relu(self.norm(small))


def _store_channels_last(module: nn.Module) -> None:
    for kernel in module.parameters():
        if kernel.dim() == 4:
            kernel.data = kernel.data.contiguous(memory_format=torch.channels_last)


def _dense(sizes: Sequence[int]) -> list[nn.Module]:
    return [layer for before, after in pairwise(sizes) for layer in (nn.Linear(before, after), nn.ReLU())]


def _halving_layers(n: Architecture) -> tuple[nn.Sequential, int]:
    layers: list[nn.Module] = []
    padding, side = (n.kernel - 1) // 2, n.size
    for before, after in pairwise((n.channels, *n.down)):
        # No bias: the batch norm would remove it.
        layers += [nn.Conv2d(before, after, n.kernel, stride=2, padding=padding, bias=False)]
        layers += [nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
        side = (side + 2 * padding - n.kernel) // 2 + 1
    return nn.Sequential(*layers), n.down[-1] * side**2


def _doubling_layers(n: Architecture) -> list[nn.Module]:
    layers: list[nn.Module] = []
    low, high = (n.kernel - 1) // 2, n.kernel // 2
    for before, after in pairwise(n.up):
        layers += [nn.ConvTranspose2d(before, after, n.kernel, 2, low, output_padding=n.kernel % 2, bias=False)]
        layers += [nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    return [*layers, nn.ZeroPad2d((low, high, low, high)), nn.Conv2d(n.up[-1], n.channels, n.kernel)]
