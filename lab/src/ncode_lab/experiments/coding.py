"""What the experiments with autoencoders share: their settings, their data, and models trained or taken from a run."""

from __future__ import annotations

import functools
from abc import ABC
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ncode import InputError
from ncode.checks import check_choice
from ncode.models.autoencoder import Autoencoder

from ..data import Images, ImageSets, hold_out, load, stream
from ..models.autoencoder_family import KINDS, OWN, Kind, Plan, build_autoencoder
from ..training import Trial, TrialContext
from .base import PRESETS, Experiment
from .checks import check_choices, check_positive
from .coding_recipes import told
from .coding_source import load_weights, read_source

Schedule = Literal["plateau", "cosine"]
PAPER_LR = 1e-3


@dataclass(frozen=True)
class Coding(Plan, Experiment, ABC):
    """Settings of autoencoders, and of their training. Zeros and "paper" stand for the paper's choice.

    Attributes:
        judged_by: Settings of an experiment, beside those of training, without which its results cannot be compared.
    """

    judged_by: ClassVar[tuple[str, ...]] = ()

    models: tuple[Kind, ...] = ("auton-code", "ae", "ae-wide", "vae")
    """Models. ae-wide has twice the dimensions."""
    source: str = ""
    """Folder of a run of `autoencode` to take trained models from. Its data set and all that its models were trained
    with are taken from there too."""
    epochs: int = 0
    """Passes over the training images. 0: 50, and 40 for CelebA."""
    batch: int = 0
    """Images a step. 0: 64, and 16 for AutoN-CODE on CelebA."""
    lr: float = 0.0
    """Learning rate of AdamW. 0: the paper's 1e-3, and 4e-3 for images in colour in batches of more than 64."""
    schedule: Schedule = "plateau"
    """plateau: halved whenever the error on held-out training images has not fallen for some epochs. cosine: to 0,
    after a first epoch in which it rises where it is above the paper's."""
    patience: int = 5
    """Epochs that plateau waits for."""
    flips: bool = False
    """Mirror every second training image, of data sets other than MNIST: a mirrored digit is none."""
    shift: int = 0
    """Shift training images by up to so many pixels. -1: 1 for images in colour, none for digits."""
    still: float = 0.0
    """Part of the training, at its end, in which images are not shifted."""
    weight_decay: float = 0.0
    """Weight decay of all weights but biases and norms."""
    decoder_decay: float = 0.0
    """Weight decay of the decoder's weights, on top."""
    images: int = 0
    """Training images to use, those held out included. 0: all."""
    test_images: int = 0
    """Test images to use. 0: all."""
    held_out: int = 2000
    """Training images to hold out."""
    validate: int = 0
    """Judge by so many training images, which nothing is trained on, in the place of test images, which are not looked
    at: choices are to be made by those. 0: judge by test images."""
    data_dir: str = ""
    """Folder of data. Unless given: NCODE_DATA, the cache, or a download."""
    fallback: bool = False
    """Where the data are not found, draw a small set of the same shape in their place."""

    def __post_init__(self) -> None:
        if self.source:
            self._take()
        super().__post_init__()
        self._check_models()
        check_choice("schedule", self.schedule, get_args(Schedule))
        check_positive(patience=self.patience, held_out=self.held_out)
        for name in ("epochs", "batch", "lr", "images", "test_images", "validate", "weight_decay", "decoder_decay"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} must be at least 0; given {getattr(self, name)!r}")
        if self.shift < -1:
            raise InputError(f"shift must be at least 0, or -1; given {self.shift!r}")
        if not 0 <= self.still <= 1:
            raise InputError(f"still must lie between 0 and 1; given {self.still!r}")

    def _check_models(self) -> None:
        check_choices("model", self.models, KINDS)

    def _take(self) -> None:
        """Take over what the models of another run were trained with, whatever is said here."""
        record = read_source(self.source)
        for name in _of_training():
            value = record.settings.get(name, getattr(self, name))
            object.__setattr__(self, name, value)
        kept = tuple(model for model in self.models if model in record.models)
        if not kept:
            raise InputError(
                f"{self.source} has trained {', '.join(record.models)}, and none of the models asked for,"
                f" {', '.join(self.models)}"
            )
        object.__setattr__(self, "models", kept)

    @property
    def planned_epochs(self) -> int:
        """Epochs, as told or the paper's."""
        return self.epochs or (40 if self.dataset == "celeba" else 50)

    def planned_batch(self, model: str) -> int:
        """Images a step, as told or the paper's."""
        return self.batch or (16 if self.dataset == "celeba" and model == "auton-code" else 64)

    def planned_lr(self, model: str) -> float:
        """Learning rate, as told, or the paper's for its batches of 64, and what held-out images chose for 128."""
        # For digits it stays the paper's.
        return self.lr or (4e-3 if self.planned_batch(model) > 64 and self.colour else PAPER_LR)

    @property
    def planned_shift(self) -> int:
        """Pixels that training images are shifted by, at most."""
        return self.shift if self.shift >= 0 else int(self.colour)

    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        """Each model with each seed."""
        return [self._trial(model, seed) for model in self.models for seed in seeds]

    def _trial(self, model: str, seed: int) -> Trial:
        about = {"dimensions": self.latent_of(model), "epochs": self.planned_epochs}
        about |= {"batch": self.planned_batch(model), "lr": self.planned_lr(model)}
        return Trial(model, self.label(model), seed, about)

    def label(self, model: str) -> str:
        """The data set as tables name it, with the settings that tell the results of a model from others of its preset.

        Those are all that the model looks at and that are not as the preset has them.
        """
        presets = [type(self).presets.get(name, {}) for name in reversed(PRESETS)]
        defaults = {each.name: each.default for each in fields(self)}
        names = [name for name in (*_of_training(), *self.judged_by) if name not in ("dataset", "fallback")]
        others = {name for kind, owned in OWN.items() if kind != model for name in owned}
        values = {name: getattr(self, name) for name in names}
        words = told(values, [{**defaults, **preset} for preset in presets], [n for n in names if n not in others])
        return ", ".join([self.data_name(), *words])

    def data_name(self) -> str:
        """The data set as tables name it: one that is drawn, or a part of CelebA, has a name of its own."""
        sets = self.sets()
        if sets.generated:
            return f"{self.dataset} (generated)"
        _, _, part = sets.name.partition(" (")
        return f"{self.dataset} ({part}" if part else self.dataset

    def sets(self) -> ImageSets:
        """Training and test images, on the CPU; with `validate`, training images stand in for the latter."""
        sets = _load(self.dataset, self.data_dir, self.fallback, self.validate)
        return ImageSets(_some(sets.train, self.images), _some(sets.test, self.test_images))

    def trained(self, trial: Trial, context: TrialContext) -> Trained:
        """The model of a trial, trained here or taken from the source."""
        from .coding_task import Code

        sets = self.sets()
        if sets.generated:
            context.info(f"{self.dataset} was not found: {sets.name} stand in for it")
        if not self.source:
            task = Code(self, trial, sets)
            with fixed_sizes(context):
                model = context.fit(task)
            assert isinstance(model, Autoencoder)
            return Trained(model, None if task.clock.mean is None else task.clock.mean * task.per_epoch)
        model = build_autoencoder(trial.model, self, trial.seed)
        load_weights(model, self.source, trial)
        context.parameters = sum(each.numel() for each in model.parameters() if each.requires_grad)
        return Trained(model.to(context.device).eval(), None)


