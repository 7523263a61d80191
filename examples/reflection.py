"""Learn the reflection x -> -x on [-1, 1] with three controllers of one vector field (figure 3 of the paper).

A neural ODE cannot: its trajectories share one field, so they never cross. With a control that depends on the
initial value (open loop), or that is driven by the state on the way (closed loop), they may.

    python examples/reflection.py
"""

import argparse
from pathlib import Path

import torch
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor, nn

import ncode

WIDTH = 8
COLOURS = ScalarMappable(Normalize(-1, 1), colormaps["coolwarm"])


def f(t: Tensor, x: Tensor, theta: Tensor) -> Tensor:
    """A network with one hidden layer, x (batch, 1), whose weights are the control, theta (batch, 3, WIDTH)."""
    w, b, v = theta.unbind(1)
    return (v * torch.tanh(w * x + b)).sum(-1, keepdim=True)


class Constant(nn.Module):
    """The same learnt control for every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.randn(3, WIDTH) / 2)

    def forward(self, x0: Tensor) -> Tensor:
        return self.theta.expand(len(x0), 3, WIDTH)


class Gamma(nn.Sequential):
    """A control for each initial value: gamma(x0)."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 3 * WIDTH), nn.Unflatten(1, (3, WIDTH)))


class Feedback(nn.Sequential):
    """A control that the state drives: d theta / dt = g(x, theta)."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(1 + 3 * WIDTH, 16), nn.Tanh(), nn.Linear(16, 3 * WIDTH), nn.Unflatten(1, (3, WIDTH)))

    def forward(self, t: Tensor, x: Tensor, theta: Tensor) -> Tensor:
        return super().forward(torch.cat([x, theta.flatten(1)], 1))


class Model(nn.Module):
    """The field f under a controller: who sets theta(0), and what drives it from there."""

    def __init__(self, gamma: nn.Module, feedback: nn.Module | None = None) -> None:
        super().__init__()
        self.gamma = gamma
        self.feedback = feedback

    def solve(self, x0: Tensor, save_at: Tensor | None = None) -> ncode.Solution:
        return ncode.solve(f, x0, 0.0, 1.0, theta=self.gamma(x0), feedback=self.feedback, save_at=save_at)


def train(model: Model, steps: int) -> float:
    """Fit the reflection and return the mean squared error that is left."""
    x0 = torch.linspace(-1, 1, 64)[:, None]
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        loss = (model.solve(x0).x + x0).square().mean()
        loss.backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        return float((model.solve(x0).x + x0).square().mean())


@torch.no_grad()
def draw(panel, model: Model, title: str) -> None:
    """Trajectories in the colour of where they began, over the field that the reddest one meets."""
    ts = torch.linspace(0, 1, 61)
    x0 = torch.linspace(-1, 1, 13)[:, None]
    sol = model.solve(x0, save_at=ts)

    grid = torch.linspace(-1.25, 1.25, 41)[:, None]
    controls = zip(ts, sol.thetas[-1], strict=True)
    slope = torch.cat([f(t, grid, theta.expand(len(grid), -1, -1)) for t, theta in controls], 1)
    style = {"color": "0.82", "density": 0.7, "linewidth": 0.7, "arrowsize": 0.7}
    field = (ts, grid[:, 0], torch.ones_like(slope), slope)
    panel.streamplot(*(part.numpy() for part in field), **style)

    for start, xs in zip(x0[:, 0].tolist(), sol.xs[..., 0].numpy(), strict=True):
        colour = COLOURS.to_rgba(start)
        panel.plot(ts.numpy(), xs, color=colour, linewidth=1.6)
        panel.plot(1, -start, "o", color=colour, markersize=4, clip_on=False)
    panel.set_title(title, fontsize="medium")
    panel.set(xlabel="t", xlim=(0, 1), ylim=(-1.25, 1.25))


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn x -> -x with three controllers, and draw them.")
    parser.add_argument("--steps", type=int, default=300, help="training steps a model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the picture")
    args = parser.parse_args()
    torch.set_num_threads(1)  # such small tensors are slower on many threads

    torch.manual_seed(args.seed)
    models = {
        "NODE": Model(Constant()),
        "open-loop N-CODE": Model(Gamma()),
        "closed-loop N-CODE": Model(Constant(), Feedback()),
    }
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    for panel, (name, model) in zip(figure.subplots(1, 3, sharey=True), models.items(), strict=True):
        error = train(model, args.steps)
        print(f"{name:20} mean squared error {error:.1e}")
        draw(panel, model, f"{name}\nmean squared error {error:.0e}")
    figure.axes[0].set_ylabel("x(t)")
    figure.colorbar(COLOURS, ax=figure.axes, label="x(0)", ticks=[-1, 0, 1])

    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "reflection.png"
    figure.savefig(path, dpi=100)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
