"""Proposition 1 of the paper, run: maps that N-CODE expresses and no neural ODE does, however large.

A neural ODE moves all samples in one field, dx/dt = f(t, x). In one dimension two of its trajectories that start apart
never meet, since each is the only one through its points: x0 < y0 implies x(t) < y(t), at any time. So the map that a
NODE makes of its input is strictly increasing, for every f, and even if f depends on time. Whatever it is to learn,
samples x_1 < ... < x_n with targets y_1, ..., y_n, its mean squared error is at least that of the best non-decreasing
fit,

    B(y) = min { 1/n sum_i (m_i - y_i)^2 : m_1 <= ... <= m_n },

which is isotonic regression, computed exactly by pooling neighbours that are out of order. The proof of the
proposition takes two flows,

    open loop      dx/dt = -theta,    theta = x(0)                        x(t) = x(0) (1 - t),
    closed loop    dx/dt = theta,     dtheta/dt = -x,   theta(0) = 0      x(t) = x(0) cos t,

in which all samples meet, at t = 1 and at t = pi / 2, and go on to the other side. Meeting is the limit of what a NODE
can do, and no bound keeps it away; going on is not. For a decreasing target c x, c < 0, the best fit is a constant, so
B = c^2 var(x). Here both flows are learned over an interval twice as long, at eight times, and the bound is the mean of
B over these. The third map is the plainest that is not injective, the fold x -> |x|. Its best fit is constant up to
sqrt(2) - 1 and x beyond, and B = 0.057 for x uniform on [-1, 1].

    python examples/proposition_1.py
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

import ncode

SAMPLES = 41


def increasing_fit(y: Tensor) -> Tensor:
    """The best non-decreasing fit to y (n,): neighbours that are out of order are pooled until none is."""
    pools: list[tuple[float, int]] = []  # mean and size
    for value in y.tolist():
        mean, size = value, 1
        while pools and pools[-1][0] > mean:
            other, more = pools.pop()
            mean, size = (mean * size + other * more) / (size + more), size + more
        pools.append((mean, size))
    return torch.cat([torch.full((size,), mean, dtype=y.dtype) for mean, size in pools])


def bound(targets: Tensor) -> float:
    """The mean squared error below which no NODE comes: targets (n, T), for samples in increasing order."""
    fits = torch.stack([increasing_fit(column) for column in targets.unbind(1)], 1)
    return float((fits - targets).square().mean())


def tasks() -> dict[str, tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]]:
    """The maps: times (T,), and the target at a time for an initial value."""
    return {
        "x(0) (1 - t)": (torch.linspace(0, 2, 9)[1:], lambda x, t: x * (1 - t)),
        "x(0) cos t": (torch.linspace(0, math.pi, 9)[1:], lambda x, t: x * torch.cos(t)),
        "|x(0)|": (torch.ones(1), lambda x, t: x.abs() * torch.ones_like(t)),
    }


def models(t1: float) -> dict[str, ncode.NCODE]:
    """One network f for all, which sees x and t; what differs is who sets its weights."""

    def f() -> ncode.dynamics.MLP:
        return ncode.dynamics.MLP(1, hidden=8, time=True)

    def trunk(seen: int) -> nn.Module:
        return nn.Sequential(nn.Linear(seen, 16), nn.Tanh())

    feedback = ncode.control.Feedback(trunk(2), sees=("x", "t"), scale=1.0)
    return {
        "NODE": ncode.NCODE(f(), ncode.Static(), t1=t1),
        "open-loop N-CODE": ncode.NCODE(f(), ncode.OpenLoop(trunk(1), scale=1.0), t1=t1),
        "closed-loop N-CODE": ncode.NCODE(f(), ncode.ClosedLoop(feedback), t1=t1),
    }


def train(model: ncode.NCODE, x0: Tensor, times: Tensor, targets: Tensor, steps: int) -> float:
    """Fit the targets (n, T), and return the mean squared error that is left."""
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        (model.trajectory(x0, times)[..., 0] - targets).square().mean().backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        return float((model.trajectory(x0, times)[..., 0] - targets).square().mean())


def run(name: str, steps: int, seed: int) -> dict[str, float]:
    """The bound for one of the maps, and what each model reaches."""
    torch.manual_seed(seed)
    times, target = tasks()[name]
    x0 = torch.linspace(-1, 1, SAMPLES)[:, None]
    targets = target(x0, times)
    reached = {"no NODE below": bound(targets)}
    for kind, model in models(float(times[-1])).items():
        reached[kind] = train(model, x0, times, targets, steps)
    return reached


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn maps that no neural ODE expresses.")
    parser.add_argument("--steps", type=int, default=150, help="training steps a model")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)  # such small tensors are slower on many
    print("mean squared error")
    for name in tasks():
        reached = run(name, args.steps, args.seed)
        print(f"{name:14}" + "".join(f"{kind:>20} {error:.1e}" for kind, error in reached.items()))


if __name__ == "__main__":
    main()
