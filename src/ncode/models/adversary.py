"""A critic that learns to tell images from what came back of them, and the pull that it exerts on the decoder.

A mean square makes images blur (see `texture`), and a distance of strengths mends what it measures: how much detail
there is, not whether it looks like anything. A critic D, trained beside the autoencoder, finds whatever is left that
tells one from the other (Goodfellow et al., 2014; for autoencoders, Larsen et al., 2016). It makes its own hinge loss
small,

    mean (1 - D(x))_+  +  mean (1 + D(y))_+,    y: what came back of images x,

and the decoder is pulled along p = d mean D(y) / dy. Critics grow more sure of themselves as they learn, and how long p
is says little, so only its direction counts: with the gradient e = d mean (y - x)^2 / dy of the error, the decoder goes
along

    -e + weight |e| / |p| p,

all images of a batch taken together. A weight of 1 means that the critic pulls as hard as the error does.

Both losses are one sum with one gradient, since the critic sees y as given, and the decoder sees p as given: the
training loop knows nothing of it. The critic's parts go with the model, and are not needed once it is trained.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..solve import InputError
from ..solve.problem import check_count
from .coders import channels_last

FILTERS = 64
SLOPE = 0.2  # of leaky ReLUs, below 0
GROUPS = 8


class Adversary(nn.Module):
    """The critic, and the sum of its loss and of its pull.

    A critic of patches: it judges each part of an image by itself (Isola et al., 2017), since what blur takes away is
    small.

    Args:
        channels: Of images.
        weight: How hard it pulls, relative to the error.
        filters: Of its first layer, a multiple of 4; each of two more has twice as many.

    >>> adversary, images = Adversary(3, weight=0.3), torch.rand(4, 3, 32, 32)
    >>> back = (images + 0.1 * torch.randn_like(images)).requires_grad_()
    >>> adversary(back, images).backward()
    >>> error = 2 * (back - images) / images.numel()
    >>> bool(torch.isclose(back.grad.norm(), 0.3 * error.norm()))
    True
    """

    def __init__(self, channels: int, weight: float, filters: int = FILTERS):
        super().__init__()
        if not weight > 0:
            raise InputError(f"the weight of an adversary must be above 0; given {weight}")
        if check_count("filters", filters) % 4:
            raise InputError(f"filters must be a multiple of 4; given {filters}")
        self.weight = weight
        layers: list[nn.Module] = [nn.Conv2d(channels, filters, 4, stride=2, padding=1), nn.LeakyReLU(SLOPE)]
        for wide in (filters, 2 * filters):
            layers += [nn.Conv2d(wide, 2 * wide, 4, stride=2, padding=1), nn.GroupNorm(GROUPS, 2 * wide)]
            layers += [nn.LeakyReLU(SLOPE)]
        self.critic = nn.Sequential(*layers, nn.Conv2d(4 * filters, 1, 3, padding=1))
        channels_last(self)

    def forward(self, back: Tensor, images: Tensor) -> Tensor:
        """The critic's loss, with the pull on what came back as the gradient of `back`: a scalar."""
        back = back.to(images.dtype)
        own, theirs = self.critic(torch.cat([back.detach(), images])).to(images.dtype).chunk(2)
        hinge = torch.relu(1 + own).mean() + torch.relu(1 - theirs).mean()
        return hinge + (self._pull(back.detach(), images) * (back.detach() - back)).sum()

    @torch.enable_grad()
    def _pull(self, back: Tensor, images: Tensor) -> Tensor:
        """Where the critic would have the images go, as long as `weight` says."""
        seen = back.requires_grad_()
        (pull,) = torch.autograd.grad(self.critic(seen).to(images.dtype).mean(), seen)
        error = (2 / images.numel()) * (seen.detach() - images)
        return pull * (self.weight * error.norm() / pull.norm().clamp(min=torch.finfo(pull.dtype).tiny))
