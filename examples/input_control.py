"""Learn a pendulum that an outside torque u(t) drives, and predict its motion under a torque of another kind.

The controller `InputControl` hands u(t) to the vector field as its control: theta(t) = u(t). Training sees random
torques, linear between knots; the test is an oscillation whose frequency rises.
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import nn

import ncode

END, KNOTS = 6.0, torch.linspace(0, 6.0, 25)


def pendulum(t: torch.Tensor, x: torch.Tensor, theta: torch.Tensor) -> torch.Tensor:
    """Angle and velocity of a damped pendulum under the torque theta."""
    angle, velocity = x.unbind(1)
    return torch.stack([velocity, theta[:, 0] - torch.sin(angle) - 0.3 * velocity], 1)


def main(steps: int, out: Path) -> None:
    torch.manual_seed(0)
    truth = ncode.NCODE(ncode.dynamics.Function(pendulum, (1,)), ncode.InputControl(), t1=END, rtol=1e-6)
    f = ncode.dynamics.MLP(2, hidden=32, controlled=(), context=1)  # a network of the state and of u(t)
    model = ncode.NCODE(f, ncode.InputControl(), t1=END, method="rk4", dt=0.25)  # steps from knot to knot
    path = ncode.paths.linear(1.5 * torch.randn(64, len(KNOTS), 1), KNOTS)
    x0 = torch.randn(64, 2)
    observed = truth.trajectory(x0, KNOTS, path=path)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps):
        rows = torch.randint(64, (16,))
        loss = (model.trajectory(x0[rows], KNOTS, path=path.rows(rows)) - observed[rows]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.param_groups[0]["lr"] = 1e-2 * (1 - step / steps)
    ts = torch.linspace(0, END, 200)
    torque = ncode.paths.hermite(1.5 * torch.sin(0.7 * ts**2)[None, :, None], ts)
    with torch.no_grad():
        true, found = (block.trajectory(torch.zeros(1, 2), ts, path=torque)[0, :, 0] for block in (truth, model))
    print(f"loss {loss.item():.4f}, error of the angle under a new torque {(true - found).square().mean().sqrt():.4f}")
    axes = (figure := Figure(figsize=(7, 4), layout="constrained")).subplots()
    axes.plot(ts, torque.evaluate(ts[None])[0, :, 0], color="#bbbbbb", label="torque u(t)")
    axes.plot(ts, true, color="#4c72b0", label="angle")
    axes.plot(ts, found, "--", color="#dd8452", label="angle, predicted")
    axes.set(xlabel="time", title="a learned pendulum under a torque that it has not seen")
    axes.legend(loc="lower left")
    figure.savefig(out / "input_control.png", dpi=150)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path())
    main(**vars(parser.parse_args()))
