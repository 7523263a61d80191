"""Image classification (section 4.2 and appendix C.2 of the paper): MNIST, Fashion-MNIST and CIFAR-10."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from ..costs import ControlNorm, KineticEnergy, Regulariser
from ..data import (
    ImageSets,
    MissingData,
    Normalisation,
    augment,
    batch_indices,
    batches_per_epoch,
    find,
    hold_out,
    load,
    stream,
)
from ..models.classifier import ImageClassifier
from ..models.classifier_family import MODELS, Design, Model, Solver, build_classifier
from ..models.classifier_score import cross_entropy, measure, nfe_backward, right
from ..models.gammas import GAMMAS, Gamma
from ..solve import InputError
from ..solve.problem import choose
from ..training import Column, Desk, Loss, Reported, Task, Trial
from .base import Experiment, Finished, Picture
from .checks import check_choices, check_positive

Dataset = Literal["mnist", "fashion-mnist", "cifar10"]
RegimeName = Literal["paper", "modern"]
SolverName = Literal["dopri5", "rk4"]
DATASETS: tuple[Dataset, ...] = get_args(Dataset)


class Regime(NamedTuple):
    """What "paper" and "modern" stand for. Each number can be told otherwise."""

    epochs: Mapping[str, int]
    lr: float
    weight_decay: float
    modern: bool  # crops and flips, AdamW, and a learning rate that rises and falls


REGIMES = {
    "paper": Regime({"mnist": 20, "fashion-mnist": 20, "cifar10": 50}, 1e-3, 0.0, False),
    "modern": Regime(dict.fromkeys(DATASETS, 24), 2e-3, 1e-2, True),
}


@dataclass(frozen=True)
class Classification(Experiment):
    """Classify images by a flow: the image is x(0), and a linear map of x(1) gives the classes.

    All models see the same images in the same order, with the same budget. 5,000 training images are held out, and are
    what curves show and choices are made by; the test images are looked at once, at the end.

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
        Column("loss", "test loss", digits=3),
        Column("nfe", "evaluations forward", digits=1),
        Column("nfe backward", "backward", digits=1),
        Column("seconds an epoch", "seconds an epoch", digits=1),
    )
    paper = tuple(
        Reported(model, dataset, "accuracy", value, note)
        for dataset, numbers in (("mnist", (0.982, 0.985, 0.992)), ("cifar10", (0.612, 0.620, 0.741)))
        for model, value, note in zip(
            ("anode", "data-control", "ncode"), numbers, ("", "", "gamma linear, epochs not given"), strict=True
        )
    )

    dataset: Dataset = "cifar10"
    """Images to classify."""
    models: tuple[Model, ...] = ("node", "anode", "anode-wide", "data-control", "ncode", "ncode-3x3")
    """Models to train. ncode-closed drives the kernels by the state; ncode-net, static-net and static-net-wide are
    networks of three blocks."""
    regime: RegimeName = "paper"
    """paper: Adam at 1e-3, no augmentation, 20 epochs (CIFAR-10: 50). modern: random crops and flips, AdamW, a learning
    rate that rises and falls, 24 epochs."""
    gamma: Gamma = "conv"
    """Trunk that sets the control: linear and perceptron as the paper may be read, conv and conv-norm ours."""
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
    batch: int = 256
    """Images a training step."""
    epochs: int = 0
    """Passes over the training images. 0: the regime's own."""
    lr: float = 0.0
    """Learning rate, at its highest. 0: the regime's own, 1e-3 or 2e-3."""
    images: int = 0
    """Training images to use, those held out included. 0: all."""
    held_out: int = 5000
    """Training images to hold out."""
    tf32: bool = True
    """On CUDA, let 32-bit products round their factors to TF32, which is several times faster."""
    data_dir: str = ""
    """Folder of data. Unless given: NCODE_DATA, the cache, or a download."""
    fallback: bool = False
    """Where the data are not found, draw a small set of the same shape in their place."""

    def __post_init__(self) -> None:
        choose("dataset", self.dataset, DATASETS)
        check_choices("model", self.models, MODELS)
        choose("regime", self.regime, tuple(REGIMES))
        choose("gamma", self.gamma, GAMMAS)
        choose("step", self.step, ("sample", "batch"))
        check_positive(batch=self.batch, held_out=self.held_out, width=self.width, shrink=self.shrink, scale=self.scale)
        for name in ("dropout", "label_smoothing"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise InputError(f"{name} must be at least 0 and below 1; given {getattr(self, name)!r}")
        for name in ("control_cost", "kinetic_cost", "filters", "epochs", "lr", "images"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} must be at least 0; given {getattr(self, name)!r}")
        self.design()

    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        """Each model with each seed."""
        label = self.dataset if self.regime == "paper" else f"{self.dataset}, {self.regime}"
        label = f"{label} (generated)" if self._generated() else label
        about = {"epochs": self.planned_epochs, "lr": self.planned_lr, "weight decay": self.planned_decay}
        return [Trial(model, label, seed, about) for model in self.models for seed in seeds]

    def run(self, trial: Trial, desk: Desk) -> dict[str, float]:
        """Train a model, then look at the test images once."""
        sets = _load(self.dataset, self.data_dir, self.fallback)
        if sets.generated:
            desk.say(f"{self.dataset} was not found: {sets.name} stand in for it")
        with tensor_cores(self.tf32, desk.device):
            task = Classify(self, trial, sets)
            model = desk.fit(task)
            assert isinstance(model, ImageClassifier)
            if desk.options.save and desk.fabric.is_global_zero:
                model.save_pretrained(desk.folder / "pretrained")
            seen = sets.test.to(desk.device)
            test = measure(model, seen.images, seen.labels, self.batch)
        seconds = {} if task.clock.mean is None else {"seconds an epoch": task.clock.mean * task.per_epoch}
        return {**desk.final, **test, **seconds, "held-out accuracy": desk.final["accuracy"]}

    def figures(self, finished: Sequence[Finished]) -> list[Picture]:
        """The figure of appendix C.2."""
        from ..figures.classification import draw_classification

        curves: dict[str, list[dict[str, list[float]]]] = {}
        for done in finished:
            curves.setdefault(done.trial.model, []).append(done.result.curves)
        if not curves:
            return []
        caption = (
            "Accuracy and loss on held-out training images against training steps, the loss on training images as"
            " dashed lines, and the evaluations of the field that a held-out image takes against its loss. Lines are"
            " means over seeds, bands reach from the lowest to the highest."
        )
        return [Picture("training", draw_classification(curves), caption)]

    @property
    def planned_epochs(self) -> int:
        """Epochs, as told or the regime's."""
        return self.epochs or REGIMES[self.regime].epochs[self.dataset]

    @property
    def planned_lr(self) -> float:
        """Learning rate, as told or the regime's."""
        return self.lr or REGIMES[self.regime].lr

    @property
    def planned_decay(self) -> float:
        """Weight decay, as told or the regime's."""
        return REGIMES[self.regime].weight_decay if self.weight_decay < 0 else self.weight_decay

    def design(self) -> Design:
        """What models are built by."""
        solver = Solver(self.solver, self.tolerance, self.steps, self.step, self.compile)
        trunk = {"gamma": self.gamma, "hidden": self.hidden, "dropout": self.dropout, "scale": self.scale}
        widths = (self.width, 2 * self.width, 4 * self.width)
        return Design(self.filters, self.zeros, **trunk, shrink=self.shrink, widths=widths, solver=solver)

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


class Classify(Task):
    """One classifier, on one data set, in one regime."""

    def __init__(self, settings: Classification, trial: Trial, sets: ImageSets):
        train = sets.train
        if 0 < settings.images < len(train):
            order = torch.randperm(len(train), generator=stream(0, "subset"))
            train = train.take(order[: settings.images])
        # Held out by a seed of their own: every model and every seed is judged by the same images.
        self.train, self.held_out = hold_out(train, min(settings.held_out, len(train) // 4), seed=0)
        self.settings, self.trial = settings, trial
        self.batch_size = min(settings.batch, len(self.train))
        self.per_epoch = batches_per_epoch(self.batch_size, len(self.train))
        self.steps = settings.planned_epochs * self.per_epoch
        self.evaluate_every = self.per_epoch
        self.regime, self.costs, self.clock = REGIMES[settings.regime], settings.costs(), Clock()
        scaling = Normalisation.of(self.train)
        model = build_classifier(trial.model, train.shape, len(train.classes), settings.design())
        self.model: nn.Module = model.scale_by(scaling.mean, scaling.std)

    def batch(self, step: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Images of a step, uint8, and their labels."""
        self.clock.tick(step)
        train = self.train
        indices = batch_indices(step, self.batch_size, len(train), self.trial.seed, train.device)
        images = train.images[indices]
        if self.regime.modern:
            digits = self.settings.dataset == "mnist"  # a mirrored digit is none
            images = augment(images, generator=generator, padding=2 if digits else 4, flip=not digits)
        return images, train.labels[indices]

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Loss:
        """Cross entropy and running costs; samples that could not be solved are left out, and counted."""
        assert isinstance(model, ImageClassifier)
        images, labels = batch
        answer = model.answer(images, self.costs or None)
        entropy = cross_entropy(answer, labels, self.settings.label_smoothing)
        value = (entropy + answer.cost.float()).sum() / answer.ok.sum().clamp(min=1)
        report = {
            "accuracy": right(answer, labels).float().mean(),
            "nfe": answer.nfe.float().mean(),
            "rejected": answer.rejected.float().mean(),
            "control norm": answer.control_norm.mean(),
            "failed": (~answer.ok).sum(),
        }
        return Loss(value, report)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Accuracy, loss and evaluations, on the images held out."""
        assert isinstance(model, ImageClassifier)
        self.clock.pause()
        images, labels = self.held_out.images, self.held_out.labels
        found = measure(model, images, labels, self.batch_size)
        some = torch.arange(self.batch_size, device=images.device) % len(images)
        return {**found, "nfe backward": nfe_backward(model, images[some], labels[some])}

    def optimiser(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Adam, or AdamW."""
        every = list(parameters)
        kind = AdamW if self.regime.modern else Adam
        fused = all(each.is_cuda for each in every)
        return kind(every, lr=self.settings.planned_lr, weight_decay=self.settings.planned_decay, fused=fused)

    def schedule(self, optimiser: Optimizer) -> LRScheduler | None:
        """One rise and one fall in the modern regime."""
        if not self.regime.modern:
            return None
        return LambdaLR(optimiser, functools.partial(one_cycle, steps=self.steps))

    def to(self, device: torch.device) -> None:
        """All images to the device, as bytes."""
        self.train, self.held_out = self.train.to(device), self.held_out.to(device)


class Clock:
    """The time that a training step takes, without evaluations and without the first steps, which compile and warm up.

    >>> clock = Clock(warm_up=1)
    >>> for step in range(4):
    ...     clock.tick(step)
    >>> clock.mean >= 0, clock.counted
    (True, 2)
    """

    def __init__(self, warm_up: int = 5):
        self.warm_up, self.seen, self.counted, self.total = warm_up, 0, 0, 0.0
        self._last: tuple[int, float] | None = None

    def tick(self, step: int) -> None:
        """A step begins."""
        now, last = time.perf_counter(), self._last
        if last is not None and last[0] == step - 1:
            self.seen += 1
            if self.seen > self.warm_up:
                self.counted, self.total = self.counted + 1, self.total + now - last[1]
        self._last = step, now

    def pause(self) -> None:
        """Something else begins."""
        self._last = None

    @property
    def mean(self) -> float | None:
        """Seconds a step; None where too few were seen."""
        return self.total / self.counted if self.counted else None


def one_cycle(step: int, steps: int, rise: float = 0.2) -> float:
    """What the learning rate is multiplied by: up along a line for a fifth of the steps, then down along a cosine.

    >>> [round(one_cycle(step, steps=100), 2) for step in (0, 20, 60, 100)]
    [0.04, 1.0, 0.5, 0.0]
    """
    top = max(1.0, rise * steps)
    if step < top:
        return 0.04 + 0.96 * step / top
    return 0.5 + 0.5 * math.cos(math.pi * min(1.0, (step - top) / max(1.0, steps - top)))


@contextmanager
def tensor_cores(enabled: bool, device: torch.device) -> Iterator[None]:
    """Whether 32-bit products on CUDA may round their factors to TF32, for as long as this lasts."""
    if device.type != "cuda":
        yield
        return
    before: tuple[Any, Any] = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if enabled else "highest")
    torch.backends.cudnn.allow_tf32 = enabled
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


@functools.lru_cache(maxsize=1)
def _load(dataset: str, data_dir: str, fallback: bool) -> ImageSets:
    return load(dataset, data_dir or None, fallback=fallback)