@functools.cache
def _of_training() -> tuple[str, ...]:
    """The settings that a model is built, trained and tested by: taken from a source, whatever is said beside it."""
    others = ("models", "source", "data_dir")
    return tuple(each.name for each in fields(Coding) if each.name not in others)


@contextmanager
def fixed_sizes(context: TrialContext) -> Iterator[None]:
    """Let cuDNN try its convolutions once and take the fastest: all batches are of one size."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = not context.options.deterministic
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


class Trained(NamedTuple):
    """A model on the device, and the seconds that an epoch took, where it was trained just now."""

    model: Autoencoder
    seconds: float | None


@torch.no_grad()
def encode(model: Autoencoder, images: Images, control: bool = False, batch: int = 500) -> Tensor:
    """The codes of images, or the controls that lead to them, flattened: (n, d), on the model's device."""
    device, found = next(model.parameters()).device, []
    for part in images.images.split(batch):
        shown = as_numbers(part.to(device))
        found.append(read_control(model, shown) if control else model.encode(shown))
    return torch.cat(found)


def read_control(model: Autoencoder, images: Tensor) -> Tensor:
    """The controls that images ask for, (n, d)."""
    from ncode.models.auto_ncode import AutoNCODE

    if not isinstance(model, AutoNCODE):
        raise InputError(f"{type(model).__name__} has no control: only auton-code has")
    return model.control(images).flatten(1)


@torch.no_grad()
def decode(model: Autoencoder, codes: Tensor, control: bool = False, batch: int = 500) -> Tensor:
    """The images of codes, or of controls (n, d), as bytes, on the model's device."""
    from ncode.models.auto_ncode import AutoNCODE

    like, found = next(model.parameters()), []
    for part in codes.to(like).split(batch):
        if control:
            assert isinstance(model, AutoNCODE)
            part = model.flow(part.unflatten(1, (model.latent, model.nonzeros)))
        found.append(as_bytes(model.decode(part)))
    return torch.cat(found)


def as_numbers(images: Tensor) -> Tensor:
    """Bytes as numbers from 0 to 1, of the precision that is the default.

    >>> as_numbers(torch.tensor([0, 255], dtype=torch.uint8))
    tensor([0., 1.])
    """
    return images.to(torch.get_default_dtype()) / 255


def as_bytes(images: Tensor) -> Tensor:
    """Numbers as bytes; what lies outside of 0 to 1 is cut off.

    >>> as_bytes(torch.tensor([0.0, 0.5, 1.5]))
    tensor([  0, 128, 255], dtype=torch.uint8)
    """
    return images.clamp(0, 1).mul(255).add(0.5).to(torch.uint8)


def _some(images: Images, count: int) -> Images:
    """A part of a set, the same each time."""
    if not 0 < count < len(images):
        return images
    return images.take(torch.randperm(len(images), generator=stream(0, "subset"))[:count])


@functools.lru_cache(maxsize=1)
def _load(dataset: str, data_dir: str, fallback: bool, validate: int) -> ImageSets:
    sets = load(dataset, data_dir or None, fallback=fallback)
    # By another seed than the one that `Code` holds out by.
    return ImageSets(*hold_out(sets.train, validate, seed=1)) if validate else sets
