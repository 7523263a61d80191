"""Infusions: the dynamics jump when a drug is given, at times of each patient's own, and the best times are found.

`jump_ts` makes steps end where an infusion starts or stops: none is passed over, and gradients reach these times.

    python examples/infusions.py
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor

import ncode

HOURS, TARGET = 24.0, 1.0


def concentration(t: Tensor, x: Tensor, theta: tuple[Tensor, Tensor]) -> Tensor:
    rate, starts = theta  # of elimination (batch,), and of the infusions (batch, 3)
    running = (starts < t[:, None]) & (t[:, None] < starts + 1)
    return 1.5 * running.sum(1, keepdim=True) - rate[:, None] * x


def solve(rate: Tensor, starts: Tensor, **options) -> ncode.Solution:
    jumps = torch.stack([starts, starts + 1], 2).flatten(1)
    theta = rate, starts.detach()  # the dynamics compare with these times; gradients reach them as jumps
    options |= {"cost": lambda t, x, theta: (x[:, 0] - TARGET).square(), "jump_ts": jumps}
    return ncode.solve(concentration, torch.zeros(3, 1).double(), 0.0, HOURS, theta=theta, **options)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path("."))
    arguments = parser.parse_args()
    rate = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    starts = torch.tensor([[1.0, 4.0, 7.0]] * 3, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([starts], lr=0.2)
    before = solve(rate, starts.detach(), dense=True)
    for _ in range(arguments.steps):
        optimiser.zero_grad()
        solve(rate, starts).cost.sum().backward()
        optimiser.step()
    after = solve(rate, starts.detach(), dense=True)
    print("mean squared deviation from the target:", before.cost.numpy() / HOURS, "->", after.cost.numpy() / HOURS)
    panels = (figure := Figure(figsize=(8, 3))).subplots(1, 2, sharey=True)
    for panel, solution, title in zip(panels, (before, after), ("before", "after"), strict=True):
        times = torch.linspace(0, HOURS, 400, dtype=torch.float64)
        panel.plot(times, solution(times)[:, :, 0].T, label=[f"elimination {k:.1f} per hour" for k in rate])
        panel.axhline(TARGET, color="grey", linestyle=":")
        panel.set(title=title, xlabel="hours", xlim=(0, HOURS))
    panels[0].set_ylabel("concentration")
    panels[1].legend(frameon=False, fontsize=8)
    figure.savefig(arguments.out / "infusions.png", dpi=150, bbox_inches="tight")


if __name__ == "__main__":
    main()
