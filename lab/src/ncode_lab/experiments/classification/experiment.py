"""Classify images by a flow and a linear read-out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product
from typing import Any, ClassVar, Literal

from ncode import InputError
from ncode.costs import ControlNorm, KineticEnergy, Regulariser
from ncode.errors import check_choice, check_fraction
from ncode.models import ImageClassifier

from ...data import ImageSets, check_dataset, own_name
from ...precision import tf32
from ...training import Column, Reported, Result, Trial, TrialContext
from ...wording import problem_name
from ..base import Experiment, Finished, Picture
from ..common import (
    Curves,
    check_choices,
    check_not_negative,
    check_positive,
    describe_own_data,
    file_name,
    load_images,
)
from .models import CONTROLLED, FUSED, MODELS, NETWORKS, TOLERANCE, WIDTHS, ClassifierSettings, Model
from .training import DATASETS, REGIMES, Classify, Recipe, RegimeName, measure

CAPTION = (
    "Accuracy and loss on held-out training images against training steps, the loss on training images as dashed lines,"
    " and the evaluations of the field per held-out image against its loss. Lines: means over seeds; bands: minimum to"
    " maximum."
)
_SMALL = {"dataset": "mnist", "models": ("anode", "ncode"), "fallback": True, "shrink": 2, "solver": "rk4", "steps": 1}
_SMOKE = {"filters": 4, "images": 96, "test_images": 96, "held_out": 32, "epochs": 2, "batch": 32}
_QUICK = {"filters": 16, "images": 20_000, "held_out": 2000, "epochs": 4, "batch": 100, "regime": "modern", "lr": 6e-3}
_PAPER_MODELS = ("node", "anode", "data-control", "ncode", "ncode-3x3")
_PAPER_ACCURACY = (("mnist", 0.982, 0.985, 0.992), ("cifar10", 0.612, 0.620, 0.741))


def _reported() -> tuple[Reported, ...]:
    """The paper's accuracies, for each label that its settings may have: it gives neither epochs nor clipping."""
    found = []
    for dataset, anode, data_control, ncode in _PAPER_ACCURACY:
        zeros = ("", ", zeros 10") if dataset == "mnist" else ("",)
        for clip, ending in product(("", ", clip 1"), map("".join, product(zeros, ("", ", solver dopri5")))):
            found.append(Reported("anode", f"{dataset}{clip}{ending}", "accuracy", anode))
            found.append(Reported("data-control", f"{dataset}{clip}{ending}", "accuracy", data_control))
            for kind in ("linear", "perceptron"):
                label = f"{dataset}, gamma {kind}{clip}{ending}"
                found.append(Reported("ncode", label, "accuracy", ncode, "epochs not given"))
        found.append(Reported("ncode", dataset, "accuracy", ncode, "with the paper's gamma; epochs not given"))
    return tuple(found)


