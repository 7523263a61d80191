"""Encoders and decoders of the paper's autoencoders (its table of architectures, after Ghosh et al., 2020).

An encoder turns images (batch, channels, size, size) into features (batch, width); a decoder turns codes (batch, m)
into images between 0 and 1. Where the table leaves a choice open:

- The code's own layer (FC 128 * 2 and so on) belongs to the model, and not to the encoder.
- Three layers that double 8 x 8 once each, the last not at all, end at 32 x 32: CelebA's decoder gets one layer more.
- A transposed convolution of stride 1 is a convolution: the last layer is written as one.

Convolutions keep channels last, which is how GPUs compute them in 16 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..checks import check_choice, check_count
from ..ode import InputError
from .code_noise import check_part


class Architecture(NamedTuple):
    """The numbers of one data set.

    Attributes:
        channels, size: Of the images.
        latent: Dimensions of the code.
        nonzeros: Non-zeros a row of the control.
        kernel: Of the convolutions; 0 for the fully connected coders of MNIST.
        down: Filters of the encoder's layers, each of which halves the image.
        up: Filters of the decoder's layers, each of which doubles it.
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
    """The paper's numbers for a data set, or a deeper or narrower version of them.

    Args:
        dataset: Its name.
        depth: Layers that the encoder has beyond the paper's; each halves the filters before it (128-256-512-1024).
        width: Factor of all filters: 0.25 for a quick look.

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
    """Images to features.

    Args:
        numbers: Of the data set.
        dropout: Part of the features that is left out in training.

    >>> import torch
    >>> encoder = Encoder(architecture("cifar10", width=0.1))
    >>> encoder(torch.rand(2, 3, 32, 32)).shape == (2, encoder.width)
    True
    """

    def __init__(self, numbers: Architecture, dropout: float = 0.0):
        super().__init__()
        self.numbers, self.dropout = numbers, nn.Dropout(check_part("dropout", dropout))
        if numbers.kernel:
            self.layers, self.width = _down(numbers)
            channels_last(self)
        else:
            pixels = numbers.channels * numbers.size**2
            self.layers = nn.Sequential(nn.Flatten(), *_dense((pixels, *numbers.down)))
            self.width = numbers.down[-1]

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, size, size) to (batch, width)."""
        n = self.numbers
        if images.shape[1:] != (n.channels, n.size, n.size):
            raise InputError(
                f"images must be (batch, {n.channels}, {n.size}, {n.size}); given {tuple(images.shape)}: resize or crop"
                " them, or build the coders for their size"
            )
        if not n.kernel:
            return self.dropout(self.layers(images))
        features = self.layers(images.contiguous(memory_format=torch.channels_last))
        # Channels lie last: put last, they are flattened without a copy.
        return self.dropout(features.movedim(1, -1).flatten(1))


class Decoder(nn.Module):
    """Codes to images between 0 and 1.

    Args:
        numbers: Of the data set.
        latent: Dimensions of codes.
        standardise: Whether each value of a code is brought to mean 0 and deviation 1 over the batch first, and by
            running means once trained. The end of a flow lies around where the flow began: seen from 0, codes hardly
            differ, and training is slow.

    >>> import torch
    >>> Decoder(architecture("celeba", width=0.1), 64)(torch.randn(2, 64)).shape
    torch.Size([2, 3, 64, 64])
    """

    def __init__(self, numbers: Architecture, latent: int, standardise: bool = True):
        super().__init__()
        self.numbers, self.latent = numbers, check_count("latent", latent)
        self.scale = nn.BatchNorm1d(latent, affine=False) if standardise else nn.Identity()
        n = numbers
        if n.kernel:
            side = n.size // 2 ** (len(n.up) - 1)
            self.layers = nn.Sequential(Seed(latent, n.up[0], side), *_up(n))
            channels_last(self)
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
        # Colours have 8 bits, and so has bfloat16 in all.
        return torch.sigmoid(pixels if pixels.dtype == torch.float64 else pixels.float())


class Seed(nn.Module):
    """Codes to the small images that the decoder grows."""

    def __init__(self, latent: int, filters: int, side: int):
        super().__init__()
        self.filters, self.side = filters, side
        self.dense = nn.Linear(latent, filters * side**2, bias=False)
        self.norm = nn.BatchNorm2d(filters)

    def forward(self, code: Tensor) -> Tensor:
        """(batch, m) to (batch, filters, side, side), with channels last in memory."""
        small = self.dense(code).unflatten(1, (self.side, self.side, self.filters)).movedim(-1, 1)
        return torch.relu(self.norm(small))


def channels_last(module: nn.Module) -> None:
    """Lay the kernels of convolutions out with channels last; what they are stays the same."""
    for each in module.parameters():
        if each.dim() == 4:
            each.data = each.data.contiguous(memory_format=torch.channels_last)


def _dense(sizes: Sequence[int]) -> list[nn.Module]:
    return [layer for before, after in pairwise(sizes) for layer in (nn.Linear(before, after), nn.ReLU())]


def _down(n: Architecture) -> tuple[nn.Sequential, int]:
    layers: list[nn.Module] = []
    before, side = n.channels, n.size
    for filters in n.down:
        # A bias in front of a batch norm does nothing.
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
