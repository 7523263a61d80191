"""A neural CDE reads irregular series with gaps
=============================================

Is a spiral drawn clockwise or anticlockwise? Each series has times of its own, a length of its own, and a third of its
values missing. A neural controlled differential equation, dz = f(z) dX, follows a smooth path X through what was
observed. Each sample has its own start, end and steps in the solve, so nothing is resampled to a common grid.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import ncode


def spirals(batch):
    times, y = torch.rand(batch, 24).add(0.2).cumsum(1) / 17, torch.arange(batch) % 2
    angle = 2 * torch.pi * (torch.rand(batch, 1) + 1.5 * times * (2 * y - 1)[:, None])
    points = torch.stack([angle.cos(), angle.sin()], 2) / (1 + times)[..., None]
    seen = torch.where(torch.rand_like(points) < 1 / 3, torch.nan, points)
    seen[torch.arange(24) >= torch.randint(12, 25, (batch, 1))] = torch.nan  # 12 to 24 observations
    return ncode.paths.hermite(seen, times, time=True), y, seen


# %%
# `hermite` makes a path X through the observations, skips values that are nan, and adds time as a channel. The block
# integrates f(z) dX/dt along it; the linear maps start the state z and read it out.

torch.manual_seed(0)
field = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8 * 3), nn.Tanh())
block = ncode.NCODE(ncode.dynamics.CDE(field, channels=3), ncode.InputControl(derivative=True), rtol=1e-2)
first, readout = nn.Linear(3, 8), nn.Linear(8, 1)
optimiser = torch.optim.Adam([*block.parameters(), *first.parameters(), *readout.parameters()], lr=0.01)
for _ in range(40):
    path, y, _ = spirals(48)
    sol = block.solve(first(path.evaluate(path.start)), path=path, t0=path.start, t1=path.end)
    loss = nn.functional.binary_cross_entropy_with_logits(readout(sol.x)[:, 0], y.float())
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()

# %%
# New spirals. Left: paths, with dots where both coordinates were seen. Right: beliefs, until each series ends.

path, y, seen = spirals(200)
ts = path.start[:, None] + torch.linspace(0, 1, 60) * (path.end - path.start)[:, None]
sol = block.solve(first(path.evaluate(path.start)), path=path, t0=path.start, t1=path.end, save_at=ts)
logits = readout(sol.xs)[..., 0].detach()
accuracy = ((logits[:, -1] > 0) == (y > 0)).float().mean().item()
print(f"{accuracy:.1%} of new spirals right at their end")

figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3.4), width_ratios=[2, 3], layout="constrained")
for kind, (name, colour) in enumerate((("clockwise", "#c85200"), ("anticlockwise", "#006ba4"))):
    left.plot(*path.evaluate(ts)[kind, :, 1:].T, color=colour, label=name)
    left.plot(*seen[kind].T, "o", color=colour)
    right.plot(ts[y == kind][:30].T, 100 * logits[y == kind][:30].sigmoid().T, color=colour, linewidth=0.8, alpha=0.6)
left.set(aspect="equal", title="paths through observations")
right.set(xlabel="time", ylabel="%", title="probability of anticlockwise")
figure.legend(loc="outside lower center", ncols=2, frameon=False)
plt.show()
