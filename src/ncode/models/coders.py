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

from ..checks import check_choice, check_count, check_fraction
from ..errors import InputError


class Architecture(NamedTuple):
    """Sizes of an encoder and a decoder.

    Attributes:
        channels, size: Channels and side length of the images.
        latent: Dimensions of the code.
        nonzeros: Non-zeros per row of AutoN-CODE's control.
        kernel: Kernel size of the convolutions; 0 for fully connected layers.
        down: Filters of the encoder's layers, each of which halves the image.
        up: Filters of the decoder's layers, each of which doubles it.

    >>> Architecture(channels=1, size=16, latent=8, nonzeros=1, kernel=4, down=(8, 16), up=(16, 8)).latent
    8
    """

    channels: int
    size: int
    latent: int
    nonzeros: int
    kernel: int
    down: tuple[int, ...]
    up: tuple[int, ...]


ARCHITECTURES = {
    "mnist": Architecture(1, 28, 25, 1, 0, (400,), (400,)),
    "cifar10": Architecture(3, 32, 128, 2, 4, (256, 512, 1024), (1024, 512, 256)),
    "celeba": Architecture(3, 64, 64, 10, 5, (256, 512, 1024), (1024, 512, 256, 128)),
}
ARCHITECTURES["fashion-mnist"] = ARCHITECTURES["mnist"]


