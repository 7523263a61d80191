"""Options of `ncode.solve`, by three neurons (FitzHugh and Nagumo) that receive a short pulse at t = 60.

The state is a dict. Each neuron has its own tolerance and its own measured times, padded with nan. `max_dt` keeps long
steps from jumping over the pulse. The neuron with the tightest tolerance runs out of steps and keeps its last state.

    python examples/solver_options.py
"""

import argparse
import math
from pathlib import Path

import torch
from matplotlib.figure import Figure

import ncode

END = 120.0
RTOL = torch.tensor([[1e-3], [1e-6], [1e-9]], dtype=torch.float64)  # (batch, 1): one per neuron
MEASURED = torch.tensor([[20.0, 65.0, 100.0], [65.0, 75.0, math.nan], [10.0, math.nan, math.nan]], dtype=torch.float64)


def neuron(t, x, theta):
    v, w = x["voltage"], x["recovery"]
    current = torch.exp(-(((t - 60) / 0.5) ** 2))[:, None]
    return {"voltage": v - v**3 / 3 - w + 2 * current, "recovery": 0.08 * (v + 0.7 - 0.8 * w)}


def progress(t, x, accepted):
    done = (t / END).mean()
    print(f"\r[{'#' * int(30 * done):30}] {done:.0%}", end="", flush=True)


def main():
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("."))
    arguments = parser.parse_args()
    x0 = {name: torch.full((3, 1), at, dtype=torch.float64) for name, at in (("voltage", 1.0), ("recovery", 0.0))}
    options = {"rtol": RTOL, "atol": 1e-3 * RTOL, "max_dt": 1.0, "max_steps": 600, "throw": False, "keep_last": True}
    sol = ncode.solve(neuron, x0, 0.0, END, save_at=MEASURED, dense=True, save_steps=True, callback=progress, **options)
    print()
    axes = (figure := Figure(figsize=(7, 6), layout="constrained")).subplots(3, sharex=True)
    for i, ax in enumerate(axes):
        print(f"neuron {i}: {sol.status[i].name} at t = {sol.t[i]:.1f}, {sol.stats.steps[i]} steps")
        times = torch.linspace(0, END, 1201, dtype=torch.float64)
        ax.plot(times, sol(times)["voltage"][i, :, 0])
        ax.plot(MEASURED[i], sol.xs["voltage"][i, :, 0], "o", label="saved times")
        ax.plot(sol.steps[i], torch.full_like(sol.steps[i], -2.6), "|", color="grey", ms=4, label="steps")
        ax.plot(sol.t[i], sol.x["voltage"][i], "k.", label=f"last state: {sol.status[i].name}")
        ax.set(ylabel="voltage", ylim=(-3, 3), title=f"rtol = {RTOL[i].item():.0e}")
        ax.legend(loc="upper left", ncols=3, fontsize="small", frameon=False)
    axes[-1].set_xlabel("time")
    figure.savefig(arguments.out / "solver_options.png", dpi=150, bbox_inches="tight")


if __name__ == "__main__":
    main()
