"""Trajectories of the Van der Pol oscillator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ncode import InputError, solve
from ncode.checks import check_count, check_number

from .streams import Randomness, as_generator


class Trajectories(NamedTuple):
    """States of one system at given times.

    >>> from ncode_lab.data import oscillation
    >>> seen = oscillation([0.0, 0.5, 1.0], mu=2.0)
    >>> seen.t, seen.x.shape, seen.mu
    (tensor([0.0000, 0.5000, 1.0000]), torch.Size([1, 3, 2]), tensor([2.]))
    """

    t: Tensor  # (T,)
    x: Tensor  # (batch, T, 2): position and velocity
    mu: Tensor  # (batch,)

    def to(self, device: str | torch.device) -> Trajectories:
        """The same on another device."""
        return Trajectories(*(tensor.to(device) for tensor in self))


def oscillation(
    times: Tensor | Sequence[float],
    mu: float | Tensor = 1.0,
    x0: Tensor | Sequence[float] = (2.0, 0.0),
    *,
    starts: int | None = None,
    noise: float = 0.0,
    generator: Randomness | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device | None = None,
) -> Trajectories:
    """The Van der Pol oscillator, x'' = mu (1 - x^2) x' - x, solved in float64 at a tolerance of 1e-10.

    Args:
        times: When to look, ascending, (T,); x0 is the state at the first.
        mu: How far it is from a sine: a number, or one a trajectory, (batch,). 0 to about 20; stiff beyond.
        x0: Position and velocity at first, (2,) or (batch, 2).
        starts: Draw that many x0 instead, uniformly from [-2, 2]^2.
        noise: Standard deviation of Gaussian noise on what is seen.
        generator: A torch.Generator or a seed, for `starts` and `noise`.
        dtype: Of the result.
        device: Where the result goes; the CPU, unless told.

    >>> import torch
    >>> from ncode_lab.data import oscillation
    >>> t, x, mu = oscillation(torch.linspace(0, 20, 101), mu=torch.tensor([0.5, 5.0]))
    >>> x.shape, bool(x[:, 50:, 0].abs().max() < 2.1)
    (torch.Size([2, 101, 2]), True)
    """
    t = _check_times(times)
    noise = check_number("noise", noise, low=0.0)
    if generator is None and (starts is not None or noise):
        raise InputError("starts and noise are drawn at random: give a generator, such as generator=0")
    drawn = None if generator is None else as_generator(generator)
    x0, mu = _check_start(x0 if starts is None else _draw(starts, drawn), mu)
    x = x0[:, None] if len(t) == 1 else _solve(t, x0, mu)
    if noise and drawn is not None:
        x = x + noise * torch.randn(x.shape, generator=drawn, device=drawn.device, dtype=x.dtype).cpu()
    return Trajectories(t.to(dtype), x.to(dtype), mu.to(dtype)).to(device or "cpu")


def _solve(t: Tensor, x0: Tensor, mu: Tensor) -> Tensor:
    def slope(t: Tensor, x: Tensor, mu: Tensor) -> Tensor:
        position, velocity = x.unbind(1)
        return torch.stack([velocity, mu * (1 - position**2) * velocity - position], 1)

    with torch.no_grad():
        found = solve(
            *(slope, x0, float(t[0]), float(t[-1])),
            **{"theta": mu, "save_at": t, "method": "dopri8", "rtol": 1e-10, "atol": 1e-10, "max_steps": 1_000_000},
        )
    assert found.xs is not None
    return found.xs


def _draw(starts: int, generator: torch.Generator | None) -> Tensor:
    assert generator is not None
    shape = (check_count("starts", starts), 2)
    return torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64).cpu() * 4 - 2


def _check_times(times: Tensor | Sequence[float]) -> Tensor:
    t = torch.as_tensor(times, dtype=torch.float64, device="cpu")
    if t.dim() != 1 or len(t) == 0 or not bool(t.isfinite().all()) or bool((t.diff() <= 0).any()):
        raise InputError(
            f"times must be finite, ascending numbers, (T,); given shape {tuple(t.shape)}, {t.tolist()!r:.60}"
        )
    return t


def _check_start(x0: Tensor | Sequence[float], mu: float | Tensor) -> tuple[Tensor, Tensor]:
    x = torch.as_tensor(x0, dtype=torch.float64, device="cpu").detach()
    m = torch.as_tensor(mu, dtype=torch.float64, device="cpu").detach()
    if x.dim() not in (1, 2) or x.shape[-1] != 2:
        raise InputError(f"x0 must be position and velocity, (2,) or (batch, 2); given shape {tuple(x.shape)}")
    if m.dim() > 1 or not bool(m.isfinite().all()):
        raise InputError(f"mu must be a finite number or (batch,) of them; given {m.tolist()!r:.60}")
    x, m = torch.atleast_2d(x), torch.atleast_1d(m)
    if 1 not in (len(x), len(m)) and len(x) != len(m):
        raise InputError(f"mu has {len(m)} numbers for {len(x)} starts: give one, or one a start")
    batch = max(len(x), len(m))
    return x.expand(batch, 2).contiguous(), m.expand(batch).contiguous()
