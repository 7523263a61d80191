"""Known physics with a missing term
=================================

A pendulum of which we know gravity, but not the friction. The dynamics are the known term plus a small network of the
velocity, trained together through the solver on noisy angles. What the network learned can then be read off: it is the
law of friction, where the data reach.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import ncode

# %%
# The truth has dry friction and drag, and is used for the data only: 8 swings of 6 seconds, seen at 30 times.


def friction(v):
    return -0.4 * torch.tanh(4 * v) - 0.08 * v * v.abs()


def swing(missing_term):
    def f(t, x, theta):
        angle, velocity = x.chunk(2, 1)
        return torch.cat([velocity, -4 * torch.sin(angle) + missing_term(velocity)], 1)

    return f


torch.manual_seed(0)
times, x0 = torch.linspace(0, 6, 30), torch.stack([torch.linspace(0.4, 2.6, 8), torch.zeros(8)], 1)
clean = ncode.solve(swing(friction), x0, 0.0, 6.0, save_at=times, rtol=1e-5).xs
angles = clean[:, :, 0] + 0.02 * torch.randn(8, 30)

# %%
# The network starts near 0, so training starts from the known physics.

network = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
nn.init.normal_(network[0].weight, std=2.0)  # units as steep as dry friction
nn.init.normal_(network[2].weight, std=0.01)
hybrid = swing(network)
optimiser = torch.optim.LBFGS(network.parameters(), max_iter=100, tolerance_change=0, line_search_fn="strong_wolfe")


def loss():
    optimiser.zero_grad()
    value = (ncode.solve(hybrid, x0, 0.0, 6.0, save_at=times).xs[:, :, 0] - angles).square().mean()
    value.backward()
    return value


optimiser.step(loss)

# %%
# Test: a swing of twice the length from another angle. The law is found only at velocities that occur in the data.

KNOWN, LEARNED = "known physics alone", "with the learned term"
start, ts = torch.tensor([[2.2, 0.0]]), torch.linspace(0, 12, 300)
fields = {"truth": swing(friction), KNOWN: swing(torch.zeros_like), LEARNED: hybrid}
swings = {name: ncode.solve(f, start, 0.0, 12.0, save_at=ts).xs[0, :, 0].detach() for name, f in fields.items()}
error = {name: (angle - swings["truth"]).square().mean().sqrt().item() for name, angle in swings.items()}
fastest = clean[:, :, 1].abs().max().item()
v = 1.5 * fastest * torch.linspace(-1, 1, 200)[:, None]
learned, inside = network(v).detach(), v.abs() < fastest
gap = (learned - friction(v))[inside].square().mean().sqrt().item()
print(f"error of the angle: {KNOWN} {error[KNOWN]:.3f}, {LEARNED} {error[LEARNED]:.3f}")
print(f"error of the learned friction: {gap:.3f}, of values up to {friction(v)[inside].max():.2f}")
figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3.3), width_ratios=[3, 2], layout="constrained")
styles = ({"color": "0.7", "linewidth": 5}, {"color": "#c85200", "linestyle": "--"}, {"color": "#006ba4"})
for (name, angle), style in zip(swings.items(), styles, strict=True):
    left.plot(ts, angle, label=name, **style)
left.set(xlabel="time", ylabel="angle", title="a new swing\n", ylim=(-2.5, 4.2))
left.legend(frameon=False, fontsize="small", loc="upper right")
right.axvspan(-fastest, fastest, color="0.93")
right.plot(v, friction(v), **styles[0], label="true friction")
right.plot(v, learned, **styles[2], label="learned term")
right.set(xlabel="velocity", title="the missing term\n(grey: velocities in the data)", ylim=(-2.2, 2.2))
right.legend(frameon=False, fontsize="small", loc="upper right")
plt.show()
