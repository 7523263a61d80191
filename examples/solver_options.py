"""Options of the solver, by three neurons
=======================================

Three model neurons (FitzHugh and Nagumo) receive a short pulse. They show what a solve can be asked for: a state that
is a dict, a tolerance and saved times per sample, a limit on the step size, a callback, dense output, the times of
the steps, and what becomes of a sample that fails.
"""

import matplotlib.pyplot as plt
import torch

import ncode

# %%
# Samples with fewer saved times are padded with nan. The tolerance is (batch, 1): one per neuron.

END = 120.0
RTOL = torch.tensor([[1e-3], [1e-6], [1e-9]], dtype=torch.float64)
MEASURED = torch.tensor(
    [[20.0, 65.0, 100.0], [65.0, 75.0, torch.nan], [10.0, torch.nan, torch.nan]], dtype=torch.float64
)


def neuron(t, x, theta):
    v, w = x["voltage"], x["recovery"]
    current = torch.exp(-(((t - 60) / 0.5) ** 2))[:, None]  # the pulse
    return {"voltage": v - v**3 / 3 - w + 2 * current, "recovery": 0.08 * (v + 0.7 - 0.8 * w)}


# %%
# `max_dt` keeps long steps from jumping over the pulse. The third neuron, with the tightest tolerance, runs out of
# steps: `throw=False` reports it instead of raising an error, and `keep_last=True` keeps its last state.

x0 = {"voltage": torch.ones(3, 1, dtype=torch.float64), "recovery": torch.zeros(3, 1, dtype=torch.float64)}
attempts = []
accuracy = {"rtol": RTOL, "atol": 1e-3 * RTOL, "max_dt": 1.0}
failure = {"max_steps": 600, "throw": False, "keep_last": True}
output = {"save_at": MEASURED, "dense": True, "save_steps": True}
sol = ncode.solve(
    neuron, x0, 0.0, END, **accuracy, **failure, **output, callback=lambda t, x, accepted: attempts.append(t)
)
print(f"{len(attempts)} calls of the callback")
for i in range(3):
    print(f"neuron {i + 1}: {sol.status[i].name} at t = {sol.t[i]:.1f}, {sol.stats.steps[i]} steps")

# %%
# Each neuron takes its own steps (grey ticks), and a failing one does not stop the others.

figure, panels = plt.subplots(3, 1, figsize=(7.5, 4.5), sharex=True, layout="constrained")
times = torch.linspace(0, END, 1201, dtype=torch.float64)
for i, panel in enumerate(panels):
    panel.plot(times, sol(times)["voltage"][i, :, 0], color="#006ba4", label="voltage")
    panel.plot(MEASURED[i], sol.xs["voltage"][i, :, 0], "o", color="#c85200", label="saved times")
    panel.plot(sol.steps[i], torch.full_like(sol.steps[i], -2.8), "|", color="0.5", markersize=5, label="steps")
    panel.plot(sol.t[i], sol.x["voltage"][i], "k*", markersize=9, label="last state")
    panel.set_title(f"rtol = {RTOL[i].item():.0e}: {sol.status[i].name}", fontsize="medium", loc="left")
    panel.set(ylim=(-3.2, 2.5), xlim=(0, END + 2))
panels[2].set_xlabel("time")
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
plt.show()
