"""Tell a disc from the annulus around it, by a flow and a linear read-out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from ncode import InputError

from ...data import Points, annuli, stream
from ...training import Column, Loss, Result, Task, Trial, TrialContext
from ..base import Experiment, Finished, Picture
from ..common import check_choices, check_positive, curves_by_model, first_seeds, mean_control_norm
from .models import (
    MODELS,
    PARAMETERS,
    TOLERANCE,
    ZEROS,
    Classifier,
    Model,
    boundary,
    build_within,
    circle_error,
    flows,
    like,
    paths,
)


@dataclass(frozen=True)
class Annuli(Experiment):
    """Tell a disc from the annulus around it, by a flow and a linear read-out.

    Open loop: theta = gamma(x0). Closed loop, as in the paper's equation 4: theta starts at gamma(x0) and follows
    dtheta/dt = g(x).

    All models have the same number of steps and, as far as whole units allow, of parameters. With more steps a NODE
    gets nearly every held-out point right, since it can pull the annulus open along a gap between the points. The
    metric `circle`, the fraction of a circle within the annulus that lies on the wrong side, is above 0 for every NODE
    that classifies a point of the disc correctly. Validation points, for the curves, are not the test points.
    """

    name = "annuli"
    line = "a disc and the annulus around it, which no flow of the plane separates (figures 1, 5, A.1)"
    question = (
        "A neural ODE deforms the plane without tearing it: an annulus that encircles a disc still does so when the"
        " flow ends, and no line divides the two. A model with one more dimension can lead one class around the other."
        " Can N-CODE do without, by giving each point a vector field of its own? Look for 100 % on held-out points at a"
        " number of steps and of parameters at which the NODE falls short, and for the circle inside the annulus: a"
        " NODE always has some of it on the wrong side, however well it does on the points it is shown."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "smoke": {"steps": 4, "batch": 32, "inner": 40, "outer": 80, "held_out": 60},
        "quick": {"steps": 240, "lr": 5e-3, "held_out": 1500},
        "paper": {},
    }
    columns = (
        Column("accuracy", "held-out accuracy, %", digits=2, scale=100),
        Column("loss", "held-out loss", digits=4),
        Column("circle", "wrong on a circle, %", digits=2, scale=100),
        Column("nfe", "evaluations per solve", digits=0),
    )
    retired: ClassVar[Mapping[str, Any]] = {"parameters": PARAMETERS, "zeros": ZEROS, "tolerance": TOLERANCE}

    models: tuple[Model, ...] = MODELS
    """Models to train."""
    inner: int = 1000
    """Training points in the disc."""
    outer: int = 2000
    """Training points in the annulus."""
    held_out: int = 3000
    """Test points, a third of them in the disc."""
    hidden: int = 6
    """Hidden units of the field that N-CODE controls."""
    steps: int = 1000
    """Training steps."""
    batch: int = 64
    """Points per training step."""
    lr: float = 2e-3
    """Initial learning rate of Adam; it falls to 0 along a cosine."""

    def __post_init__(self) -> None:
        check_choices("model", self.models, MODELS)
        check_positive(self, "inner", "outer", "held_out", "hidden", "steps", "batch", "lr")
        if self.held_out < 3:
            raise InputError(f"held_out must be at least 3, a third of them in the disc; given {self.held_out}")

    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        return [Trial(model, "annuli", seed) for model in self.models for seed in seeds]

    def run(self, trial: Trial, context: TrialContext) -> dict[str, float]:
        model = context.fit(Separate(self, trial))
        assert isinstance(model, Classifier)
        context.save_model(nn.Sequential(model.block, model.read_out))
        points = like(draw_points(self, trial.seed, "test"), model)
        context.save_tensors("boundary", **boundary(model, points))
        context.save_tensors("paths", **paths(model, points))
        context.save_tensors("flows", **flows(model, points))
        return {**score(model, points), "circle": circle_error(model)}

    def figures(self, finished: Sequence[Finished]) -> list[Picture]:
        """Boundaries, training curves, trajectories and fields. All but the curves show the first seed."""
        from .figures import Boundary, Flows, Paths, draw_boundaries, draw_fields, draw_flows, draw_trajectories

        if not finished:
            return []
        boundaries, trajectories, fields = {}, {}, {}
        for model, done in first_seeds(finished).items():
            boundaries[model] = Boundary(**done.load("boundary"), accuracy=done.result.metrics["accuracy"])
            trajectories[model] = Paths(**done.load("paths"), zeros=ZEROS if model == "anode" else 0)
            fields[model] = Flows(**done.load("flows"))
        # Only the field of a closed loop changes with time.
        shown = next(model for model in ("closed-loop", *fields) if model in fields)
        return [
            Picture("boundaries", draw_boundaries(boundaries), _BOUNDARIES),
            *self.redraw([done.result for done in finished]),
            Picture("trajectories", draw_trajectories(trajectories), _TRAJECTORIES),
            Picture("fields", draw_fields(fields), _FIELDS),
            Picture("flows", draw_flows(fields[shown], shown), _FLOWS),
        ]

    @classmethod
    def redraw(cls, results: Sequence[Result]) -> list[Picture]:
        """Training curves."""
        from ...figures.curves import Quantity, draw_curves

        quantities = [
            Quantity("evaluation", "loss", "held-out loss", log=True),
            Quantity("evaluation", "accuracy", "held-out accuracy, %", scale=100),
        ]
        ordered = sorted(results, key=lambda result: [*cls.models, result.model].index(result.model))
        return [Picture("training", draw_curves(curves_by_model(ordered), quantities), _TRAINING)]


_BOUNDARIES = (
    "Soft decision boundaries with held-out points; black: where both classes are equally likely. The NODE has to cut"
    " the annulus open to get its disc out."
)
_TRAINING = (
    "Loss and accuracy on held-out points (drawn separately from those of the table) while training. Lines: mean over"
    " seeds; bands: minimum to maximum."
)
_TRAJECTORIES = (
    "Where held-out points go. Coloured dots: where they start; black dots: where they end, with their class inside."
    " Trajectories of the NODE share one field and cannot cross, so the annulus still encircles the disc. Those of"
    " N-CODE cross in the plane. Each panel has a scale of its own."
)
_FIELDS = (
    "The vector fields that an inner point (top) and an outer point (bottom) meet half-way, and their trajectories."
    " Both meet the same field in the NODE; N-CODE has one for each. For ANODE: the part of the field in the plane."
)
_FLOWS = (
    "The field of an inner point (top) and of an outer one (bottom) as time goes on: under closed-loop control it"
    " changes on the way. White dot: start; coloured dot: where the point is."
)


def draw_points(settings: Annuli, seed: int, purpose: Literal["train", "validation", "test"]) -> Points:
    """The points of a seed. Each purpose has points of its own."""
    if purpose == "train":
        counts = settings.inner, settings.outer
    else:
        counts = settings.held_out // 3, settings.held_out - settings.held_out // 3
    return annuli(*counts, generator=stream(seed, "annuli", purpose))


@torch.no_grad()
def score(model: Classifier, points: Points) -> dict[str, float]:
    """Accuracy, loss and evaluations per solve on points."""
    points = like(points, model)
    sol = model.block.solve(points.x)
    logits = model.read(sol.x)
    return {
        "accuracy": float(_accuracy(logits, points.y)),
        "loss": float(F.binary_cross_entropy_with_logits(logits, points.y.to(logits.dtype))),
        "nfe": float(sol.stats.nfe.float().mean()),
    }


class Separate(Task):
    """Binary cross-entropy on batches drawn from the training points."""

    def __init__(self, settings: Annuli, trial: Trial):
        self.settings, self.steps, self.lr = settings, settings.steps, settings.lr
        self.evaluate_every = max(1, settings.steps // 30)
        self.model = build_within(trial.model, settings.hidden, trial.seed)
        self.points = draw_points(settings, trial.seed, "train")
        self.validation = draw_points(settings, trial.seed, "validation")

    def batch(self, step: int, generator: torch.Generator) -> Points:
        chosen = torch.randint(len(self.points.x), (self.settings.batch,), generator=generator)
        return Points(self.points.x[chosen], self.points.y[chosen])

    def loss(self, model: nn.Module, batch: Points) -> Loss:
        assert isinstance(model, Classifier)
        sol = model.block.solve(batch.x)
        logits = model.read(sol.x)
        report = {
            "accuracy": _accuracy(logits, batch.y),
            "nfe": sol.stats.nfe.float().mean(),
            "rejected": sol.stats.rejected.sum(),
            "control norm": mean_control_norm(sol),
        }
        return Loss(F.binary_cross_entropy_with_logits(logits, batch.y.to(logits.dtype)), report)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        assert isinstance(model, Classifier)
        return score(model, self.validation)

    def schedule(self, optimiser: Optimizer) -> LRScheduler:
        return CosineAnnealingLR(optimiser, self.steps)

    def to(self, device: torch.device) -> None:
        """Only the validation points: batches are drawn on the CPU."""
        self.validation = self.validation.to(device)


def _accuracy(logits: Tensor, y: Tensor) -> Tensor:
    return ((logits.detach() > 0) == (y == 1)).float().mean()
