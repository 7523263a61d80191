"""Van der Pol: a control with an equation of its own
==================================================

An oscillation on the line turns back, and so no equation dx/dt = f(x) has it as a solution: with a constant control the
state can only run to a fixed point. If the control follows an equation that the state drives, one number is enough, and
gradients through the solver find it. This is figure 3 of the paper.
"""

import matplotlib.pyplot as plt
import torch

import ncode

# %%
# The oscillator x'' = mu (1 − x²) x' − x in Liénard's form: dx/dt = mu (x − x³/3 − theta), dtheta/dt = x / mu. We
# observe x alone, on [0, 8], and want to know what follows on [8, 16].

FITTED, END = 8.0, 16.0
x0 = torch.full((1, 1), 2.0)
rest = x0 - x0**3 / 3  # the control with which x is at rest at first


def solve(mu, theta, dynamic, t1=END, times=200):
    drive = (lambda t, x, theta: x / mu) if dynamic else None  # gradients reach mu, which both functions capture
    options = {"theta": theta, "feedback": drive, "save_at": torch.linspace(0, t1, times), "rtol": 1e-4}
    return ncode.solve(lambda t, x, theta: mu * (x - x**3 / 3 - theta), x0, 0.0, t1, **options)


true_mu = torch.tensor(1.5)
truth = solve(true_mu, rest, dynamic=True)

# %%
# Both models start from mu = 0.6. The fitted interval grows in three stages: over the whole of it, an oscillation of a
# wrong period has many local minima.


def fit(dynamic):
    log_mu, theta = torch.tensor(0.6).log().requires_grad_(), rest.clone().requires_grad_()
    fitted = [log_mu] if dynamic else [log_mu, theta]
    for count in (40, 70, 100):  # of the 100 saved times in [0, FITTED]
        optimiser = torch.optim.LBFGS(fitted, max_iter=8, line_search_fn="strong_wolfe")

        def loss(count=count, optimiser=optimiser):
            xs = solve(log_mu.exp(), theta, dynamic, truth.ts[0, count - 1].item(), count).xs
            optimiser.zero_grad()
            value = (xs - truth.xs[:, :count]).square().mean()
            value.backward()
            return value

        optimiser.step(loss)
    return log_mu.exp().detach(), solve(log_mu.exp().detach(), theta.detach(), dynamic)


fits = {"constant control": fit(dynamic=False), "dynamic control": fit(dynamic=True)}
ahead = {name: (sol.xs - truth.xs)[:, 100:].square().mean().item() for name, (_, sol) in fits.items()}
for name, (mu, _) in fits.items():
    print(f"{name}: mu {mu:.3f} (true {true_mu:.3f}), mean squared error ahead {ahead[name]:.1e}")

# %%
# With the dynamic control, mu is found, and the oscillation is predicted far beyond the fitted part.

figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 3.2), width_ratios=[2, 1], layout="constrained")
left.axvspan(FITTED, END, color="0.93")
left.text(FITTED + 0.2, -2.75, "not fitted", color="0.3")
left.plot(truth.ts[0], truth.xs[0, :, 0], color="0.6", linewidth=5, label="truth")
for (name, (_, sol)), colour in zip(fits.items(), ("#c85200", "#006ba4"), strict=True):
    left.plot(sol.ts[0], sol.xs[0, :, 0], color=colour, label=name)
    right.plot(sol.xs[0, :, 0], sol.thetas[0, :, 0], color=colour)
left.set(
    xlabel="time",
    ylabel="state x",
    title=f"learned µ = {fits['dynamic control'][0]:.3f}, true µ = {true_mu:.3f}",
    xlim=(0, END),
    ylim=(-3, 2.6),
)
figure.legend(loc="outside lower center", ncols=3, frameon=False)
right.set(xlabel="state x", ylabel="control θ", title="state and control")
plt.show()
