"""Points with what is to be learned about them: the reflection and the concentric annuli."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ncode import InputError
from ncode.checks import check_count, check_number

from .streams import Randomness, as_generator


class Points(NamedTuple):
    """Points and their targets.

    >>> from ncode_lab.data import Points
    >>> x, y = Points(torch.zeros(3, 2), torch.arange(3)).to("cpu")
    >>> x.shape, y
    (torch.Size([3, 2]), tensor([0, 1, 2]))
    """

    x: Tensor  # (size, dim)
    y: Tensor  # (size, dim) values, or (size,) classes as int64

    def to(self, device: str | torch.device) -> Points:
        """The same on another device."""
        return Points(self.x.to(device), self.y.to(device))


def reflection(size: int, *, generator: Randomness, dim: int = 1, device: str | torch.device | None = None) -> Points:
    """Points of [-1, 1]^dim, uniformly, with y = -x: a map that no flow on the line can follow.

    Args:
        size: How many points.
        generator: A torch.Generator, on whose device the points are drawn, or a seed.
        dim: Their dimension.
        device: Where the result goes; where it was drawn, unless told.

    >>> from ncode_lab.data import reflection
    >>> x, y = reflection(100, generator=0)
    >>> x.shape, bool((y == -x).all())
    (torch.Size([100, 1]), True)
    """
    size, dim, generator = check_count("size", size), check_count("dim", dim), as_generator(generator)
    x = torch.rand(size, dim, generator=generator, device=generator.device) * 2 - 1
    return Points(x, -x).to(device or x.device)


def annuli(
    inner: int = 1000,
    outer: int = 2000,
    *,
    generator: Randomness,
    dim: int = 2,
    inner_radius: tuple[float, float] = (0.0, 0.5),
    outer_radius: tuple[float, float] = (1.0, 1.5),
    device: str | torch.device | None = None,
) -> Points:
    """A ball (class 0) and a shell around it (class 1), in random order; the numbers are those of the ANODE paper.

    The radius is (r_max - r_min) u^(1/dim) + r_min with u uniform: even in the ball, denser inside in the shell.
    Points to judge by come from a second call with the same generator, or with another seed.

    Args:
        inner, outer: How many points of each class.
        generator: A torch.Generator, on whose device the points are drawn, or a seed.
        dim: Their dimension.
        inner_radius, outer_radius: (r_min, r_max) of each class.
        device: Where the result goes; where it was drawn, unless told.

    >>> import torch
    >>> from ncode_lab.data import annuli
    >>> generator = torch.Generator().manual_seed(0)
    >>> train, held_out = annuli(generator=generator), annuli(100, 200, generator=generator)
    >>> train.x.shape, train.y.bincount(), float(train.x[train.y == 0].norm(dim=1).max()) <= 0.5
    (torch.Size([3000, 2]), tensor([1000, 2000]), True)
    """
    counts, dim = (check_count("inner", inner), check_count("outer", outer)), check_count("dim", dim)
    generator = as_generator(generator)
    radii = (_check_radius("inner_radius", inner_radius), _check_radius("outer_radius", outer_radius))
    x = torch.cat([_shell(n, dim, *radius, generator) for n, radius in zip(counts, radii, strict=True)])
    y = torch.arange(2, device=x.device).repeat_interleave(torch.tensor(counts, device=x.device))
    order = torch.randperm(len(x), generator=generator, device=x.device)
    return Points(x[order], y[order]).to(device or x.device)


def _shell(size: int, dim: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    # In float64, and rounded at the end: no point leaves its shell by more than the rounding of its coordinates.
    options = {"generator": generator, "device": generator.device, "dtype": torch.float64}
    direction = torch.nn.functional.normalize(torch.randn(size, dim, **options), dim=1)
    radius = (high - low) * torch.rand(size, 1, **options) ** (1 / dim) + low
    return (radius * direction).float()


def _check_radius(name: str, radius: tuple[float, float]) -> tuple[float, float]:
    if len(radius) != 2:
        raise InputError(f"{name} must be (r_min, r_max); given {radius!r}")
    low, high = (check_number(name, value, low=0.0) for value in radius)
    if low > high:
        raise InputError(f"{name} must be (r_min, r_max) with r_min at most r_max; given {radius!r}")
    return low, high
