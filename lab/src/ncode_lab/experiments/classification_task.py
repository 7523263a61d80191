"""The training of a classifier."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ncode.models.classifier import ImageClassifier

from ..data import ImageSets, Normalisation, augment, batch_indices, batches_per_epoch, hold_out, stream
from ..models.classifier_family import build_classifier
from ..models.classifier_score import cross_entropy, evaluations, measure, right
from ..training import Loss, Task, Trial
from ..training.schedules import one_cycle
from .classification_regimes import REGIMES
from .clock import StepClock

if TYPE_CHECKING:
    from .classification import Classification


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
        self.batch_size, self.clip = min(settings.planned_batch, len(self.train)), settings.planned_clip
        self.per_epoch = batches_per_epoch(self.batch_size, len(self.train))
        self.steps = settings.planned_epochs * self.per_epoch
        self.evaluate_every = self.per_epoch
        self.keep_best = "accuracy" if settings.planned_keep == "best" else ""
        self.regime, self.costs, self.clock = REGIMES[settings.regime], settings.costs(), StepClock()
        scaling = Normalisation.of(self.train)
        model = build_classifier(trial.model, train.shape, len(train.classes), settings.design())
        self.model: nn.Module = model.scale_by(scaling.mean, scaling.std)

    def batch(self, step: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Images of a step, uint8, and their labels."""
        self.clock.tick(step)
        train = self.train
        indices = batch_indices(step, self.batch_size, len(train), self.trial.seed, train.device)
        images = train.images[indices]
        if self.settings.planned_augment:
            digits = self.settings.dataset == "mnist"  # a mirrored digit is none
            images = augment(images, generator=generator, padding=2 if digits else 4, flip=not digits)
        return images, train.labels[indices]

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Loss:
        """Cross entropy and running costs; samples that could not be solved are left out, and counted."""
        assert isinstance(model, ImageClassifier)
        images, labels = batch
        answer = model.answer(images, self.costs or None)
        entropy = cross_entropy(answer, labels, self.settings.label_smoothing)
        # Where no sample could be solved this is nan, and training stops: a loss of 0 would hide it.
        value = (entropy + answer.cost.float()).sum() / answer.ok.sum()
        report = {
            "accuracy": right(answer, labels).float().mean(),
            "nfe": answer.nfe.float().mean(),
            "rejected": answer.rejected.float().mean(),
            "control norm": answer.control_norm.mean(),
            "failed": (~answer.ok).sum(),
        }
        return Loss(value, report)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Accuracy, loss and evaluations, on the images held out.

        Steps of equal length say nothing about how hard a flow is to solve: where they are trained with, evaluations
        are those of dopri5, on one batch.
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
        """Adam, or AdamW."""
        every = list(parameters)
        kind = AdamW if self.regime.modern else Adam
        fused = all(each.is_cuda for each in every)
        return kind(every, lr=self.settings.planned_lr, weight_decay=self.settings.planned_decay, fused=fused)

    def schedule(self, optimiser: Optimizer) -> LRScheduler | None:
        """One rise and one fall in the modern regime."""
        if not self.regime.modern:
            return None
        return one_cycle(optimiser, self.steps)

    def to(self, device: torch.device) -> None:
        """All images to the device, as bytes."""
        self.train, self.held_out = self.train.to(device), self.held_out.to(device)
