"""Generated problems: the reflection, the concentric annuli, memory episodes, and the Van der Pol oscillator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ncode import InputError, solve
from ncode.errors import check_count, check_number

from .sampling import Randomness, as_generator, move


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
        """Copy to a device."""
        return Points(self.x.to(device), self.y.to(device))


def reflection(size: int, *, generator: Randomness, dim: int = 1) -> Points:
    """Draw points uniformly from [-1, 1]^dim, with targets y = -x: a map that no flow on the line can follow.

    Args:
        size: Number of points.
        generator: A torch.Generator, on whose device the points are drawn, or a seed.
        dim: Their dimension.

    >>> from ncode_lab.data import reflection
    >>> x, y = reflection(100, generator=0)
    >>> x.shape, bool((y == -x).all())
    (torch.Size([100, 1]), True)
    """
    size, dim, generator = check_count("size", size), check_count("dim", dim), as_generator(generator)
    x = torch.rand(size, dim, generator=generator, device=generator.device) * 2 - 1
    return Points(x, -x)


def annuli(inner: int = 1000, outer: int = 2000, *, generator: Randomness, dim: int = 2) -> Points:
    """Draw points of a ball (class 0) and of a shell around it (class 1), in random order, as in the ANODE paper.

    The radius is (r_max - r_min) u^(1/dim) + r_min with u uniform: even in the ball, denser inside in the shell. The
    ball reaches from 0 to 0.5, the shell from 1 to 1.5.

    Args:
        inner, outer: Number of points of each class.
        generator: A torch.Generator, on whose device the points are drawn, or a seed.
        dim: Their dimension.

    >>> from ncode_lab.data import annuli
    >>> x, y = annuli(generator=0)
    >>> x.shape, y.bincount(), float(x[y == 0].norm(dim=1).max()) <= 0.5
    (torch.Size([3000, 2]), tensor([1000, 2000]), True)
    """
    counts, dim = (check_count("inner", inner), check_count("outer", outer)), check_count("dim", dim)
    generator = as_generator(generator)
    x = torch.cat([_shell(counts[0], dim, 0.0, 0.5, generator), _shell(counts[1], dim, 1.0, 1.5, generator)])
    y = torch.arange(2, device=x.device).repeat_interleave(torch.tensor(counts, device=x.device))
    order = torch.randperm(len(x), generator=generator, device=x.device)
    return Points(x[order], y[order])


def _shell(size: int, dim: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    # In float64 and rounded at the end, so that no point leaves its shell by more than the rounding of coordinates.
    options = {"generator": generator, "device": generator.device, "dtype": torch.float64}
    direction = torch.nn.functional.normalize(torch.randn(size, dim, **options), dim=1)
    radius = (high - low) * torch.rand(size, 1, **options) ** (1 / dim) + low
    return (radius * direction).float()


class Episodes(NamedTuple):
    """A batch of memory episodes: patterns shown one after another, and a degraded one to complete.

    >>> from ncode_lab.data import episodes
    >>> shown = episodes(2, bits=4, patterns=3, generator=0)
    >>> shown.order.shape, bool((shown.query * shown.target >= 0).all())
    (torch.Size([2, 6]), True)
    """

    stimuli: Tensor  # the patterns as shown, (batch, times * patterns, bits), each -1 or 1
    query: Tensor  # the degraded pattern, (batch, bits), each -1, 0 or 1
    target: Tensor  # the complete pattern, (batch, bits)
    order: Tensor  # index of the pattern shown at each time, (batch, times * patterns), int64
    asked: Tensor  # index of the pattern to complete, (batch,), int64

    def to(self, device: str | torch.device) -> Episodes:
        """Copy to a device."""
        return Episodes(*(move(tensor, device) for tensor in self))


def episodes(
    batch: int, bits: int = 100, patterns: int = 3, *, generator: Randomness, times: int = 2, degradation: float = 0.5
) -> Episodes:
    """Draw episodes of the memory task of Miconi et al. (2018): see patterns, then complete a degraded one of them.

    All patterns are shown once in random order, then again in another random order, `times` in all. The query is one
    of the patterns with a fraction of its bits set to 0.

    Args:
        batch: Number of episodes.
        bits: Length of a pattern.
        patterns: Patterns per episode.
        generator: A torch.Generator, on whose device everything is drawn, or a seed.
        times: Presentations per pattern.
        degradation: The fraction of bits set to 0, from 0 to 1; their number is exact, after rounding.

    >>> from ncode_lab.data import episodes
    >>> shown = episodes(8, bits=100, patterns=3, generator=0)
    >>> shown.stimuli.shape, shown.query.shape, (shown.query == 0).sum(1).unique()
    (torch.Size([8, 6, 100]), torch.Size([8, 100]), tensor([50]))
    """
    for name, value in (("batch", batch), ("bits", bits), ("patterns", patterns), ("times", times)):
        check_count(name, value)
    if check_number("degradation", degradation, low=0.0) > 1:
        raise InputError(f"degradation is a fraction of the bits, from 0 to 1; given {degradation}")
    generator = as_generator(generator)
    where = {"generator": generator, "device": generator.device}
    all_patterns = torch.randint(2, (batch, patterns, bits), **where).float() * 2 - 1
    order = torch.rand(batch, times, patterns, **where).argsort(2).flatten(1)
    asked = torch.randint(patterns, (batch,), **where)
    samples = torch.arange(batch, device=generator.device)
    stimuli, target = all_patterns[samples[:, None], order], all_patterns[samples, asked]
    erased = torch.rand(batch, bits, **where).argsort(1)[:, : round(degradation * bits)]
    return Episodes(stimuli, target.scatter(1, erased, 0.0), target, order, asked)


class Trajectory(NamedTuple):
    """States of the Van der Pol oscillator at given times."""

    t: Tensor  # (T,)
    x: Tensor  # (T, 2): position and velocity


def oscillation(
    times: Tensor | Sequence[float],
    mu: float = 1.0,
    x0: tuple[float, float] = (2.0, 0.0),
    dtype: torch.dtype = torch.float32,
) -> Trajectory:
    """Solve the Van der Pol oscillator, x'' = mu (1 - x^2) x' - x, in float64 at a tolerance of 1e-10.

    Beyond mu = 10 it is stiff: then by rodas5p, at a tolerance of 1e-8.

    Args:
        times: Ascending times (T,); x0 is the state at the first.
        mu: The nonlinearity, from 0 to about 1000.
        x0: Initial position and velocity.
        dtype: Of the result.

    >>> import torch
    >>> from ncode_lab.data import oscillation
    >>> t, x = oscillation(torch.linspace(0, 20, 101), mu=5.0)
    >>> x.shape, bool(x[50:, 0].abs().max() < 2.1)
    (torch.Size([101, 2]), True)
    """
    t = torch.as_tensor(times, dtype=torch.float64, device="cpu")
    if t.dim() != 1 or len(t) == 0 or not bool(t.isfinite().all()) or bool((t.diff() <= 0).any()):
        raise InputError(
            f"times must be finite, ascending numbers, (T,); given shape {tuple(t.shape)}, {t.tolist()!r:.60}"
        )
    start = torch.tensor([x0], dtype=torch.float64, device="cpu")
    if start.shape != (1, 2):
        raise InputError(f"x0 must be position and velocity; given {x0!r:.60}")
    x = start if len(t) == 1 else _solve_van_der_pol(t, start, check_number("mu", mu, low=0.0))
    return Trajectory(t.to(dtype), x.to(dtype))


@torch.no_grad()
def _solve_van_der_pol(t: Tensor, x0: Tensor, mu: float) -> Tensor:
    def van_der_pol(t: Tensor, x: Tensor, theta: None) -> Tensor:
        position, velocity = x.unbind(1)
        return torch.stack([velocity, mu * (1 - position**2) * velocity - position], 1)

    method, tolerance = ("dopri8", 1e-10) if mu <= 10 else ("rodas5p", 1e-8)
    options = {"method": method, "rtol": tolerance, "atol": 1e-10, "max_steps": 1_000_000}
    solution = solve(van_der_pol, x0, float(t[0]), float(t[-1]), save_at=t, **options)
    assert solution.xs is not None
    return solution.xs[0]
