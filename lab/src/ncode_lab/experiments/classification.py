"""Image classification (section 4.2 and appendix C.2 of the paper): MNIST, Fashion-MNIST and CIFAR-10."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ncode import InputError
from ncode.checks import check_choice
from ncode.costs import ControlNorm, KineticEnergy, Regulariser
from ncode.models.classifier import ImageClassifier
from ncode.models.gammas import GAMMAS, Gamma

from ..data import ImageSets, MissingData, find, load
from ..models.classifier_family import MODELS, Design, Model, Solver
from ..models.classifier_score import measure
from ..precision import tf32
from ..training import Column, Reported, Result, Trial, TrialContext
from .base import Experiment, Finished, Picture
from .checks import check_choices, check_positive
from .classification_label import has_flow, is_network, label_of
from .classification_regimes import DATASETS, REGIMES, Dataset, RegimeName
from .classification_task import Classify

SolverName = Literal["dopri5", "rk4"]


@dataclass(frozen=True)
class Classification(Experiment):
    """Classify images by a flow: the image is x(0), and a linear map of x(1) gives the classes.

    All models see the same images in the same order, with the same budget. 5,000 training images are held out, and are
    what curves show and choices are made by, that of the epoch to keep among them; the test images are looked at once,
    at the end.

    gamma is conv-pool unless told otherwise, which is ours. The paper's own reading is --gamma linear.

    With --precision bf16 the convolutions and linear maps of gamma, of the field and of the read-out are computed in
    bfloat16; the state, the sums of the solver, its error estimate, norms and the loss stay in 32 bits. Meant for fixed
    steps: dopri5 at a tolerance of 1e-3 takes the rounding of bfloat16 for an error and makes more steps. The test
    images are classified in 32 bits.
    """

    name = "classification"
    line = "images: N-CODE against NODE, ANODE and data control (section 4.2)"
    question = (
        "An image flows through one convolution block, and a linear map of where it ends gives its class. Does it help"
        " when the kernels of the block are set from the image itself (N-CODE), rather than shared by all images (NODE;"
        " ANODE with empty channels added; anode-wide with as many parameters as N-CODE), or shared while the block"
        " sees the image all the way (data control)? Look at accuracy on test images beside parameters, evaluations and"
        " time."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "smoke": {
            "dataset": "mnist",
            "models": ("anode", "ncode"),
            "fallback": True,
            "filters": 4,
            "shrink": 2,
            "images": 96,
            "test_images": 96,
            "held_out": 32,
            "epochs": 2,
            "batch": 32,
            "solver": "rk4",
            "steps": 1,
        },
        "quick": {
            "dataset": "mnist",
            "models": ("anode", "ncode"),
            "fallback": True,
            "filters": 16,
            "shrink": 2,
            "images": 20_000,
            "held_out": 2000,
            "regime": "modern",
            "epochs": 4,
            "batch": 100,
            "lr": 6e-3,
            "solver": "rk4",
            "steps": 1,
        },
        "paper": {},
    }
    columns = (
        Column("accuracy", "test accuracy, %", digits=2, scale=100),
        Column("held-out accuracy", "held-out accuracy, %", digits=2, scale=100),
        Column("accuracy by dopri5", "test accuracy by dopri5, %", digits=2, scale=100),
        Column("nfe by dopri5", "evaluations by dopri5", digits=1),
        Column("seconds an epoch", "seconds an epoch", digits=1),
    )
    paper = tuple(
        Reported(model, label, "accuracy", value, note)
        for dataset, anode, data_control, ncode in (("mnist", 0.982, 0.985, 0.992), ("cifar10", 0.612, 0.620, 0.741))
        for model, label, value, note in (
            ("anode", dataset, anode, ""),
            ("data-control", dataset, data_control, ""),
            ("ncode", dataset, ncode, "with gamma linear; epochs not given"),
            ("ncode", f"{dataset}, gamma linear", ncode, "epochs not given"),
        )
    )

    dataset: Dataset = "cifar10"
    """Images to classify."""
    models: tuple[Model, ...] = ("node", "anode", "anode-wide", "data-control", "ncode", "ncode-3x3")
    """Models to train. ncode-closed drives the kernels by the state; gamma-alone has no flow; ncode-net,
    static-net and static-net-wide are networks of three blocks."""
    regime: RegimeName = "paper"
    """paper: Adam at 1e-3, no augmentation, 20 epochs (CIFAR-10: 50). modern: random crops and flips, AdamW, clipped
    gradients, a learning rate that rises and falls, 24 epochs (CIFAR-10: 30)."""
    gamma: Gamma = "conv-pool"
    """Trunk that sets the control. linear: the paper's own reading; perceptron: another; the convolutions: ours."""
    hidden: int = 10
    """Features of gamma."""
    dropout: float = 0.0
    """Part of the inputs of gamma's last layer that is left out in training."""
    scale: float = 0.1
    """Size at first of the part of the control that depends on the data, relative to a static weight."""
    control_cost: float = 0.0
    """Weight of the running cost |theta|^2, a sum over all values."""
    kinetic_cost: float = 0.0
    """Weight of the running cost |dx/dt|^2, a sum over all values."""
    weight_decay: float = -1.0
    """Weight decay. Below 0: the regime's own, 0 or 0.01."""
    label_smoothing: float = 0.0
    """Part of the probability that is spread over all classes."""
    filters: int = 0
    """Filters of the block. 0: 50 for N-CODE, 64 for ANODE and data control, 92 or 125 for NODE."""
    zeros: int = 0
    """Channels that start at 0. 0: 5 for grey images and 10 for colour; below 0: none."""
    width: int = 48
    """Channels of the first block of a network of blocks; each of the next has twice as many."""
    shrink: int = 1
    """Take means over fields of this size of images first, for quick runs."""
    solver: SolverName = "dopri5"
    """dopri5, with steps chosen by the error, or rk4, with steps of equal length. Networks of blocks take two midpoint
    steps a block."""
    tolerance: float = 1e-3
    """Relative and absolute tolerance of dopri5."""
    steps: int = 2
    """Steps of rk4."""
    step: Literal["sample", "batch"] = "sample"
    """dopri5: whether each sample chooses its steps, or one is taken for all."""
    compile: bool = False
    """Compile the solver's step and its backward."""
    augment: Literal["auto", "yes", "no"] = "auto"
    """Shift training images at random, and mirror those that are no digits. auto: in the modern regime."""
    batch: int = 0
    """Images a training step. 0: the regime's own, 256 or 128."""
    epochs: int = 0
    """Passes over the training images. 0: the regime's own."""
    lr: float = 0.0
    """Learning rate, at its highest. 0: the regime's own, 1e-3 or 4e-3."""
    clip: float = -1.0
    """Shorten gradients that are longer than this. 0: none. Below 0: the regime's own, none or 1. The paper's
    own gamma, which is linear, needs it."""
    keep: Literal["auto", "best", "last"] = "auto"
    """Weights to keep: of the epoch with the highest held-out accuracy, or of the last. auto: best in the paper regime,
    last in the modern one, whose learning rate ends at 0."""
    images: int = 0
    """Training images to use, those held out included. 0: all."""
    test_images: int = 0
    """Test images to use. 0: all."""
    held_out: int = 5000
    """Training images to hold out."""
    tf32: bool = True
    """On CUDA, let 32-bit products round their factors to TF32, which is several times faster."""
    data_dir: str = ""
    """Folder of data. Unless given: NCODE_DATA, the cache, or a download."""
    fallback: bool = False
    """Where the data are not found, draw a small set of the same shape in their place."""

    def __post_init__(self) -> None:
        check_choice("dataset", self.dataset, DATASETS)
        check_choices("model", self.models, MODELS)
        check_choice("regime", self.regime, tuple(REGIMES))
        check_choice("gamma", self.gamma, GAMMAS)
        check_choice("step", self.step, ("sample", "batch"))
        check_choice("keep", self.keep, ("auto", "best", "last"))
        check_choice("augment", self.augment, ("auto", "yes", "no"))
        check_positive(held_out=self.held_out, width=self.width, shrink=self.shrink, scale=self.scale)
        for name in ("dropout", "label_smoothing"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise InputError(f"{name} must be at least 0 and below 1; given {getattr(self, name)!r}")
        for name in ("control_cost", "kinetic_cost", "filters", "epochs", "batch", "lr", "images", "test_images"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} must be at least 0; given {getattr(self, name)!r}")
        self.design()

    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        """Each model with each seed."""
        end = " (generated)" if self._generated() else ""
        about = {"epochs": self.planned_epochs, "batch": self.planned_batch, "lr": self.planned_lr}
        about |= {"weight decay": self.planned_decay, "clip": self.planned_clip}
        labels = {model: label_of(self, model) + end for model in self.models}
        return [Trial(model, label, seed, about) for model, label in labels.items() for seed in seeds]

    def run(self, trial: Trial, context: TrialContext) -> dict[str, float]:
        """Train a model, then look at the test images once."""
        sets = _load(self.dataset, self.data_dir, self.fallback)
        if sets.generated:
            context.info(f"{self.dataset} was not found: {sets.name} stand in for it")
        autotune = not context.options.deterministic
        with tf32(self.tf32, matmul=True, autotune=autotune, device=context.device):
            task = Classify(self, trial, sets)
            model = context.fit(task)
            assert isinstance(model, ImageClassifier)
            if context.options.save and context.fabric.is_global_zero:
                model.save_pretrained(context.folder / "pretrained")
            seen = sets.test.take(slice(0, self.test_images or None)).to(context.device)
            test = measure(model, seen.images, seen.labels, self.planned_batch)
            if has_flow(trial.model) and not is_network(trial.model):
                changes = self.adaptive(trial.model)
                again = measure(model, seen.images, seen.labels, self.planned_batch, **changes) if changes else test
                test |= {f"{name} by dopri5": again[name] for name in ("accuracy", "nfe", "failed")}
        seconds = {} if task.clock.mean is None else {"seconds an epoch": task.clock.mean * task.per_epoch}
        return {**context.final, **test, **seconds, "held-out accuracy": context.final["accuracy"]}

    def figures(self, finished: Sequence[Finished]) -> list[Picture]:
        """The figure of appendix C.2, of all models together; networks of blocks have one of their own."""
        return _pictures([("networks" if is_network(done.trial.model) else "", done.result) for done in finished])

    @classmethod
    def redraw(cls, results: Sequence[Result]) -> list[Picture]:
        """The same figure, one for each label that has several models.

        >>> seen = {f"evaluation {name}": [1.0, 2.0] for name in ("step", "accuracy", "loss", "nfe")}
        >>> about = ("mnist", "smoke", 0, {}, {}, 1, 1.0, "", {}, "", "", {}, seen)
        >>> results = [Result("classification", model, *about) for model in ("ncode", "anode")]
        >>> [picture.name for picture in Classification.redraw(results)]
        ['training-mnist']
        """
        models: dict[str, set[str]] = {}
        for result in results:
            models.setdefault(result.dataset, set()).add(result.model)
        return _pictures([(result.dataset, result) for result in results if len(models[result.dataset]) > 1])

    @property
    def planned_epochs(self) -> int:
        """Epochs, as told or the regime's."""
        return self.epochs or REGIMES[self.regime].epochs[self.dataset]

    @property
    def planned_batch(self) -> int:
        """Images a training step, as told or the regime's."""
        return self.batch or REGIMES[self.regime].batch

    @property
    def planned_lr(self) -> float:
        """Learning rate, as told or the regime's."""
        return self.lr or REGIMES[self.regime].lr

    @property
    def planned_decay(self) -> float:
        """Weight decay, as told or the regime's."""
        return REGIMES[self.regime].weight_decay if self.weight_decay < 0 else self.weight_decay

    @property
    def planned_clip(self) -> float:
        """The longest gradient, as told or the regime's; 0 for any."""
        return REGIMES[self.regime].clip if self.clip < 0 else self.clip

    @property
    def planned_augment(self) -> bool:
        """Whether training images are shifted and mirrored, as told or the regime's."""
        return REGIMES[self.regime].modern if self.augment == "auto" else self.augment == "yes"

    @property
    def planned_keep(self) -> str:
        """Whose weights are kept, as told or the regime's."""
        return REGIMES[self.regime].keep if self.keep == "auto" else self.keep

    def design(self) -> Design:
        """What models are built by."""
        solver = Solver(self.solver, self.tolerance, self.steps, self.step, self.compile)
        trunk = {"gamma": self.gamma, "hidden": self.hidden, "dropout": self.dropout, "scale": self.scale}
        widths = (self.width, 2 * self.width, 4 * self.width)
        return Design(self.filters, self.zeros, **trunk, shrink=self.shrink, widths=widths, solver=solver)

    def adaptive(self, model: str) -> dict[str, Any]:
        """What makes dopri5 solve a model that is trained with steps of equal length; nothing where it does anyway."""
        if self.solver == "dopri5" or is_network(model) or not has_flow(model):
            return {}
        return {**Solver(tolerance=self.tolerance).settings(), "dt": None, "gradient": "discrete"}

    def costs(self) -> list[Regulariser]:
        """Running costs."""
        control = [ControlNorm(self.control_cost)] if self.control_cost else []
        return [*control, *([KineticEnergy(self.kinetic_cost)] if self.kinetic_cost else [])]

    def _generated(self) -> bool:
        if not self.fallback:
            return False
        try:
            find(self.dataset, self.data_dir or None, download=False)
        except MissingData:
            return True
        return False


CAPTION = (
    "Accuracy and loss on held-out training images against training steps, the loss on training images as dashed lines,"
    " and the evaluations of the field that a held-out image takes against its loss. Lines are means over seeds, bands"
    " reach from the lowest to the highest."
)


def _pictures(named: Sequence[tuple[str, Result]]) -> list[Picture]:
    """One for each name."""
    from ..figures.classification import draw_classification

    groups: dict[str, dict[str, list[dict[str, list[float]]]]] = {}
    for name, result in sorted(named, key=lambda each: [*MODELS, each[1].model].index(each[1].model)):
        if result.curves.get("evaluation step"):
            groups.setdefault(name, {}).setdefault(result.model, []).append(result.curves)
    pictures = []
    for name, curves in sorted(groups.items()):
        file = re.sub(r"[^\w.]+", "-", f"training {name}").strip("-")
        caption = f"{name[:1].upper()}{name[1:]}. {CAPTION}" if name else CAPTION
        pictures.append(Picture(file, draw_classification(curves), caption))
    return pictures


@functools.lru_cache(maxsize=1)
def _load(dataset: str, data_dir: str, fallback: bool) -> ImageSets:
    return load(dataset, data_dir or None, fallback=fallback)
