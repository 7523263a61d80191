"""A continuous normalising flow with a condition
==============================================

A flow moves a Gaussian onto the data, and since it is an ODE its density is known exactly. This one is trained by
maximum likelihood on two circles. The radius is the control of the field: one flow gives p(x | radius) for each radius.
"""

import matplotlib.pyplot as plt
import torch

import ncode

torch.manual_seed(0)
NOISE = torch.distributions.Normal(0.0, 0.2)


def circles(count):  # points near a circle, whose radius is 0.7 or 2
    angle, radius = 2 * torch.pi * torch.rand(count, 1), 0.7 + 1.3 * torch.randint(2, (count, 1))
    return radius * torch.cat([angle.cos(), angle.sin()], 1) + NOISE.sample((count, 2)), radius


# %%
# `context=1` makes the radius an input of the field, and `DataControl` passes it on.

field = ncode.dynamics.MLP(2, hidden=(32, 32), time=True, controlled=(), context=1)
flow = ncode.flows.Flow(field, controller=ncode.DataControl(), rtol=1e-2, atol=1e-3)
optimiser, steps = torch.optim.Adam(flow.parameters(), 0.02), 150
for step in range(steps):
    loss = -flow.log_prob(*circles(128)).mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    optimiser.param_groups[0]["lr"] = 0.02 * (1 - step / steps)

# %%
# For comparison: no density has a larger mean log-likelihood than minus the entropy of the data. The entropy of a thin
# circle is about the logarithm of its length plus the entropy of the noise across it.

new, radius = circles(1000)
found = flow.log_prob(new, radius).mean().item()
entropy = (2 * torch.pi * radius).log() + NOISE.entropy()
print(f"log-likelihood per new point {found:.3f}, at best about {-entropy.mean():.3f}")

# %%
# One row per radius: samples on their way from the Gaussian, and the density.

side, times = torch.linspace(-3, 3, 60), torch.linspace(0, 1, 4)
figure, rows = plt.subplots(2, 5, figsize=(7.5, 3.4), sharex=True, sharey=True, layout="constrained")
for row, value in zip(rows, (0.7, 2.0), strict=True):
    condition = torch.full((3600, 1), value)
    with torch.no_grad():
        xs = flow.to_data(flow.base.sample((800,)), condition[:800], save_at=times).xs
        density = flow.log_prob(torch.cartesian_prod(side, side), condition).exp().reshape(60, 60).T
    for panel, t, x in zip(row, times, xs.unbind(1), strict=False):
        panel.scatter(*x.T, s=1, color="#006ba4")
        panel.set(title=f"t = {t:.2f}" if value < 1 else "", aspect="equal", xlim=(-3, 3), ylim=(-3, 3))
    row[4].imshow(density.numpy(), origin="lower", extent=(-3, 3, -3, 3), cmap="Blues")
    row[0].set_ylabel(f"radius {value}")
rows[0, 4].set_title("density")
plt.show()
