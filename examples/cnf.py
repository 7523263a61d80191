"""Train a continuous normalising flow by maximum likelihood, on two circles, with a density for each radius.

p(x | radius) is one flow, whose field has the radius as its control. Every sample has its own step sizes.

    python examples/cnf.py
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

import ncode


def circles(n: int) -> tuple[Tensor, Tensor]:
    """Points near a circle, and its radius."""
    angle, radius = 2 * torch.pi * torch.rand(n, 1), 0.5 + 1.5 * torch.randint(0, 2, (n, 1))
    return radius * torch.cat([angle.cos(), angle.sin()], 1) + 0.1 * torch.randn(n, 2), radius


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("."))
    options = parser.parse_args()
    torch.manual_seed(0)
    field = ncode.dynamics.MLP(2, hidden=(32, 32), time=True, controlled=(), context=1)
    flow = ncode.flows.Flow(field, controller=ncode.DataControl(), rtol=1e-4, atol=1e-4)
    optimiser = torch.optim.Adam(flow.parameters(), 5e-3)
    for step in range(1, options.steps + 1):
        x, radius = circles(256)
        loss = -flow.log_prob(x, radius).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 50 == 0 or step == options.steps:
            print(f"step {step}: log-likelihood per point {-loss.item():.3f}")

    side, times = torch.linspace(-3, 3, 80), torch.linspace(0, 1, 4)
    grid, figure = torch.cartesian_prod(side, side), Figure(figsize=(11, 4.8), layout="constrained")
    for row, value in zip(figure.subplots(2, 5, sharex=True, sharey=True), (0.5, 2.0), strict=True):
        with torch.no_grad():
            z, context = flow.base.sample((1500,)), torch.full((len(grid), 1), value)
            xs = flow.to_data(z, context[:1500], save_at=times).xs
            density = flow.log_prob(grid, context).exp().reshape(80, 80)
        for axes, t, x in zip(row, times, xs.unbind(1), strict=False):
            axes.scatter(*x.T, s=1)
            axes.set(title=f"radius {value}, t = {t:.2f}", aspect="equal", xlim=(-3, 3), ylim=(-3, 3))
        row[4].imshow(density.T.numpy(), origin="lower", extent=(-3, 3, -3, 3))
        row[4].set(title=f"p(x | radius {value})", aspect="equal")
    figure.savefig(options.out / "cnf.png", dpi=120)


if __name__ == "__main__":
    main()
