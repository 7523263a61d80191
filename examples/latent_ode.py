"""A latent ODE for irregular time series
======================================

Each series is observed at a few times of its own, with noise. A recurrent network reads the observations and sets the
start of a latent flow dz/dt = theta z and its matrix theta: an oscillator per series. Decoded, the flow gives a series
at any time, also after its last observation. Linear flows are solved exactly, by matrix exponentials.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import ncode

# %%
# Damped oscillations of random size, phase and frequency: 15 observations before t = 1, and 10 later ones, which are
# targets in training only.

torch.manual_seed(0)
SEEN = 15


def series(t, numbers):
    size, phase, speed = numbers[:, :, None].unbind(1)
    return (0.5 + size) * torch.exp(-0.5 * t) * torch.sin((5 + 5 * speed) * t + 2 * torch.pi * phase)


def observe(count):
    numbers, halves = torch.rand(count, 3), (torch.rand(count, SEEN), 1 + torch.rand(count, 10))
    times = torch.cat(halves, 1).sort(1).values
    return numbers, times, series(times, numbers) + 0.05 * torch.randn_like(times)


# %%
# The encoder's features are the context of the block: `OpenLoop` computes theta from them, not from z.


class LatentODE(nn.Module):
    def __init__(self, latent=4, width=64):
        super().__init__()
        self.encoder, self.start = nn.GRU(3, width, batch_first=True), nn.Linear(width, latent)
        trunk = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.block = ncode.NCODE(ncode.dynamics.Linear(latent), ncode.OpenLoop(trunk, scale=1.0))
        self.readout = nn.Linear(latent, 1)

    def forward(self, times, values, ts):
        gaps = times.diff(dim=1, prepend=torch.zeros(len(times), 1))
        features = self.encoder(torch.stack([values, times, gaps], 2).flip(1))[1][0]
        return self.readout(self.block.trajectory(self.start(features), ts, context=features))[..., 0]


model, (_, times, values), steps = LatentODE(), observe(2000), 450
optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
for step in range(steps):
    rows = torch.randint(len(times), (64,))
    found = model(times[rows, :SEEN], values[rows, :SEEN], times[rows])
    loss = (found - values[rows]).square().mean()
    optimiser.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    optimiser.param_groups[0]["lr"] = 0.02 * (1 - step / steps)

(numbers, times, values), ts = observe(300), torch.linspace(0, 2, 201)
true, found = series(ts, numbers), model(times[:, :SEEN], values[:, :SEEN], ts).detach()
share = [((found - true).square().mean(0) / true.square().mean(0))[half].mean().item() for half in (ts < 1, ts > 1)]
print(f"new series, error as a share of the variance: observed part {share[0]:.1%}, future {share[1]:.1%}")

# %%
# Four new series. The forecast is as good as the frequency that the encoder reads off the noisy dots.

figure, panels = plt.subplots(2, 2, figsize=(7.5, 3.8), sharex=True, sharey=True, layout="constrained")
for i, panel in enumerate(panels.flat):
    panel.axvspan(1, 2, color="0.93")
    panel.plot(ts, true[i], color="0.65", linewidth=4, label="truth")
    panel.plot(ts, found[i], color="#006ba4", label="latent ODE")
    panel.plot(times[i, :SEEN], values[i, :SEEN], "o", color="#c85200", markersize=4, label="observations")
figure.supxlabel("time (grey: the future)", fontsize="medium")
figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
plt.show()
