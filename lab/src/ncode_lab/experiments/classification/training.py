"""Training and evaluation of a classifier."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ncode.models import ClassifierOutput, ImageClassifier

from ...data import ImageSets, Normalisation, augment, batch_indices, batches_per_epoch, hold_out, stream
from ...training import Loss, Task, Trial
from ...training.schedules import one_cycle
from ..common import StepClock
from .models import build_classifier

if TYPE_CHECKING:
    from .experiment import Classification

RegimeName = Literal["paper", "modern"]
DATASETS = ("mnist", "fashion-mnist", "cifar10")


class Recipe(NamedTuple):
    """How classifiers are trained."""

    epochs: int
    cifar_epochs: int
    batch: int
    lr: float
    weight_decay: float
    clip: float  # largest norm of a gradient; 0: none
    keep_best: bool  # of all epochs, by held-out accuracy; otherwise the last
    augment: bool  # crops and flips
    modern: bool  # AdamW and one-cycle learning rates; otherwise Adam and a constant one


REGIMES: Mapping[str, Recipe] = {
    # At a constant learning rate models overfit: the last epoch is not the best one.
    "paper": Recipe(20, 50, 256, 1e-3, 0.0, 0.0, keep_best=True, augment=False, modern=False),
    # Without clipping, one of three trainings of N-CODE broke down at the highest learning rate and never recovered.
    "modern": Recipe(24, 30, 128, 4e-3, 1e-2, 1.0, keep_best=False, augment=True, modern=True),
}


class Classify(Task):
    """One classifier, on one data set, in one regime."""

    def __init__(self, settings: Classification, trial: Trial, sets: ImageSets):
        train = sets.train
        if 0 < settings.images < len(train):
            order = torch.randperm(len(train), generator=stream(0, "subset"))
            train = train.take(order[: settings.images])
        # A fixed seed: every model and every seed is evaluated on the same images.
        self.train, self.held_out = hold_out(train, min(settings.held_out, len(train) // 4), seed=0)
        self.settings, self.trial, self.recipe = settings, trial, settings.recipe
        self.batch_size, self.clip = min(self.recipe.batch, len(self.train)), self.recipe.clip
        self.per_epoch = batches_per_epoch(self.batch_size, len(self.train))
        self.steps = self.recipe.epochs * self.per_epoch
        self.evaluate_every = self.per_epoch
        self.keep_best = "accuracy" if self.recipe.keep_best else ""
        self.costs, self.clock = settings.costs(), StepClock()
        scaling = Normalisation.of(self.train)
        model = build_classifier(trial.model, train.shape, len(train.classes), settings)
        self.model: nn.Module = model.set_normalisation(scaling.mean, scaling.std)

    def batch(self, step: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        self.clock.tick(step)
        train = self.train
        indices = batch_indices(step, self.batch_size, len(train), self.trial.seed, train.device)
        images = train.images[indices]
        if self.recipe.augment:
            digits = self.settings.dataset == "mnist"  # a mirrored digit is not a digit
            images = augment(images, generator=generator, padding=2 if digits else 4, flip=not digits)
        return images, train.labels[indices]

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Loss:
        """Cross-entropy and running costs over the samples that could be solved; the others are counted."""
        assert isinstance(model, ImageClassifier)
        images, labels = batch
        output = model.classify(images, self.costs or None)
        entropy = cross_entropy(output, labels, self.settings.label_smoothing)
        # If no sample could be solved this is nan, and training stops: a loss of 0 would hide it.
        value = (entropy + output.cost.float()).sum() / output.ok.sum()
        report = {
            "accuracy": is_correct(output, labels).float().mean(),
            "nfe": output.nfe.float().mean(),
            "rejected": output.rejected.float().mean(),
            "control norm": control_norm(output).mean(),
            "failed": (~output.ok).sum(),
        }
        return Loss(value, report)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Accuracy, loss and evaluations on the held-out images.

        With fixed steps the number of evaluations says nothing about the flow: then it is counted with dopri5, on one
        batch.
        """
        assert isinstance(model, ImageClassifier)
        self.clock.pause()
        images, labels = self.held_out.images, self.held_out.labels
        found = measure(model, images, labels, self.batch_size)
        some = torch.arange(self.batch_size, device=images.device) % len(images)
        changes = self.settings.adaptive(self.trial.model)
        # dopri5 would take the rounding of 16 bits for an error.
        with torch.autocast(images.device.type, enabled=torch.is_autocast_enabled(images.device.type) and not changes):
            counted = evaluations(model, images[some], labels[some], **changes)
        return {**found, **counted} if changes else {**counted, **found}

    def optimiser(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        every = list(parameters)
        kind = AdamW if self.recipe.modern else Adam
        fused = all(each.is_cuda for each in every)
        return kind(every, lr=self.recipe.lr, weight_decay=self.recipe.weight_decay, fused=fused)

    def schedule(self, optimiser: Optimizer) -> LRScheduler | None:
        return one_cycle(optimiser, self.steps) if self.recipe.modern else None

    def to(self, device: torch.device) -> None:
        self.train, self.held_out = self.train.to(device), self.held_out.to(device)


def cross_entropy(output: ClassifierOutput, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Cross-entropy of each sample, (batch,); 0 for those that could not be solved."""
    each = F.cross_entropy(output.logits.float(), labels, reduction="none", label_smoothing=smoothing)
    return torch.where(output.ok, each, 0)


def is_correct(output: ClassifierOutput, labels: Tensor) -> Tensor:
    """Which samples are classified correctly, (batch,); one that could not be solved is not."""
    return (output.logits.argmax(1) == labels) & output.ok


@torch.no_grad()
def control_norm(output: ClassifierOutput) -> Tensor:
    """The norm of each sample's control over all blocks, (batch,); 0 where all samples share their control."""
    squares = torch.zeros_like(output.logits[:, 0], dtype=torch.float32)
    for value in (value for solution in output.solutions for value in solution.theta.values()):
        if value.stride(0):  # a shared control is an expanded view, of stride 0
            squares += torch.linalg.vector_norm(value.flatten(1), dim=1, dtype=torch.float32).square()
    return squares.sqrt()


@torch.no_grad()
def measure(model: ImageClassifier, images: Tensor, labels: Tensor, chunk: int, **changes: Any) -> dict[str, float]:
    """Accuracy, loss, evaluations per solve and failures on all images; `changes` are solver options.

    Every chunk has the same size, the last one being filled up, so that a compiled solver sees one shape.
    """
    count, device = len(images), images.device
    total = torch.zeros(4, dtype=torch.float64, device=device)
    for first in range(0, count, chunk):
        indices = torch.arange(first, first + chunk, device=device)
        real, indices = indices < count, indices % count
        output, wanted = model.classify(images[indices], **changes), labels[indices]
        parts = (is_correct(output, wanted), cross_entropy(output, wanted), output.nfe, ~output.ok)
        total += torch.stack([(part * real).sum().double() for part in parts])
    accuracy, loss, nfe, failed = (total / count).tolist()
    return {"accuracy": accuracy, "loss": loss, "nfe": nfe, "failed": round(failed * count)}


def evaluations(model: ImageClassifier, images: Tensor, labels: Tensor, **changes: Any) -> dict[str, float]:
    """Evaluations per sample, forward and backward (0 if a graph is kept); `changes` are solver options.

    Gradients of the model are left as they are.
    """
    torch.clear_autocast_cache()  # it may hold copies of weights made without gradients
    with torch.enable_grad():
        output = model.classify(images, **{"keep": "states", **changes})  # a kept graph evaluates nothing again
        value = cross_entropy(output, labels).sum()
        torch.autograd.grad(value, [each for each in model.parameters() if each.requires_grad], allow_unused=True)
    return {"nfe": float(output.nfe.double().mean()), "nfe backward": float(output.nfe_backward.double().mean())}
