"""Training of an autoencoder."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ncode import InputError
from ncode.models import Autoencoder

from ...data import Images, ImageSets, augment, batch_indices, batches_per_epoch, hold_out
from ...training import Loss, Task, Trial
from ...training.schedules import HalveOnPlateau, cosine
from ..common import StepClock
from .codes import to_floats
from .models import build_autoencoder
from .settings import HELD_OUT, PAPER_LR, PATIENCE, Coding


class Code(Task):
    """One autoencoder, on one data set."""

    plateau: HalveOnPlateau | None = None

    def __init__(self, settings: Coding, trial: Trial, sets: ImageSets):
        if len(sets.train) < 4:
            raise InputError(f"training needs at least 4 images, of which some are held out; given {len(sets.train)}")
        # A fixed seed: every model and every seed is evaluated on the same images.
        self.train, self.held_out = hold_out(sets.train, min(HELD_OUT, len(sets.train) // 4), seed=0)
        self.settings, self.trial, self.clock = settings, trial, StepClock()
        self.batch_size = min(settings.planned_batch(trial.model), len(self.train))
        if self.batch_size < 2:
            raise InputError("batches of one image cannot be normalised: choose a --batch of at least 2")
        self.per_epoch = batches_per_epoch(self.batch_size, len(self.train))
        self.steps = settings.planned_epochs * self.per_epoch
        self.evaluate_every = self.per_epoch
        self.model: nn.Module = build_autoencoder(trial.model, settings, trial.seed)

    def batch(self, step: int, generator: torch.Generator) -> Tensor:
        self.clock.tick(step)
        train, settings = self.train, self.settings
        images = train.images[batch_indices(step, self.batch_size, len(train), self.trial.seed, train.device)]
        flips = settings.flips and settings.dataset != "mnist"
        shift = settings.planned_shift if step < (1 - settings.still) * self.steps else 0
        if flips or shift:
            images = augment(images, generator=generator, padding=shift, flip=flips)
        return images

    def loss(self, model: nn.Module, batch: Tensor) -> Loss:
        """The model's training loss; the mean squared error is reported too."""
        assert isinstance(model, Autoencoder)
        images = to_floats(batch)
        found = model.training_loss(images)
        square = found.parts["error"] if model.loss == "mse" else mse_loss(found.images.detach(), images)
        return Loss(found.loss, {**found.parts, "error": square.detach()})

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        assert isinstance(model, Autoencoder)
        self.clock.pause()
        found = errors(model, self.held_out)
        if self.plateau is not None:
            self.plateau.observe(found["loss"])
        return found

    def optimiser(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        every = list(parameters)
        fused = all(each.is_cuda for each in every)
        return Adam(every, lr=self.settings.planned_lr(self.trial.model), fused=fused)

    def schedule(self, optimiser: Optimizer) -> LRScheduler | None:
        if self.settings.schedule == "cosine":
            warmup = self.per_epoch if self.settings.planned_lr(self.trial.model) > PAPER_LR else 0
            return cosine(optimiser, self.steps, warmup)
        self.plateau = HalveOnPlateau(optimiser, PATIENCE, self.per_epoch)
        return self.plateau

    def to(self, device: torch.device) -> None:
        self.train, self.held_out = self.train.to(device), self.held_out.to(device)


@torch.no_grad()
def errors(model: Autoencoder, images: Images, batch: int = 500) -> dict[str, float]:
    """The mean squared error of reconstructions, as "error", and the model's own loss on them, as "loss"."""
    square, own = torch.zeros((), device=images.device), torch.zeros((), device=images.device)
    for part in images.images.split(batch):
        shown = to_floats(part)
        back = model(shown)
        square += mse_loss(back.to(shown), shown) * len(part)
        own += model.error(back, shown) * len(part)
    return {"error": float(square) / len(images), "loss": float(own) / len(images)}
