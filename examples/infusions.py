"""When to give a drug: gradients of jump times
============================================

The dynamics of a drug's concentration jump when an infusion starts or stops. With `jump_ts` steps end exactly there: no
infusion is passed over by a long step, and gradients reach the times themselves. Here the three infusions of three
patients, who eliminate the drug at different rates, move until the concentration stays near its target.
"""

import matplotlib.pyplot as plt
import torch

import ncode

# %%
# An infusion lasts one hour. The running cost is the squared distance from the target, integrated over a day.

HOURS, TARGET = 24.0, 1.0


def concentration(t, x, theta):
    rate, starts = theta  # of elimination (batch,), and of the infusions (batch, 3)
    running = (starts < t[:, None]) & (t[:, None] < starts + 1)
    return 1.5 * running.sum(1, keepdim=True) - rate[:, None] * x


def cost(t, x, theta):
    return (x[:, 0] - TARGET).square() / HOURS


def solve(rate, starts, **options):
    options["jump_ts"] = torch.stack([starts, starts + 1], 2).flatten(1)
    theta = rate, starts.detach()  # the dynamics compare with these times; gradients reach them as jumps
    return ncode.solve(concentration, torch.zeros(3, 1).double(), 0.0, HOURS, theta=theta, cost=cost, **options)


rate = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
begun = torch.tensor([[2.0, 6.0, 10.0]] * 3, dtype=torch.float64)
before = solve(rate, begun, dense=True)
starts = begun.clone().requires_grad_()
for _ in range(40):
    (slope,) = torch.autograd.grad(solve(rate, starts).cost.sum(), starts)
    starts = (starts - 7 * slope).detach().requires_grad_()
after = solve(rate, starts.detach(), dense=True)
for i in range(3):
    print(f"elimination {rate[i]:.1f} per hour: squared deviation {before.cost[i]:.2f} -> {after.cost[i]:.2f}")

# %%
# Bars: the infusions. The patient with the slowest elimination needs two: the third has moved to before the start.

figure, panels = plt.subplots(1, 2, figsize=(7.5, 3.6), sharey=True, layout="constrained")
times = torch.linspace(0, HOURS, 400, dtype=torch.float64)
for panel, title, sol, at in zip(panels, ("before", "after"), (before, after), (begun, starts.detach()), strict=True):
    for i, colour in enumerate(("#006ba4", "#c85200", "0.45")):
        panel.plot(times, sol(times)[i, :, 0], color=colour, label=f"elimination {rate[i]:.1f} per hour")
        panel.hlines([-0.15 - 0.12 * i] * 3, at[i], at[i] + 1, color=colour, linewidth=5)
    panel.axhline(TARGET, color="black", linestyle=":", label="target")
    panel.set(title=f"{title}: mean squared deviation {sol.cost.mean():.2f}", xlabel="hours", xlim=(0, HOURS))
panels[0].set_ylabel("concentration")
figure.legend(handles=list(panel.lines), loc="outside lower center", ncols=4, frameon=False, fontsize="small")
plt.show()
