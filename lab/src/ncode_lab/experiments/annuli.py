"""Concentric annuli, which no flow of the plane takes apart (section 4.1, figures 1, 4 and A.1 of the paper)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler

from ncode import InputError, Solution
from ncode.block import save_pretrained

from ..data import Points, annuli, stream
from ..training import Column, Loss, Task, Trial, TrialContext
from .annuli_models import MODELS, Classifier, Model, build, like
from .annuli_views import boundary, circle, flows, paths
from .base import Experiment, Finished, Picture
from .checks import check_choices, check_positive


@dataclass(frozen=True)
class Annuli(Experiment):
    """Tell a disc from the annulus around it, by a flow and a linear read-out.

    A NODE moves the plane as a whole: the annulus still encircles the disc when the flow ends, so that no line divides
    the two. ANODE leads its points around one another in one more dimension. N-CODE stays in the plane and gives each
    point a field of its own: open loop, theta = gamma(x0); closed loop, as in the paper's equation 4, theta begins as
    gamma(x0) and dtheta/dt = g(x).

    All models have the same number of steps and, as far as whole units allow, of parameters. With more steps a NODE
    gets nearly every held-out point right, since it may pull the annulus open along a gap between the points; that gap
    is never empty. The last metric shows it: the part of a circle within the outer annulus that lies on the wrong side,
    which is above 0 for every NODE that has a point of the disc on the right side.

    Points to choose settings by (and to draw curves of) are drawn apart from those that the table is about.
    """

    name = "annuli"
    line = "a disc and the annulus around it, which no flow of the plane takes apart (figures 1, 4, A.1)"
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
        Column("nfe", "evaluations a solve", digits=0),
    )

    models: tuple[Model, ...] = MODELS
    """Models to train."""
    inner: int = 1000
    """Points of the disc to train on."""
    outer: int = 2000
    """Points of the annulus to train on."""
    held_out: int = 3000
    """Points to judge by, a third of them in the disc."""
    parameters: int = 910
    """Trained numbers a model may have: each is made as wide as they allow."""
    hidden: int = 6
    """Units of the field that N-CODE controls."""
    zeros: int = 1
    """Dimensions that ANODE adds."""
    steps: int = 1000
    """Training steps."""
    batch: int = 64
    """Points a step."""
    lr: float = 2e-3
    """Learning rate of Adam, at the first step; it falls to 0 along a cosine."""
    tolerance: float = 1e-3
    """Relative and absolute tolerance of dopri5."""

    def __post_init__(self) -> None:
        check_choices("model", self.models, MODELS)
        names = ("inner", "outer", "held_out", "parameters", "hidden", "zeros", "steps", "batch", "lr", "tolerance")
        check_positive(**{name: getattr(self, name) for name in names})
        if self.held_out < 3:
            raise InputError(f"held_out must be at least 3, a third of them in the disc; given {self.held_out}")

    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        """Each model with each seed."""
        return [Trial(model, "annuli", seed) for model in self.models for seed in seeds]

    def run(self, trial: Trial, context: TrialContext) -> dict[str, float]:
        """Train a model, judge it on fresh points, and keep what the figures show."""
        model = context.fit(Separate(self, trial))
        assert isinstance(model, Classifier)
        if context.options.save and context.fabric.is_global_zero:
            save_pretrained(nn.Sequential(model.block, model.read_out), context.folder / "pretrained")
        points = like(draw_points(self, trial.seed, "test"), model)
        context.save_tensors("boundary", **boundary(model, points))
        context.save_tensors("paths", **paths(model, points))
        context.save_tensors("flows", **flows(model, points))
        return {**score(model, points), "circle": circle(model)}

    def figures(self, finished: Sequence[Finished]) -> list[Picture]:
        """Boundaries, training curves, trajectories and fields; all but the curves of the first seed."""
        from ..figures.annuli import TITLES, Boundary, Flows, Paths, draw_boundaries, draw_fields, draw_flows
        from ..figures.annuli import draw_trajectories as draw_paths
        from ..figures.curves import Quantity, draw_curves

        first: dict[str, Finished] = {}
        curves: dict[str, list[dict[str, list[float]]]] = {}
        for done in finished:
            first.setdefault(done.trial.model, done)
            curves.setdefault(done.trial.model, []).append(done.result.curves)
        if not first:
            return []
        edges, ways, fields = {}, {}, {}
        for model, done in first.items():
            edges[model] = Boundary(**done.load("boundary"), accuracy=done.result.metrics["accuracy"])
            ways[model] = Paths(**done.load("paths"), zeros=self.zeros if model == "anode" else 0)
            fields[model] = Flows(**done.load("flows"))
        shown = [
            Quantity("evaluation", "loss", "held-out loss", log=True),
            Quantity("evaluation", "accuracy", "held-out accuracy, %", scale=100),
        ]
        # The field of a closed loop changes on the way; those of the others stand still.
        moving = next(model for model in ("closed-loop", *fields) if model in fields)
        return [
            Picture("boundaries", draw_boundaries(edges), _BOUNDARIES),
            Picture("training", draw_curves(curves, shown, titles=TITLES), _TRAINING),
            Picture("trajectories", draw_paths(ways), _TRAJECTORIES),
            Picture("fields", draw_fields(fields), _FIELDS),
            Picture("flows", draw_flows(fields[moving], moving), _FLOWS),
        ]


_BOUNDARIES = (
    "Soft decision boundaries with held-out points; black: where both classes are equally likely. The NODE has to cut"
    " the annulus open to get its disc out."
)
_TRAINING = (
    "Loss and accuracy on held-out points (drawn apart from those of the table) while training. Lines: mean over seeds;"
    " bands: from the least to the greatest."
)
_TRAJECTORIES = (
    "Where held-out points go. Coloured dots: where they start; black dots: where they end, with their class inside."
    " Trajectories of the NODE share one field and cannot cross, so the annulus still encircles the disc. Those of"
    " N-CODE cross in the plane. Each panel has a scale of its own."
)
_FIELDS = (
    "The vector fields that an inner point (top) and an outer point (bottom) meet half-way, and their ways through the"
    " plane. Both meet the same field in the NODE; N-CODE has one for each. For ANODE: the part in the plane, where the"
    " point is in the other dimensions."
)
_FLOWS = (
    "The field of an inner point (top) and of an outer one (bottom) as time goes on: under closed-loop control it"
    " changes on the way. White dot: start; coloured dot: where the point is."
)


def build_within(settings: Annuli, model: str, seed: int) -> Classifier:
    """The widest classifier that has no more parameters than the settings allow.

    >>> counts = [sum(p.numel() for p in build_within(Annuli(), model, 0).parameters()) for model in MODELS]
    >>> all(880 <= count <= 910 for count in counts)
    True
    """

    def make(width: int) -> Classifier:
        torch.manual_seed(seed)
        return build(model, width, settings.hidden, settings.zeros, settings.tolerance)

    found = None
    for width in range(1, settings.parameters + 1):
        wider = make(width)
        if sum(each.numel() for each in wider.parameters()) > settings.parameters:
            break
        found = wider
    if found is None:
        least = sum(each.numel() for each in make(1).parameters())
        raise InputError(
            f"parameters must be at least {least} for {model} with hidden={settings.hidden}; given"
            f" {settings.parameters}: allow more, or make hidden smaller"
        )
    return found


def draw_points(settings: Annuli, seed: int, purpose: Literal["train", "validation", "test"]) -> Points:
    """The points of a seed, those for each purpose drawn apart from the others.

    >>> draw_points(Annuli(), 0, "test").y.bincount().tolist()
    [1000, 2000]
    """
    if purpose == "train":
        counts = settings.inner, settings.outer
    else:
        counts = settings.held_out // 3, settings.held_out - settings.held_out // 3
    return annuli(*counts, generator=stream(seed, "annuli", purpose))


@torch.no_grad()
def score(model: Classifier, points: Points) -> dict[str, float]:
    """Accuracy, loss and evaluations a solve on points."""
    points = like(points, model)
    sol = model.block.solve(points.x)
    logits = model.read(sol.x)
    return {
        "accuracy": float(_right(logits, points.y)),
        "loss": float(F.binary_cross_entropy_with_logits(logits, points.y.to(logits.dtype))),
        "nfe": float(sol.stats.nfe.float().mean()),
    }


class Separate(Task):
    """Tell the classes apart: a smooth loss, on batches drawn from the training points."""

    def __init__(self, settings: Annuli, trial: Trial):
        self.settings, self.steps = settings, settings.steps
        self.evaluate_every = max(1, settings.steps // 30)
        self.model = build_within(settings, trial.model, trial.seed)
        self.points = draw_points(settings, trial.seed, "train")
        self.validation = draw_points(settings, trial.seed, "validation")

    def batch(self, step: int, generator: torch.Generator) -> Points:
        """Points drawn from those to train on."""
        chosen = torch.randint(len(self.points.x), (self.settings.batch,), generator=generator)
        return Points(self.points.x[chosen], self.points.y[chosen])

    def loss(self, model: nn.Module, batch: Points) -> Loss:
        """Binary cross-entropy."""
        assert isinstance(model, Classifier)
        sol = model.block.solve(batch.x)
        logits = model.read(sol.x)
        report = {
            "accuracy": _right(logits, batch.y),
            "nfe": sol.stats.nfe.float().mean(),
            "rejected": sol.stats.rejected.sum(),
            "control norm": _norm(sol),
        }
        return Loss(F.binary_cross_entropy_with_logits(logits, batch.y.to(logits.dtype)), report)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """On points that are neither trained on nor in the table."""
        assert isinstance(model, Classifier)
        return score(model, self.validation)

    def optimiser(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Adam."""
        return Adam(parameters, lr=self.settings.lr)

    def schedule(self, optimiser: Optimizer) -> LRScheduler:
        """A cosine."""
        return CosineAnnealingLR(optimiser, self.steps)

    def to(self, device: torch.device) -> None:
        """Only what is not batched: batches are drawn on the CPU."""
        self.validation = self.validation.to(device)


def _right(logits: Tensor, y: Tensor) -> Tensor:
    return ((logits.detach() > 0) == (y == 1)).float().mean()


def _norm(sol: Solution) -> Tensor:
    """The norm of a sample's control, in the mean."""
    return torch.cat([part.detach().flatten(1) for part in sol.theta.values()], 1).norm(dim=1).mean()
