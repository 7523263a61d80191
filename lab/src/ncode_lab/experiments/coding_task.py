"""The training of an autoencoder."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ncode.models.autoencoder import Autoencoder

from ..data import Images, ImageSets, augment, batch_indices, batches_per_epoch, hold_out
from ..models.autoencoder_family import build_autoencoder
from ..training import Loss, Task, Trial
from ..training.schedules import HalveOnPlateau, cosine
from .clock import StepClock
from .coding import PAPER_LR, Coding, as_numbers


class Code(Task):
    """One autoencoder, on one data set."""

    def __init__(self, settings: Coding, trial: Trial, sets: ImageSets):
        # Held out by a seed of their own: every model and every seed is judged by the same images.
        self.train, self.held_out = hold_out(sets.train, min(settings.held_out, len(sets.train) // 4), seed=0)
        self.settings, self.trial = settings, trial
        self.batch_size = min(settings.planned_batch(trial.model), len(self.train))
        self.per_epoch = batches_per_epoch(self.batch_size, len(self.train))
        self.steps = settings.planned_epochs * self.per_epoch
        self.evaluate_every = self.per_epoch
        self.clock, self.plateau = StepClock(), None
        self.model: nn.Module = build_autoencoder(trial.model, settings, trial.seed)

    plateau: HalveOnPlateau | None

    def batch(self, step: int, generator: torch.Generator) -> Tensor:
        """Images of a step, as bytes."""
        self.clock.tick(step)
        images = self.train.images[
            batch_indices(step, self.batch_size, len(self.train), self.trial.seed, self.train.device)
        ]
        flips = self.settings.flips and self.settings.dataset != "mnist"
        shift = self.settings.planned_shift if step < (1 - self.settings.still) * self.steps else 0
        if flips or shift:
            images = augment(images, generator=generator, padding=shift, flip=flips)
        return images

    def loss(self, model: nn.Module, batch: Tensor) -> Loss:
        """What the model makes small, and the mean squared error whatever that is."""
        assert isinstance(model, Autoencoder)
        images = as_numbers(batch)
        judged = model.judge(images)
        square = judged.parts["error"] if model.measure == "mse" else mse_loss(judged.images.detach(), images)
        return Loss(judged.loss, {**judged.parts, "error": square.detach()})

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """The mean squared error on images held out, and the error that the model was trained for."""
        assert isinstance(model, Autoencoder)
        self.clock.pause()
        found = errors(model, self.held_out)
        if self.plateau is not None:
            self.plateau.observe(found["loss"])
        return found

    def optimiser(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """AdamW, with the decays of the settings on matrices and kernels alone."""
        assert isinstance(self.model, Autoencoder)
        decay, more = self.settings.weight_decay, self.settings.decoder_decay
        decoder = {id(each) for each in self.model.decoder.parameters()}
        groups: dict[float, list[nn.Parameter]] = {}
        for each in parameters:
            price = 0.0 if each.dim() < 2 else decay + (more if id(each) in decoder else 0.0)
            groups.setdefault(price, []).append(each)
        fused = all(each.is_cuda for each in self.model.parameters())
        listed = [{"params": each, "weight_decay": price} for price, each in groups.items()]
        return AdamW(listed, lr=self.settings.planned_lr(self.trial.model), fused=fused)

    def schedule(self, optimiser: Optimizer) -> LRScheduler | None:
        """Halved on plateaus, or along a cosine."""
        if self.settings.schedule == "cosine":
            rise = self.per_epoch if self.settings.planned_lr(self.trial.model) > PAPER_LR else 0
            return cosine(optimiser, self.steps, warmup=rise)
        self.plateau = HalveOnPlateau(optimiser, self.settings.patience, self.per_epoch)
        return self.plateau

    def to(self, device: torch.device) -> None:
        """All images to the device, as bytes."""
        self.train, self.held_out = self.train.to(device), self.held_out.to(device)


@torch.no_grad()
def errors(model: Autoencoder, images: Images, batch: int = 500) -> dict[str, float]:
    """The mean squared error of images that come back, as "error", and the model's own measure, as "loss"."""
    square, own = torch.zeros((), device=images.device), torch.zeros((), device=images.device)
    for part in images.images.split(batch):
        shown = as_numbers(part)
        back = model(shown)
        square += mse_loss(back.to(shown), shown) * len(part)
        own += model.error(back, shown) * len(part)
    return {"error": float(square) / len(images), "loss": float(own) / len(images)}
