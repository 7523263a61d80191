"""Maps that no neural ODE expresses
=================================

In one dimension, two trajectories of a NODE that start apart never meet. So the map that it makes of its input is
increasing, whatever the field and however large, and its error is at least that of the best non-decreasing fit to the
targets. This bound can be computed: it is isotonic regression. N-CODE is not bound by it, as Proposition 1 of the paper
says. Here both are trained on three maps, and measured against the bound.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import ncode


def increasing_fit(y):
    """The best non-decreasing fit to y (n,): neighbours that are out of order are pooled until none is."""
    pools = []  # mean and size
    for value in y.tolist():
        mean, size = value, 1
        while pools and pools[-1][0] > mean:
            other, more = pools.pop()
            mean, size = (mean * size + other * more) / (size + more), size + more
        pools.append((mean, size))
    return torch.cat([torch.full((size,), mean, dtype=y.dtype) for mean, size in pools])


def bound(y):
    """The mean squared error below which no NODE comes, for samples in increasing order."""
    return float((increasing_fit(y) - y).square().mean())


# %%
# The maps, and the models: one network f(t, x), whose weights are set in three ways.

torch.manual_seed(0)
x0 = torch.linspace(-1, 1, 41)[:, None]
maps = {"x → −x": -x0, "x → |x|": x0.abs(), "x → sin(4 x)": torch.sin(4 * x0)}


def controllers():
    trunk, other = (nn.Sequential(nn.Linear(inputs, 16), nn.Tanh()) for inputs in (1, 2))
    yield "NODE", ncode.Static()
    yield "N-CODE open loop", ncode.OpenLoop(trunk, scale=1.0)
    yield "N-CODE closed loop", ncode.ClosedLoop(ncode.control.Feedback(other, sees=("x", "t"), scale=1.0))


errors = {}
for target in maps.values():
    for name, controller in controllers():
        f = ncode.dynamics.MLP(1, hidden=8, time=True)
        model = ncode.NCODE(f, controller, method="rk4", dt=0.2, gradient="autograd")
        optimiser = torch.optim.Adam(model.parameters(), lr=0.03)
        for step in range(70):
            loss = (model(x0) - target).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            optimiser.param_groups[0]["lr"] = 0.03 * (1 - step / 70)
        errors.setdefault(name, []).append(loss.item())
bounds = [bound(target[:, 0]) for target in maps.values()]
for name, found in {"no NODE below": bounds, **errors}.items():
    print(f"{name:20}" + "".join(f"{label:>15} {error:.1e}" for label, error in zip(maps, found, strict=True)))

# %%
# The black lines are the bounds. A NODE reaches them at best. The closed loop passes below all of them, but has hardly
# learned the last map in so few training steps.

figure, panels = plt.subplots(1, 3, figsize=(7.5, 3.2), sharey=True, layout="constrained")
for i, (panel, label) in enumerate(zip(panels, maps, strict=True)):
    for k, (name, colour) in enumerate(zip(errors, ("0.6", "#006ba4", "#c85200"), strict=True)):
        panel.bar(k, errors[name][i], color=colour, label=name)
    panel.axhline(bounds[i], color="black", label="bound of every NODE")
    panel.set(title=label, yscale="log", xticks=[])
panels[0].set_ylabel("mean squared error")
figure.legend(
    *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize="small"
)
plt.show()
