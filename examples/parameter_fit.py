"""Fit parameters from many starts at once
=======================================

Which parameters made these data? A fit by gradients ends in a minimum near its start, so it takes many starts. In a
batch each sample has parameters, step sizes and gradients of its own: 100 fits need one solve per iteration, and a map
of the loss needs one more.
"""

import matplotlib.pyplot as plt
import torch

import ncode

# %%
# Prey x and predators y: dx/dt = x (1 − a y), dy/dt = y (b x − 0.5), seen at 30 times with 5 % noise.

torch.manual_seed(0)
STARTS, TRUE = 100, torch.tensor([1.0, 0.5])
times = torch.linspace(0.5, 15, 30)


def populations(t, x, theta):
    (prey, predators), (a, b) = x.unbind(1), theta.unbind(1)
    return torch.stack([prey * (1 - a * predators), predators * (b * prey - 0.5)], 1)


def solve(theta, ts=times):
    x0 = torch.tensor([[2.0, 0.5]]).expand(len(theta), 2)
    return ncode.solve(populations, x0, 0.0, 15.0, theta=theta, save_at=ts).xs


data = solve(TRUE[None]) * (1 + 0.05 * torch.randn(1, len(times), 2))


def losses(theta):
    return (solve(theta) - data).square().mean((1, 2))


# %%
# All starts are trained together. The losses are summed, so that each start follows the gradient of its own.

logs = torch.empty(STARTS, 2).uniform_(-1.4, 1.4).requires_grad_()
optimiser, track = torch.optim.Adam([logs], lr=0.05), [logs.detach().exp()]
for _ in range(70):
    loss = losses(logs.exp())
    optimiser.zero_grad()
    loss.sum().backward()
    optimiser.step()
    track.append(logs.detach().exp())
best = int(loss.argmin())
a, b = track[-1][best].tolist()
reached = loss.detach() < 1.5 * loss.min().detach()
error = (track[-1][best] / TRUE - 1).abs().max().item()
print(f"best fit: a = {a:.3f}, b = {b:.3f}, largest relative error {error:.1%}; {reached.sum()} starts have reached it")

# %%
# The map of the loss is one solve with a parameter set per pixel. Many starts with a large b end in valleys of bad
# fits, or have not left them after 70 iterations.

side = torch.linspace(-1.6, 1.6, 32).exp()
grid = losses(torch.cartesian_prod(side, side)).reshape(32, 32).T
figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3.6), layout="constrained")
left.contourf(side, side, grid.log(), levels=12, cmap="Greys")
paths = torch.stack(track).permute(2, 0, 1)
for ok, colour, label in ((False, "#ff800e", "elsewhere"), (True, "#5f9ed1", "at the best fit")):
    lines = left.loglog(*paths[:, :, reached == ok], color=colour, linewidth=0.7)
    lines[0].set_label(f"{label}: {int((reached == ok).sum())} starts")
left.set(xlabel="a", ylabel="b", title="paths of the fits over the loss")
left.set_xticks([0.25, 0.5, 1, 2, 4], ["¼", "½", "1", "2", "4"])
left.set_yticks([0.25, 0.5, 1, 2, 4], ["¼", "½", "1", "2", "4"])
left.minorticks_off()
left.legend(fontsize="small", loc="lower left")
fine = torch.linspace(0, 15, 200)
fit = solve(track[-1][best : best + 1], fine)[0]
for i, (name, colour) in enumerate((("prey", "#006ba4"), ("predators", "#c85200"))):
    right.plot(fine, fit[:, i], color=colour, label=name)
    right.plot(times, data[0, :, i], "o", color=colour, markersize=4)
right.set(xlabel="time", title="data and the best fit", ylim=(0, 3.3))
right.legend(frameon=False, ncols=2, loc="upper center")
plt.show()
