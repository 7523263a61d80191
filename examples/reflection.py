"""The reflection of a number
==========================

A neural ODE (NODE) moves all samples in one vector field. Its trajectories cannot cross, so no training teaches it to
map x to −x. In an N-CODE each sample has a field of its own: its weights are set by the initial value (open loop), or
driven by the state on the way (closed loop). Then trajectories may cross. This is figure 4 of the paper.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import ncode

# %%
# One network for all three models, dx/dt = f(x, theta) with 8 hidden units. They differ in the controller, which sets
# the weights theta.

torch.manual_seed(0)


def trunk():
    return nn.Sequential(nn.Linear(1, 16), nn.Tanh())


controllers = {
    "NODE": ncode.Static(),
    "N-CODE open loop": ncode.OpenLoop(trunk(), scale=1.0),
    "N-CODE closed loop": ncode.ClosedLoop(ncode.control.Feedback(trunk(), scale=1.0)),
}
options = {"method": "rk4", "dt": 0.1, "gradient": "autograd"}  # the fastest for so few numbers
models = {name: ncode.NCODE(ncode.dynamics.MLP(1, hidden=8), it, **options) for name, it in controllers.items()}

# %%
# Training: the state at t = 1 should be −x(0).

x0, errors = torch.linspace(-1, 1, 32)[:, None], {}
for name, model in models.items():
    optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 120)
    for _ in range(120):
        loss = (model(x0) + x0).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    errors[name] = loss.item()
    print(f"{name:20} mean squared error {errors[name]:.1e}")

# %%
# The lines are trajectories in the colour of their start, the dots are the targets. The grey arrows are the field that
# the sample from x(0) = 1 sees. The NODE does the best that one field can do: it sends all samples to 0.

figure, panels = plt.subplots(1, 3, figsize=(7.5, 3), sharey=True, layout="constrained")
ts, grid, starts = torch.linspace(0, 1, 41), torch.linspace(-1.3, 1.3, 31)[:, None], torch.linspace(-1, 1, 9)[:, None]
colours = plt.get_cmap("cividis")((starts[:, 0].numpy() + 1) / 2.2)
for panel, (name, model) in zip(panels, models.items(), strict=True):
    with torch.no_grad():
        sol = model.solve(starts, save_at=ts)
        seen = [{key: value[-1:, i] for key, value in sol.thetas.items()} for i in range(len(ts))]
        slopes = torch.cat([model.dynamics(ts[:1], grid, theta) for theta in seen], 1)
    field = (ts, grid[:, 0], torch.ones_like(slopes), slopes)
    panel.streamplot(*(part.numpy() for part in field), color="0.8", density=0.6, linewidth=0.7, arrowsize=0.7)
    for start, xs, colour in zip(starts, sol.xs, colours, strict=True):
        panel.plot(ts, xs[:, 0], color=colour, linewidth=2)
        panel.plot(1, -start, "o", color=colour, markersize=6, clip_on=False)
    panel.set(
        title=f"{name}\nerror {errors[name]:.0e}", xlabel="time", xlim=(0, 1), ylim=(-1.3, 1.3), xticks=(0, 0.5, 1)
    )
panels[0].set_ylabel("state x")
plt.show()
