"""Fit the rates of a stiff reaction
=================================

Robertson's reaction has rates that differ by nine orders of magnitude: A → B is slow, B + B → C + B fast, and
B + C → A + C in between. Explicit methods need too many steps for such a problem, and ncode says so. With an implicit
method, gradients through its accepted steps fit all three rates to data from t = 0.0001 to 100,000.
"""

import matplotlib.pyplot as plt
import torch

import ncode

RATES, SCALES = torch.tensor([[0.04, 3e7, 1e4], [1.0, 1e-5, 1.0]], dtype=torch.float64)  # scales of A, B and C
TIMES = torch.logspace(-4, 5, 28, dtype=torch.float64)


def reaction(t, x, rates):
    a, b, c = x.unbind(1)
    slow, fast, back = rates[:, 0] * a, rates[:, 1] * b * b, rates[:, 2] * b * c
    return torch.stack([back - slow, slow - back - fast, fast], 1)


def concentrations(log_rates, method="rodas5p", **options):
    x0, rates = SCALES.new_tensor([1.0, 0.0, 0.0]).expand(len(log_rates), 3), RATES * log_rates.exp()
    return ncode.solve(reaction, x0, 0.0, 1e5, theta=rates, save_at=TIMES, method=method, atol=1e-9, **options)


def loss(log_rates, data):
    value = ((concentrations(log_rates).xs - data) / SCALES).square().mean()
    (log_rates.grad,) = torch.autograd.grad(value, log_rates)
    return value


truth, start = torch.zeros(1, 3, dtype=torch.float64), RATES.new_tensor([[0.8, -0.6, 0.5]])
explicit = concentrations(truth, method="dopri5", max_steps=1000, throw=False)
implicit = concentrations(truth)
print("dopri5", explicit.status[0].sentence)
print(f"rodas5p: {implicit.stats.steps[0]} steps to t = {implicit.t[0]:.0f}")

# %%
# The fit of the logarithms, by a quasi-Newton method from rates that are about twice too large or too small.

fit = start.clone().requires_grad_()
torch.optim.LBFGS([fit], max_iter=12, line_search_fn="strong_wolfe").step(lambda: loss(fit, implicit.xs))
error = (fit.exp() - 1).abs().max().item()
print(f"largest relative error of the rates: before {(start.exp() - 1).abs().max():.2f}, fitted {error:.1e}")

# %%
# All concentrations on a logarithmic axis of time. B is short-lived: its scale is a hundred-thousandth.

before, fitted = concentrations(torch.cat([start, fit.detach()])).xs
figure, panels = plt.subplots(1, 3, figsize=(7.5, 3), layout="constrained")
for i, panel in enumerate(panels):
    panel.semilogx(TIMES, before[:, i] / SCALES[i], "--", color="#c85200", label="before the fit")
    panel.semilogx(TIMES, fitted[:, i] / SCALES[i], color="#006ba4", label="fitted")
    panel.semilogx(TIMES, implicit.xs[0, :, i] / SCALES[i], ".", color="black", label="data")
    panel.set(xlabel="time", title=("concentration of A", "of B, × 100,000", "of C")[i], xticks=[1e-3, 1, 1e3])
figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
plt.show()
