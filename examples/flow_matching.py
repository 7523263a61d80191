"""Train a flow by flow matching, which solves no ODE, then compute exact likelihoods and their gradients.

The field learns the velocity of straight lines from noise to data (Lipman et al., 2023).

    python examples/flow_matching.py
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

import ncode


def moons(n: int) -> Tensor:
    """Two interleaved half circles, with noise."""
    angle, sign = torch.pi * torch.rand(n, 1), torch.arange(n)[:, None] % 2 * 2 - 1
    return 1.5 * sign * torch.cat([angle.cos() - 0.5, angle.sin() - 0.25], 1) + 0.1 * torch.randn(n, 2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--out", type=Path, default=Path("."))
    options = parser.parse_args()
    torch.manual_seed(0)
    flow = ncode.flows.Flow(ncode.dynamics.MLP(2, hidden=(64, 64, 64), activation="silu", time=True))
    optimiser = torch.optim.Adam(flow.parameters(), 2e-3)
    for _ in range(options.steps):
        data, noise, t = moons(512), torch.randn(512, 2), torch.rand(512, 1)
        loss = (flow.velocity(t[:, 0], t * data + (1 - t) * noise) - (data - noise)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    held_out = moons(1000).requires_grad_()
    log_prob = flow.log_prob(held_out)
    (score,) = torch.autograd.grad(log_prob.sum(), held_out)
    print(f"log-likelihood per point {log_prob.mean():.3f}, mean length of the score {score.norm(dim=1).mean():.2f}")

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3, sharex=True, sharey=True)
    left.scatter(*flow.sample(2000).T, s=2)
    side = torch.linspace(-3, 3, 100)
    with torch.no_grad():
        density = flow.log_prob(torch.cartesian_prod(side, side)).exp().reshape(100, 100)
    middle.imshow(density.T.numpy(), origin="lower", extent=(-3, 3, -3, 3))
    grid = torch.cartesian_prod(side[5::10], side[5::10]).requires_grad_()
    (arrows,) = torch.autograd.grad(flow.log_prob(grid).sum(), grid)
    right.quiver(*grid.detach().T, *(arrows / arrows.norm(dim=1, keepdim=True)).T, arrows.norm(dim=1), scale=22)
    for axes, title in ((left, "samples"), (middle, "density p(x)"), (right, "score, the gradient of log p(x)")):
        axes.set(title=title, aspect="equal")
    figure.savefig(options.out / "flow_matching.png", dpi=120)


if __name__ == "__main__":
    main()
