"""A disc inside a ring
====================

No line separates the points of a disc from those of the ring around it, so a flow should move them until one does. The
flow of a NODE is continuous and so is its inverse: it cannot take the disc out of the ring, however long it is trained.
An N-CODE has a flow per point, and can. The accuracy on a few points hides this difference; a circle shows it.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import ncode

# %%
# The data, and a circle inside the ring, which training does not see.

torch.manual_seed(0)


def polar(radius, angle):
    return radius[:, None] * torch.stack([angle.cos(), angle.sin()], 1)


y = torch.arange(300) % 3 > 0  # False: disc, True: ring, which has twice as many points
r = torch.rand(300)
points = polar(torch.where(y, 1 + 0.5 * r, 0.5 * r.sqrt()), 2 * torch.pi * torch.rand(300))
circle = polar(torch.full((2000,), 1.25), torch.linspace(0, 2 * torch.pi, 2000))

# %%
# Two models that differ in what sets the weights of the field, each with a linear read-out.

gamma = nn.Sequential(nn.Linear(2, 16), nn.Tanh())
controllers = {"NODE": ncode.Static(), "N-CODE open loop": ncode.OpenLoop(gamma, scale=1.0)}
readouts, ends, accuracy, wrong = {}, {"data": (points, circle)}, {}, {}
for name, controller in controllers.items():
    block = ncode.NCODE(ncode.dynamics.MLP(2, hidden=16), controller, method="rk4", dt=0.1, gradient="autograd")
    readout = nn.Linear(2, 1)
    optimiser = torch.optim.Adam([*block.parameters(), *readout.parameters()], lr=0.02)
    for _ in range(150):
        loss = nn.functional.binary_cross_entropy_with_logits(readout(block(points))[:, 0], y.float())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        readouts[name], ends[name] = readout, (block(points), block(circle))
        accuracy[name] = ((readout(ends[name][0])[:, 0] > 0) == y).float().mean().item()
        wrong[name] = (readout(ends[name][1]) < 0).float().mean().item()
    print(f"{name:17} right for {accuracy[name]:.1%} of the points, wrong for {wrong[name]:.2%} of the circle")

# %%
# Where the points and the circle end, and the line of the read-out. The NODE stretches the ring and lets the disc lie
# in a bay of it, but the circle still runs around the disc, and so it crosses the line twice.

figure, panels = plt.subplots(1, 3, figsize=(7.5, 3.2), layout="constrained")
for panel, (name, (x, ring)) in zip(panels, ends.items(), strict=True):
    panel.plot(*ring.T, color="0.4", linewidth=1, label="a circle in the ring")
    for label, colour in ((True, "#5f9ed1"), (False, "#c85200")):
        panel.scatter(*x[y == label].T, s=7, color=colour, label="ring" if label else "disc")
    panel.set(
        xticks=[], yticks=[], title="data" if name == "data" else f"{name}\n{wrong[name]:.1%} of the circle wrong"
    )
    if name in readouts:
        (a, b), c = readouts[name].weight[0].tolist(), readouts[name].bias.item()
        through = (-c * a / (a * a + b * b), -c * b / (a * a + b * b))
        panel.axline(through, slope=-a / b, color="black", linestyle="--", linewidth=1, label="line of the read-out")
figure.legend(*panels[1].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
plt.show()
