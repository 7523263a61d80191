"""Swing up a pendulum: optimal control by a running cost
======================================================

A motor that is too weak to lift a pendulum directly has to swing it. The torque over time is a path whose values are
sought; the solver integrates a running cost along with the state, and gradients of the cost reach the path. There are
local minima, so a batch of random torques is improved at once, and the best is kept.
"""

import matplotlib.pyplot as plt
import torch

import ncode

# %%
# The angle is 0 where the pendulum hangs, and the torque at most half of what holds it at the horizontal. The cost is
# the height that is missing, 0 to 2, plus a little for speed.

LIMIT, END, STARTS = 0.5, 10.0, 16
KNOTS = torch.linspace(0, END, 25)


def torque(t, path):
    return LIMIT * torch.tanh(path.evaluate(t)[..., 0])


def pendulum(t, x, path):
    angle, velocity = x.unbind(1)
    return torch.stack([velocity, torque(t, path) - torch.sin(angle)], 1)


def cost(t, x, path):
    angle, velocity = x.unbind(1)
    return 1 + torch.cos(angle) + 0.05 * velocity.square()


def swing(values, **options):
    path = ncode.paths.linear(values[..., None], KNOTS)
    return path, ncode.solve(pendulum, torch.zeros(len(values), 2), 0.0, END, theta=path, cost=cost, **options)


# %%
# Each start has the gradient of its own cost, since their sum is minimised.

torch.manual_seed(0)
values = torch.randn(STARTS, len(KNOTS)).requires_grad_()
optimiser, costs = torch.optim.Adam([values], lr=0.15), []
for _ in range(100):
    _, sol = swing(values, method="rk4", dt=0.25, gradient="autograd")
    optimiser.zero_grad()
    sol.cost.sum().backward()
    optimiser.step()
    costs.append(sol.cost.detach())

# %%
# The costs are computed once more with adaptive steps, to see that the torque does not exploit the coarse ones.

ts = torch.linspace(0, END, 201)
path, sol = swing(values.detach(), save_at=ts)
best = int(sol.cost.argmin())
height = -sol.xs[:, :, 0].cos()
standing = int((height[:, -20:].mean(1) > 0.95).sum())
print(f"running cost of the best start: {costs[0][best]:.1f} -> {sol.cost[best]:.1f}")
print(f"its height in the last second: {height[best, -20:].mean():.3f} of 1; {standing} of {STARTS} starts stand there")

figure, (top, bottom) = plt.subplots(2, 1, figsize=(7.5, 4), sharex=True, height_ratios=[3, 2], layout="constrained")
lines = top.plot(ts, height.T, color="0.85", linewidth=1)
lines[0].set_label("other starts")
top.plot(ts, height[best], color="#006ba4", linewidth=2.5, label="best start")
top.set(ylabel="height", yticks=[-1, 0, 1], yticklabels=["hangs", "horizontal", "stands"], xlim=(0, END))
top.legend(loc="upper left", frameon=False)
bottom.plot(ts, torque(ts[None], path.rows(torch.tensor([best])))[0], color="#c85200", linewidth=2)
for limit in (-LIMIT, LIMIT):
    bottom.axhline(limit, color="0.5", linestyle=":")
bottom.set(xlabel="time", ylabel="torque", ylim=(-0.65, 0.65))
plt.show()
