"""Learn x -> -x on the line with a NODE, and with open-loop and closed-loop control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from ncode.block import NCODE
from ncode.control import ClosedLoop, Controller, Feedback, OpenLoop, Static
from ncode.dynamics import MLP

from ...data import Points, reflection
from ...training import Column, Loss, Task, Trial, TrialContext
from ..base import Experiment, Finished, Picture
from ..common import check_choices, check_positive, first_seeds, mean_control_norm

Model = Literal["node", "open-loop", "closed-loop"]
MODELS: tuple[Model, ...] = get_args(Model)

WIDTH = 16  # of the controllers' hidden layer
RTOL = 1e-3
CAPTION = (
    "Lines: trajectories, in the colour of where they began. Dots: where they should end. Grey: the field that the"
    " number starting at 1 meets. Those of the NODE cannot cross and meet at zero."
)


@dataclass(frozen=True)
class Reflection(Experiment):
    """Learn x -> -x on [-1, 1]."""

    name = "reflection"
    line = "x -> -x on the line, which no NODE can learn (figure 4)"
    question = (
        "Trajectories of a neural ODE never cross, so on the line it cannot swap two numbers: the best it can do with"
        " x → −x is to send everything to zero, with a mean squared error of 1/3. Do the trajectories cross once the"
        " weights of the field depend on where a trajectory began (open loop), or are driven by the state on the way"
        " (closed loop)?"
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "smoke": {"steps": 3, "batch": 16},
        "quick": {"steps": 150, "batch": 64},
        "paper": {},
    }
    columns = (Column("error", "mean squared error", digits=5), Column("nfe", "evaluations per solve", digits=0))
    retired: ClassVar[Mapping[str, Any]] = {"width": WIDTH, "rtol": RTOL}

    models: tuple[Model, ...] = MODELS
    """Models to train."""
    hidden: int = 8
    """Width of the field's hidden layer."""
    steps: int = 1000
    """Training steps."""
    batch: int = 128
    """Numbers per training step."""
    lr: float = 0.02
    """Initial learning rate of Adam; it falls to 0 along a cosine."""

    def __post_init__(self) -> None:
        check_choices("model", self.models, MODELS)
        check_positive(self, "hidden", "steps", "batch", "lr")

    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        return [Trial(model, "reflection", seed) for model in self.models for seed in seeds]

    def run(self, trial: Trial, context: TrialContext) -> dict[str, float]:
        torch.manual_seed(trial.seed)
        block = context.fit(_Reflect(self, trial))
        assert isinstance(block, NCODE)
        context.save_model(block)
        context.save_tensors("flow", **_flow(block))
        return context.final

    def figures(self, finished: Sequence[Finished]) -> list[Picture]:
        from .figures import Flow, draw_reflection

        flows = {
            model: Flow(**done.load("flow"), error=done.result.metrics["error"])
            for model, done in first_seeds(finished).items()
        }
        return [Picture("trajectories", draw_reflection(flows), CAPTION)]


def build(model: str, hidden: int) -> NCODE:
    """A block on the line with the controller of that name."""
    controllers: dict[str, Controller] = {
        "node": Static(),
        "open-loop": OpenLoop(nn.Sequential(nn.Linear(1, WIDTH), nn.Tanh()), scale=1.0),
        "closed-loop": ClosedLoop(Feedback(nn.Sequential(nn.Linear(1, WIDTH), nn.Tanh()), scale=1.0)),
    }
    return NCODE(MLP(1, hidden=hidden), controllers[model], rtol=RTOL)


class _Reflect(Task):
    def __init__(self, settings: Reflection, trial: Trial):
        self.settings, self.steps, self.lr = settings, settings.steps, settings.lr
        self.evaluate_every = max(1, settings.steps // 10)
        self.model = build(trial.model, settings.hidden)
        self.held_out = torch.linspace(-1, 1, 201)[:, None]

    def batch(self, step: int, generator: torch.Generator) -> Points:
        return reflection(self.settings.batch, generator=generator)

    def loss(self, model: nn.Module, batch: Points) -> Loss:
        assert isinstance(model, NCODE)
        sol = model.solve(batch.x)
        error = (sol.x - batch.y).square().mean()
        report = {"error": error.detach(), "nfe": sol.stats.nfe.float().mean(), "rejected": sol.stats.rejected.sum()}
        return Loss(error, report | {"control norm": mean_control_norm(sol)})

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        assert isinstance(model, NCODE)
        sol = model.solve(self.held_out)
        error = (sol.x + self.held_out).square().mean()
        return {"error": float(error), "nfe": float(sol.stats.nfe.float().mean())}

    def schedule(self, optimiser: Optimizer) -> LRScheduler:
        return CosineAnnealingLR(optimiser, self.steps)

    def to(self, device: torch.device) -> None:
        self.held_out = self.held_out.to(device)


@torch.no_grad()
def _flow(block: NCODE) -> dict[str, Tensor]:
    """Trajectories, and the field that the one from x = 1 meets."""
    device = next(block.parameters()).device
    ts = torch.linspace(0, 1, 61, device=device)
    sol = block.solve(torch.linspace(-1, 1, 13, device=device)[:, None], save_at=ts)
    assert sol.xs is not None
    assert sol.thetas is not None
    grid = torch.linspace(-1.25, 1.25, 41, device=device)
    slopes = []
    for i, t in enumerate(ts):
        theta = {name: value[-1, i].expand(len(grid), *value.shape[2:]) for name, value in sol.thetas.items()}
        slopes.append(block.dynamics(t.expand(len(grid)), grid[:, None], theta))
    return {"ts": ts, "xs": sol.xs[..., 0], "grid": grid, "slopes": torch.cat(slopes, 1)}
