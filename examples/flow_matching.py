"""Flow matching, and exact likelihoods
====================================

Flow matching trains a flow without solving an ODE: the field learns the velocity of straight lines from noise to data
(Lipman et al., 2023). What it gives is a continuous normalising flow all the same. So solves then give samples, exact
likelihoods of points, and the gradient of the log-likelihood, called the score.
"""

import matplotlib.pyplot as plt
import torch

import ncode

# %%
# Two half circles, and a field of x and t.

torch.manual_seed(0)


def moons(count):
    angle, sign = torch.pi * torch.rand(count, 1), torch.arange(count)[:, None] % 2 * 2 - 1
    return 1.5 * sign * torch.cat([angle.cos() - 0.5, angle.sin() - 0.25], 1) + 0.1 * torch.randn(count, 2)


flow = ncode.flows.Flow(ncode.dynamics.MLP(2, hidden=(64, 64, 64), activation="silu", time=True))
optimiser, steps = torch.optim.Adam(flow.parameters(), 5e-3), 2500
for step in range(steps):
    data, noise, t = moons(256), torch.randn(256, 2), torch.rand(256, 1)
    loss = (flow.velocity(t[:, 0], t * data + (1 - t) * noise) - (data - noise)).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    optimiser.param_groups[0]["lr"] = 5e-3 * (1 - step / steps)

# %%
# For comparison: the Gaussian with the mean and covariance of the data.

held_out, many = moons(500), moons(5000)
gaussian = torch.distributions.MultivariateNormal(many.mean(0), many.T.cov())
with torch.no_grad():
    found, plain = flow.log_prob(held_out).mean().item(), gaussian.log_prob(held_out).mean().item()
print(f"log-likelihood per new point: flow {found:.2f}, Gaussian {plain:.2f}")

# %%
# Right: the arrows of the score point to where the density grows.

figure, panels = plt.subplots(1, 3, figsize=(7.5, 2.8), sharex=True, sharey=True, layout="constrained")
with torch.no_grad():
    panels[0].scatter(*flow.sample(1000).T, s=2, color="#006ba4")
    side = torch.linspace(-3.2, 3.2, 60)
    density = flow.log_prob(torch.cartesian_prod(side, side)).exp().reshape(60, 60).T
for panel in panels[1:]:
    panel.imshow(density.numpy(), origin="lower", extent=(-3.2, 3.2, -3.2, 3.2), cmap="Blues")
grid = torch.cartesian_prod(side[3::6], side[3::6]).requires_grad_()
(score,) = torch.autograd.grad(flow.log_prob(grid).sum(), grid)
panels[2].quiver(*grid.detach().T, *torch.nn.functional.normalize(score).T, color="#c85200", scale=16)
for panel, title in zip(panels, ("samples", "density p(x)", "score"), strict=True):
    panel.set(title=title, aspect="equal", xlim=(-3.2, 3.2), ylim=(-3.2, 3.2))
plt.show()