@dataclass(frozen=True)
class Classification(ClassifierSettings, Experiment):
    """Classify images by a flow: the image is x(0), and a linear map of x(1) gives the classes.

    All models see the same images in the same order, with the same budget. 5000 training images are held out for
    curves and choices, including the choice of the epoch to keep; the test images are evaluated once, at the end.

    The preset `full` uses our gamma, conv-pool, and fixed steps; `paper` uses the paper's gamma, which is linear, adds
    ten channels of zeros on every data set and solves with dopri5, as the paper does. Both use the recipe of ANODE,
    since the paper gives none.

    With --precision bf16 the convolutions and linear maps of gamma, of the field and of the read-out are computed in
    bfloat16; the state, the sums of the solver, its error estimate, norms and the loss stay in 32 bits. Meant for fixed
    steps: dopri5 at a tolerance of 1e-3 takes the rounding of bfloat16 for an error and makes more steps. The test
    images are classified in 32 bits.
    """

    name = "classification"
    line = "N-CODE against NODE, ANODE and data control on images (section 4.2)"
    question = (
        "An image flows through one convolution block, and a linear map of where it ends gives its class. Does it help"
        " when the kernels of the block are set from the image itself (N-CODE), rather than shared by all images (NODE;"
        " ANODE with empty channels added; a wide ANODE with as many parameters as N-CODE), or shared while the block"
        " sees the image all the way (data control)? Compare accuracies on test images, and the parameters, evaluations"
        " and time that they take."
    )
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "smoke": {**_SMALL, **_SMOKE},
        "quick": {**_SMALL, **_QUICK},
        "full": {"solver": "rk4"},
        "paper": {"gamma": "linear", "zeros": 10, "models": _PAPER_MODELS},
    }
    columns = (
        Column("accuracy", "test accuracy, %", digits=2, scale=100),
        Column("held-out accuracy", "held-out accuracy, %", digits=2, scale=100),
        Column("accuracy by dopri5", "test accuracy by dopri5, %", digits=2, scale=100),
        Column("nfe by dopri5", "evaluations by dopri5", digits=1),
    )
    paper = _reported()
    retired: ClassVar[Mapping[str, Any]] = {
        "width": WIDTHS[0],
        "tolerance": TOLERANCE,
        "step": "sample",
        "keep": "auto",
        "tf32": True,
    }

    dataset: str = "cifar10"
    """Data set: mnist, fashion-mnist or cifar10; or data of your own: a folder with one subfolder of images per class,
    an .npz file with images and labels, or module:function."""
    image_size: int = 0
    """Crop images of your own to squares, and resize them to this side length. 0: leave them as they are."""
    channels: int = 0
    """Channels of images of your own: 1 for grey, 3 for colour. 0: grey if all of them are."""
    models: tuple[Model, ...] = ("node", "anode", "anode-wide", "data-control", "ncode", "ncode-3x3")
    """Models to train. ncode-closed drives the kernels by the state; gamma-alone has no flow; late-fusion and
    gamma-channels use gamma's features without control; ncode-net, static-net and static-net-wide are networks of three
    blocks."""
    regime: RegimeName = "paper"
    """Training recipe. paper: Adam at 1e-3, no augmentation, 20 epochs (CIFAR-10: 50), the epoch with the best held-out
    accuracy. modern: random crops and flips, AdamW, clipped gradients, one-cycle learning rate, 24 epochs (CIFAR-10:
    30), the last epoch."""
    control_cost: float = 0.0
    """Weight of the running cost |theta|^2, a sum over all values."""
    kinetic_cost: float = 0.0
    """Weight of the running cost |dx/dt|^2, a sum over all values."""
    weight_decay: float = -1.0
    """Weight decay. Below 0: that of the regime, 0 or 0.01."""
    label_smoothing: float = 0.0
    """Probability that is spread over all classes."""
    augment: Literal["auto", "yes", "no"] = "auto"
    """Shift training images at random, and mirror those that are not digits. auto: in the modern regime."""
    batch: int = 0
    """Images per training step. 0: that of the regime, 256 or 128."""
    epochs: int = 0
    """Passes over the training images. 0: those of the regime."""
    lr: float = 0.0
    """Peak learning rate. 0: that of the regime, 1e-3 or 4e-3."""
    clip: float = -1.0
    """Largest norm of a gradient. 0: no clipping. Below 0: that of the regime, none or 1. The linear gamma may need
    it."""
    images: int = 0
    """Training images to use, including those held out. 0: all."""
    test_images: int = 0
    """Test images to use. 0: all."""
    held_out: int = 5000
    """Training images to hold out."""
    data_dir: str = ""
    """Folder of the data. Default: NCODE_DATA, the cache, or a download."""
    fallback: bool = False
    """If the data are not found, generate a small set of the same shape."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dataset(self.dataset, DATASETS, self.image_size, self.channels)
        check_choices("model", self.models, MODELS)
        check_choice("regime", self.regime, tuple(REGIMES))
        check_choice("augment", self.augment, ("auto", "yes", "no"))
        check_positive(self, "held_out")
        check_fraction("label_smoothing", self.label_smoothing)
        check_not_negative(self, "control_cost", "kinetic_cost", "epochs", "batch", "lr", "images", "test_images")

    @property
    def metrics(self) -> tuple[str, ...]:
        more = ("loss", "nfe", "nfe backward", "failed", "failed by dopri5", "best step", "seconds an epoch")
        return (*super().metrics, *more)

    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        ending = " (generated)" if self.fallback and self.sets().generated else ""
        recipe = self.recipe
        about = {"epochs": recipe.epochs, "batch": recipe.batch, "lr": recipe.lr}
        about |= {"weight decay": recipe.weight_decay, "clip": recipe.clip}
        labels = {model: label_of(self, model) + ending for model in self.models}
        return [Trial(model, label, seed, about) for model, label in labels.items() for seed in seeds]

    def run(self, trial: Trial, context: TrialContext) -> dict[str, float]:
        sets = self.sets()
        if sets.generated:
            context.info(f"{self.dataset} was not found: using {sets.name} instead")
        with tf32(True, matmul=True, autotune=not context.options.deterministic):
            task = Classify(self, trial, sets)
            if self.adaptive(trial.model):
                context.info(f"nfe of {trial.model}: by {self.solver} in training, by dopri5 in evaluations")
            model = context.fit(task)
            assert isinstance(model, ImageClassifier)
            context.save_model(model)
            test = sets.test.take(slice(0, self.test_images or None)).to(context.device)
            found = measure(model, test.images, test.labels, self.recipe.batch)
            if trial.model not in ("gamma-alone", *NETWORKS):
                changes = self.adaptive(trial.model)
                again = measure(model, test.images, test.labels, self.recipe.batch, **changes) if changes else found
                found |= {f"{name} by dopri5": again[name] for name in ("accuracy", "nfe", "failed")}
        seconds = {} if task.clock.mean is None else {"seconds an epoch": task.clock.mean * task.per_epoch}
        return {**context.final, **found, **seconds, "held-out accuracy": context.final["accuracy"]}

    def sets(self) -> ImageSets:
        """Training and test images, on the CPU."""
        return load_images(self)

    def data(self) -> dict[str, Any]:
        classes = self.sets().train.classes
        if len(classes) < 2:
            found = "one class" if classes else "no labels"
            raise InputError(f"{self.dataset} has {found}: a classifier needs at least two classes")
        return describe_own_data(self)

    def figures(self, finished: Sequence[Finished]) -> list[Picture]:
        """The figure of appendix C.2 with all models; networks of blocks have a figure of their own."""
        return _pictures([("networks" if done.trial.model in NETWORKS else "", done.result) for done in finished])

    @classmethod
    def redraw(cls, results: Sequence[Result]) -> list[Picture]:
        """The same figure for each label that has several models."""
        models: dict[str, set[str]] = {}
        for result in results:
            models.setdefault(result.dataset, set()).add(result.model)
        return _pictures([(result.dataset, result) for result in results if len(models[result.dataset]) > 1])

    @property
    def recipe(self) -> Recipe:
        regime = REGIMES[self.regime]
        return regime._replace(
            epochs=self.epochs or (regime.cifar_epochs if self.dataset == "cifar10" else regime.epochs),
            batch=self.batch or regime.batch,
            lr=self.lr or regime.lr,
            weight_decay=regime.weight_decay if self.weight_decay < 0 else self.weight_decay,
            clip=regime.clip if self.clip < 0 else self.clip,
            augment=regime.augment if self.augment == "auto" else self.augment == "yes",
        )

    def adaptive(self, model: str) -> dict[str, Any]:
        """Solver options that replace fixed steps by dopri5; empty if the model uses it anyway."""
        if self.solver == "dopri5" or model in ("gamma-alone", *NETWORKS):
            return {}
        return {**ClassifierSettings().solver_options(), "dt": None, "gradient": "discrete"}

    def costs(self) -> list[Regulariser]:
        control = [ControlNorm(self.control_cost)] if self.control_cost else []
        return [*control, *([KineticEnergy(self.kinetic_cost)] if self.kinetic_cost else [])]


def label_of(settings: Classification, model: str) -> str:
    """The label of a model in tables: data set, regime, and the relevant settings that are not those of `full`."""
    parts = [settings.dataset if settings.dataset in DATASETS else own_name(settings.dataset)]
    parts += ["modern"] if settings.regime == "modern" else []
    if model in NETWORKS:
        parts.append("networks")
    recipe, regime = settings.recipe, REGIMES[settings.regime]
    zeros = {"mnist": 5, "fashion-mnist": 5, "cifar10": 10}.get(settings.dataset, 0)
    usual = {field.name: field.default for field in fields(settings)}
    usual |= {"weight_decay": regime.weight_decay, "clip": regime.clip, "zeros": zeros, "solver": "rk4"}
    values = {**asdict(settings), "weight_decay": recipe.weight_decay, "clip": recipe.clip}
    values["zeros"] = settings.zeros or zeros
    for name in relevant_settings(model):
        value = values[name]
        if value != usual[name]:
            shown = "none" if name == "zeros" and value < 0 else value if isinstance(value, str) else f"{value:g}"
            parts.append(f"{name.replace('_', ' ')} {shown}")
    if recipe.augment != regime.augment:
        parts.append("augmentation" if recipe.augment else "no augmentation")
    return ", ".join(parts)


def relevant_settings(model: str) -> tuple[str, ...]:
    """The settings that distinguish two trainings of a model, in the order of a label.

    anode-wide has no gamma, but its size is that of ncode. Networks of blocks have a gamma of their own.
    """
    trained = ("weight_decay", "label_smoothing", "clip")
    if model in NETWORKS:
        return ("control_cost", "kinetic_cost", *trained)
    if model == "gamma-alone":
        return ("gamma", "hidden", "dropout", *trained)
    gamma = ("gamma", "hidden") if model in CONTROLLED or model == "anode-wide" or model in FUSED else ()
    control = ("dropout", "scale", "control_cost") if model in CONTROLLED else ("dropout",) if model in FUSED else ()
    zeros = () if model in ("node", "gamma-channels") else ("zeros",)
    return (*gamma, *control, "kinetic_cost", *trained, "filters", *zeros, "readout", "solver")


def _pictures(named: Sequence[tuple[str, Result]]) -> list[Picture]:
    from .figures import draw_classification

    groups: dict[str, dict[str, list[Curves]]] = {}
    for name, result in sorted(named, key=lambda each: [*MODELS, each[1].model].index(each[1].model)):
        if result.curves.get("evaluation step"):
            groups.setdefault(name, {}).setdefault(result.model, []).append(result.curves)
    pictures = []
    for name, curves in sorted(groups.items()):
        caption = f"{problem_name(name)}. {CAPTION}" if name else CAPTION
        pictures.append(Picture(file_name(f"training {name}"), draw_classification(curves), caption))
    return pictures
