"""Fit the rates of Robertson's reaction, whose fastest and slowest steps differ by nine orders of magnitude.

    python examples/stiff_chemistry.py

A -> B (slow), B + B -> C + B (fast), B + C -> A + C (in between), with data from t = 1e-4 to 1e5. Gradients pass
through the accepted steps of an implicit method.
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure

import ncode

RATES = torch.tensor([0.04, 3e7, 1e4], dtype=torch.float64)
TIMES = torch.logspace(-4, 5, 28, dtype=torch.float64)
SCALES = torch.tensor([1.0, 1e-5, 1.0], dtype=torch.float64)  # of A, B and C


def reaction(t, x, rates):
    a, b, c = x.unbind(1)
    slow, fast, back = rates[:, 0] * a, rates[:, 1] * b * b, rates[:, 2] * b * c
    return torch.stack([back - slow, slow - back - fast, fast], 1)


def concentrations(log_rates, method="rodas5p", **options):
    x0, rates = SCALES.new_tensor([1.0, 0.0, 0.0]).expand(len(log_rates), 3), RATES * log_rates.exp()
    return ncode.solve(reaction, x0, 0.0, 1e5, theta=rates, save_at=TIMES, method=method, atol=1e-9, **options)


parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--out", type=Path, default=Path("."))
arguments = parser.parse_args()

truth, start = torch.zeros(1, 3, dtype=torch.float64), RATES.new_tensor([[0.8, -0.6, 0.5]])
print("dopri5", concentrations(truth, method="dopri5", max_steps=1000, throw=False).status[0].sentence)
data, fit = concentrations(truth).xs, start.clone().requires_grad_()


def loss():
    fit.grad = None
    value = ((concentrations(fit).xs - data) / SCALES).square().mean()
    value.backward()
    return value


torch.optim.LBFGS([fit], max_iter=arguments.steps, line_search_fn="strong_wolfe").step(loss)
print(f"largest relative error of the rates: {(fit.exp() - 1).abs().max():.1e}")
curves = concentrations(torch.cat([start, fit.detach()])).xs
figure = Figure(figsize=(10, 3), layout="constrained")
for i, ax in enumerate(figure.subplots(1, 3)):
    ax.semilogx(TIMES, curves[0, :, i], "--", label="before")
    ax.semilogx(TIMES, curves[1, :, i], label="fitted")
    ax.semilogx(TIMES, data[0, :, i], ".", color="black", label="data")
    ax.set(xlabel="time", title=f"concentration of {'ABC'[i]}")
    ax.legend()
figure.savefig(arguments.out / "stiff_chemistry.png", dpi=150)