def architecture(dataset: str, depth: int = 0, width: float = 1.0) -> Architecture:
    """The paper's architecture for a data set, or a deeper or narrower version of it.

    Args:
        dataset: "mnist", "fashion-mnist", "cifar10" or "celeba".
        depth: Further layers at the encoder's input, each with half the filters of the next (128-256-512-1024).
        width: Factor of all numbers of filters.

    >>> architecture("cifar10", depth=1).down
    (128, 256, 512, 1024)
    """
    paper = ARCHITECTURES[check_choice("data set", dataset, tuple(ARCHITECTURES))]
    if not 0 <= depth < paper.size.bit_length() - len(paper.down) or not width > 0:
        most = paper.size.bit_length() - len(paper.down) - 1
        raise InputError(
            f"images of {paper.size} x {paper.size} can be halved {most} times more than the paper does: depth must be"
            f" from 0 to {most}, and width above 0; given {depth} and {width}"
        )
    first = tuple(paper.down[0] // 2 ** (depth - i) for i in range(depth)) if paper.kernel else ()
    down = tuple(max(8, round(width * filters)) for filters in (*first, *paper.down))
    return paper._replace(down=down, up=tuple(max(8, round(width * filters)) for filters in paper.up))


class Encoder(nn.Module):
    """Map images to features.

    Args:
        architecture: Sizes of the layers.
        dropout: Fraction of the features that is dropped in training.

    Attributes:
        width: Number of features.

    >>> import torch
    >>> encoder = Encoder(architecture("cifar10", width=0.1))
    >>> encoder(torch.rand(2, 3, 32, 32)).shape == (2, encoder.width)
    True
    """

    def __init__(self, architecture: Architecture, dropout: float = 0.0):
        super().__init__()
        self.architecture, self.dropout = architecture, nn.Dropout(check_fraction("dropout", dropout))
        if architecture.kernel:
            self.layers, self.width = _down(architecture)
            _channels_last(self)
        else:
            pixels = architecture.channels * architecture.size**2
            self.layers = nn.Sequential(nn.Flatten(), *_dense((pixels, *architecture.down)))
            self.width = architecture.down[-1]

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, size, size) to (batch, width)."""
        n = self.architecture
        if images.shape[1:] != (n.channels, n.size, n.size):
            raise InputError(
                f"images must be (batch, {n.channels}, {n.size}, {n.size}); given {tuple(images.shape)}: resize or crop"
                " them, or build the coders for their size"
            )
        if not n.kernel:
            return self.dropout(self.layers(images))
        features = self.layers(images.contiguous(memory_format=torch.channels_last))
        # Channels are last in memory, so this order is flattened without a copy.
        return self.dropout(features.movedim(1, -1).flatten(1))


class Decoder(nn.Module):
    """Map codes to images between 0 and 1.

    Args:
        architecture: Sizes of the layers.
        latent: Dimensions of codes.
        standardise: Whether each component of a code is first normalised to mean 0 and deviation 1, over the batch in
            training and by running statistics later. The codes of a flow lie close together around its start, which
            would make training slow.

    >>> import torch
    >>> Decoder(architecture("celeba", width=0.1), 64)(torch.randn(2, 64)).shape
    torch.Size([2, 3, 64, 64])
    """

    def __init__(self, architecture: Architecture, latent: int, standardise: bool = True):
        super().__init__()
        self.architecture, self.latent = architecture, check_count("latent", latent)
        self.scale = nn.BatchNorm1d(latent, affine=False) if standardise else nn.Identity()
        n = architecture
        if n.kernel:
            side = n.size // 2 ** (len(n.up) - 1)
            self.layers = nn.Sequential(_Seed(latent, n.up[0], side), *_up(n))
            _channels_last(self)
        else:
            shape = (n.channels, n.size, n.size)
            pixels = n.channels * n.size**2
            dense = (*_dense((latent, *n.up)), nn.Linear(n.up[-1], pixels))
            self.layers = nn.Sequential(*dense, nn.Unflatten(1, shape))

    def forward(self, code: Tensor) -> Tensor:
        """(batch, m) to (batch, channels, size, size)."""
        if code.dim() != 2 or code.shape[1] != self.latent:
            raise InputError(f"codes must be (batch, {self.latent}); given {tuple(code.shape)}")
        pixels = self.layers(self.scale(code))
        # bfloat16 is too coarse for colours of 8 bits.
        return torch.sigmoid(pixels if pixels.dtype == torch.float64 else pixels.float())


class _Seed(nn.Module):
    """Map codes to the small images that the decoder enlarges."""

    def __init__(self, latent: int, filters: int, side: int):
        super().__init__()
        self.filters, self.side = filters, side
        self.dense = nn.Linear(latent, filters * side**2, bias=False)
        self.norm = nn.BatchNorm2d(filters)

    def forward(self, code: Tensor) -> Tensor:
        small = self.dense(code).unflatten(1, (self.side, self.side, self.filters)).movedim(-1, 1)
        return torch.relu(self.norm(small))


def _channels_last(module: nn.Module) -> None:
    """Store the kernels of convolutions with channels last."""
    for each in module.parameters():
        if each.dim() == 4:
            each.data = each.data.contiguous(memory_format=torch.channels_last)


def _dense(sizes: Sequence[int]) -> list[nn.Module]:
    return [layer for before, after in pairwise(sizes) for layer in (nn.Linear(before, after), nn.ReLU())]


def _down(n: Architecture) -> tuple[nn.Sequential, int]:
    layers: list[nn.Module] = []
    before, side = n.channels, n.size
    for filters in n.down:
        # No bias: the batch norm would remove it.
        layers += [nn.Conv2d(before, filters, n.kernel, stride=2, padding=(n.kernel - 1) // 2, bias=False)]
        layers += [nn.BatchNorm2d(filters), nn.ReLU(inplace=True)]
        before, side = filters, (side + 2 * ((n.kernel - 1) // 2) - n.kernel) // 2 + 1
    return nn.Sequential(*layers), before * side**2


def _up(n: Architecture) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for before, after in pairwise(n.up):
        padding = (n.kernel - 1) // 2
        grow = nn.ConvTranspose2d(
            before, after, n.kernel, stride=2, padding=padding, output_padding=n.kernel % 2, bias=False
        )
        layers += [grow, nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
    low, high = (n.kernel - 1) // 2, n.kernel // 2
    return [*layers, nn.ZeroPad2d((low, high, low, high)), nn.Conv2d(n.up[-1], n.channels, n.kernel)]
