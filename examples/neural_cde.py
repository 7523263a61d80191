"""Tell clockwise from anticlockwise spirals by a neural CDE, from irregular samples of different lengths with gaps.

The hidden state follows dz = f(z) dX along a smooth path X through the observations. Each sample has its own times, its
own end and its own steps.
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import nn

import ncode


def spirals(batch, most=24):
    """Paths through noisy observations, labels, and the observations, a third of whose values is missing."""
    times = torch.rand(batch, most).add(0.2).cumsum(1) / (0.7 * most)
    y = torch.arange(batch) % 2
    angle = 2 * torch.pi * (torch.rand(batch, 1) + 1.5 * times * (2 * y - 1)[:, None])
    points = torch.stack([angle.cos(), angle.sin()], 2) / (1 + times)[..., None] + 0.05 * torch.randn(batch, most, 2)
    seen = torch.where(torch.rand_like(points) < 1 / 3, torch.nan, points)
    seen[torch.arange(most) >= torch.randint(most // 2, most + 1, (batch, 1))] = torch.nan  # shorter samples
    return ncode.paths.hermite(seen, times, time=True), y, seen


def main(steps: int, out: Path) -> None:
    torch.manual_seed(0)
    field = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8 * 3), nn.Tanh())
    block = ncode.NCODE(ncode.dynamics.CDE(field, channels=3), ncode.InputControl(derivative=True))
    first, readout = nn.Linear(3, 8), nn.Linear(8, 1)
    optimiser = torch.optim.Adam([*block.parameters(), *first.parameters(), *readout.parameters()], lr=5e-3)
    for _ in range(steps):
        path, y, _ = spirals(64)
        z = block.solve(first(path.evaluate(path.start)), path=path, t0=path.start, t1=path.end).x
        loss = nn.functional.binary_cross_entropy_with_logits(readout(z)[:, 0], y.float())
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
    path, y, seen = spirals(256)
    ts = path.start[:, None] + torch.linspace(0, 1, 60) * (path.end - path.start)[:, None]
    zs = block.solve(first(path.evaluate(path.start)), path=path, save_at=ts, t0=path.start, t1=path.end).xs
    logits = readout(zs)[..., 0].detach()
    print(f"loss {loss.item():.3f}, accuracy on new spirals {((logits[:, -1] > 0) == (y > 0)).float().mean():.3f}")
    left, right = (figure := Figure(figsize=(9, 3.6), layout="constrained")).subplots(1, 2)
    for i, colour in ((0, "#4c72b0"), (1, "#dd8452")):
        left.plot(*path.evaluate(ts)[i, :, 1:].T, colour)
        left.plot(*seen[i].T, "o", color=colour)
        right.plot(ts[y == i][:40].T, logits[y == i][:40].sigmoid().T, colour, alpha=0.3)
    left.set(title="two paths through observations", aspect="equal")
    right.set(title="probability of anticlockwise (which orange is)", xlabel="time")
    figure.savefig(out / "neural_cde.png", dpi=150)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path())
    main(**vars(parser.parse_args()))
