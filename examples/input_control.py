"""A driven system, learned from inputs and outputs
================================================

A pendulum that a torque u(t) drives, known from records of torque and motion only. The controller `InputControl` hands
u(t) to a network as its control, at every time that the solver asks for. Training sees random torques, linear between
knots; the test is a torque of another kind, an oscillation whose frequency rises.
"""

import matplotlib.pyplot as plt
import torch

import ncode

END, KNOTS = 6.0, torch.linspace(0, 6, 25)


def pendulum(t, x, torque):  # the truth, for the data
    angle, velocity = x.unbind(1)
    return torch.stack([velocity, torque[:, 0] - torch.sin(angle) - 0.3 * velocity], 1)


torch.manual_seed(0)
truth = ncode.NCODE(ncode.dynamics.Function(pendulum, (1,)), ncode.InputControl(), t1=END, rtol=1e-6)
path, x0 = ncode.paths.linear(1.5 * torch.randn(64, len(KNOTS), 1), KNOTS), 0.5 * torch.randn(64, 2)
observed = truth.trajectory(x0, KNOTS, path=path)

# %%
# The model: a network of the state and of u(t). It is trained on pieces of the records, from one knot to the one after
# next: each sample of a batch has its own start, end and path.

f = ncode.dynamics.MLP(2, hidden=32, controlled=(), context=1)
model = ncode.NCODE(f, ncode.InputControl(), method="rk4", dt=0.25, gradient="autograd")
optimiser, steps = torch.optim.Adam(model.parameters(), lr=0.02), 400
for step in range(steps):
    rows, first = torch.randint(64, (128,)), torch.randint(len(KNOTS) - 2, (128,))
    sol = model.solve(observed[rows, first], path=path.rows(rows), t0=KNOTS[first], t1=KNOTS[first + 2])
    loss = (sol.x - observed[rows, first + 2]).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    optimiser.param_groups[0]["lr"] = 0.02 * (1 - step / steps)

# %%
# The test is one long solve with adaptive steps, along a smooth path.

ts = torch.linspace(0, END, 200)
torque = ncode.paths.hermite(1.5 * torch.sin(0.7 * ts**2)[None, :, None], ts)
options = {"path": torque, "save_at": ts, "t1": END, "method": "dopri5", "dt": None}
true, found = (block.solve(torch.zeros(1, 2), **options).xs[0, :, 0].detach() for block in (truth, model))
error = ((true - found).square().mean() / true.square().mean()).sqrt().item()
print(f"error of the angle under the new torque: {error:.1%} of its size")

figure, (top, bottom) = plt.subplots(2, 1, figsize=(7.5, 3.8), sharex=True, height_ratios=[1, 2], layout="constrained")
top.plot(ts, torque.evaluate(ts[None])[0, :, 0], color="#c85200")
top.set(ylabel="torque u(t)", title="a learned pendulum under a torque that it has not seen")
bottom.plot(ts, true, color="0.65", linewidth=5, label="true angle")
bottom.plot(ts, found, color="#006ba4", label="predicted from u(t)")
bottom.set(xlabel="time", ylabel="angle", xlim=(0, END))
bottom.legend(loc="lower left", frameon=False)
plt.show()
