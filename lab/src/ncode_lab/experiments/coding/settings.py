"""`Coding`: the settings of all experiments with autoencoders, their presets, data and labels."""

from __future__ import annotations

import functools
from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import torch
from torch import nn

from ncode import InputError
from ncode.errors import check_choice
from ncode.models import Autoencoder

from ...data import DATASETS, Images, ImageSets, check_consent, check_dataset, hold_out, own_name, stream, summarise
from ...precision import tf32
from ...training import Result, Trial, TrialContext
from ...training.checkpoint import DamagedCheckpoint, checkpoint_paths, read_checkpoint
from ...training.files import read_json, to_json_value
from ...training.run_folder import read_record
from ..base import Experiment
from ..common import check_choices, check_not_negative, describe_own_data, load_images
from .models import HORIZON, IMAGE_NOISE, KINDS, OWN_SETTINGS, SPARSITY, AutoencoderSettings, Kind, build_autoencoder

Schedule = Literal["plateau", "cosine"]
PAPER_LR = 1e-3
PATIENCE = 5  # epochs without improvement before the learning rate is halved
HELD_OUT = 2000  # training images

_DIGITS: dict[str, Any] = {"dataset": "mnist", "fallback": True}
SMOKE = {**_DIGITS, "width": 0.1, "images": 256, "test_images": 60, "epochs": 1}
QUICK = {**_DIGITS, "images": 20_000, "test_images": 2500, "epochs": 6, "schedule": "cosine"}
# Our recipe, for all models alike.
_AUGMENTED = {"flips": True, "shift": -1, "still": 0.5}
FULL: dict[str, Any] = {**_AUGMENTED, "schedule": "cosine", "batch": 128, "texture": 1.0, "code_noise": -1.0}
# The paper's recipe: the defaults, without our changes to the flow and the decoder. The paper does not name its norm.
PAPER: dict[str, Any] = {"nonzeros": 0, "norm": "l2", "gain": 1.0, "start": "stored", "standardise": False}


@dataclass(frozen=True)
class Coding(AutoencoderSettings, Experiment, ABC):
    """Settings of autoencoders and of their training. 0 stands for the paper's choice.

    Attributes:
        judged_by: Settings of an experiment, besides those of training, that change its results.
    """

    judged_by: ClassVar[tuple[str, ...]] = ()
    retired: ClassVar[Mapping[str, Any]] = {
        "horizon": HORIZON,
        "loss": "paper",
        "depth": 0,
        "dropout": 0.0,
        "code_dropout": 0.0,
        "sparsity": SPARSITY,
        "image_noise": IMAGE_NOISE,
        "patience": PATIENCE,
        "weight_decay": 0.0,
        "decoder_decay": 0.0,
        "held_out": HELD_OUT,
    }

    models: tuple[Kind, ...] = ("auton-code", "ae", "ae-wide", "vae")
    """Models. ae-wide has twice the dimensions. sphere, sphere-exp and rotation are AutoN-CODE with a part replaced: no
    flow, an exponential of each value, and a skew-symmetric control."""
    source: str = ""
    """Folder of a run of `autoencode` with trained models to use. Its data set and training settings are used too."""
    epochs: int = 0
    """Passes over the training images. 0: 50, and 40 for CelebA."""
    batch: int = 0
    """Images per training step. 0: 64, and 16 for AutoN-CODE on CelebA."""
    lr: float = 0.0
    """Learning rate of Adam. 0: the paper's 1e-3, and 4e-3 for colour images in batches of more than 64."""
    schedule: Schedule = "plateau"
    """Learning rate. plateau: halved when the error on held-out training images has not fallen for 5 epochs. cosine: to
    0, after a warm-up epoch if it is above the paper's."""
    flips: bool = False
    """Mirror half of the training images, except those of MNIST."""
    shift: int = 0
    """Shift training images by up to this number of pixels. -1: 1 for colour images, none for digits."""
    still: float = 0.0
    """Fraction of the training, at its end, in which images are not shifted."""
    images: int = 0
    """Training images to use, including those held out. 0: all."""
    test_images: int = 0
    """Test images to use. 0: all."""
    validate: int = 0
    """Evaluate on this number of training images, which are not trained on, instead of the test images. Use it to make
    choices. 0: evaluate on the test images."""
    data_dir: str = ""
    """Folder of the data. Default: NCODE_DATA, the cache, or a download."""
    fallback: bool = False
    """If the data are not found, generate a small set of the same shape."""

    def __post_init__(self) -> None:
        if self.source:
            self._take_source()
        super().__post_init__()
        self._check_models()
        check_choice("schedule", self.schedule, get_args(Schedule))
        check_not_negative(self, "epochs", "batch", "lr", "images", "test_images", "validate")
        if self.shift < -1:
            raise InputError(f"shift must be at least 0, or -1; given {self.shift!r}")
        if not 0 <= self.still <= 1:
            raise InputError(f"still must lie between 0 and 1; given {self.still!r}")

    def _check_models(self) -> None:
        check_choices("model", self.models, KINDS)

    def _check_dataset(self) -> None:
        check_dataset(self.dataset, DATASETS, self.image_size, self.channels)

    @property
    def image_shape(self) -> tuple[int, int]:
        channels, height, width = load_images(self).train.shape
        if height != width:
            raise InputError(
                f"images of {self.dataset} are {height} x {width}, and autoencoders need squares: --image-size"
                f" {min(height, width)} crops them"
            )
        return channels, height

    def data(self) -> dict[str, Any]:
        return describe_own_data(self)

    def _take_source(self) -> None:
        """Use the training settings of the run that trained the models."""
        settings = read_source(self.source)
        # A run of autoencode has settings of its own, which do not concern us.
        self.check_retired({name: value for name, value in settings.items() if name in Coding.retired})
        check_consent(str(settings.get("dataset")), [self.dataset], f"the models of {self.source} were trained on")
        settings |= self.check_types({name: settings[name] for name in _training_settings() if name in settings})
        for name in _training_settings():
            object.__setattr__(self, name, settings.get(name, getattr(self, name)))
        kept = tuple(model for model in self.models if model in settings["models"])
        if not kept:
            trained = ", ".join(map(str, settings["models"]))
            raise InputError(
                f"{self.source} has trained {trained}, and none of the requested models, {', '.join(self.models)}"
            )
        object.__setattr__(self, "models", kept)

    @property
    def planned_epochs(self) -> int:
        return self.epochs or (40 if self.dataset == "celeba" else 50)

    def planned_batch(self, model: str) -> int:
        return self.batch or (16 if self.dataset == "celeba" and model == "auton-code" else 64)

    def planned_lr(self, model: str) -> float:
        """Learning rate: the paper's for its batches of 64, and the best on held-out images for larger ones."""
        return self.lr or (4e-3 if self.planned_batch(model) > 64 and self.colour else PAPER_LR)

    @property
    def planned_shift(self) -> int:
        return self.shift if self.shift >= 0 else int(self.colour)

    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        """Each model with each seed. A source that has not trained all of them is refused, before there is a run."""
        self.check_architecture()
        self._check_source_data()
        trials = [self._trial(model, seed) for model in self.models for seed in seeds]
        for trial in trials if self.source else ():
            _find_trial(find_run(self.source), trial)
        return trials

    def _check_source_data(self) -> None:
        before = read_record(find_run(self.source)).get("data") if self.source else None
        if before and before != to_json_value(self.data()):
            raise InputError(
                f"{self.source} was trained on other data, {summarise(before)}; {self.dataset} now has"
                f" {summarise(self.data())}: train the models again"
            )

    def _trial(self, model: str, seed: int) -> Trial:
        about = {"dimensions": self.latent_of(model), "epochs": self.planned_epochs}
        about |= {"batch": self.planned_batch(model), "lr": self.planned_lr(model)}
        return Trial(model, self.label(model), seed, about)

    def label(self, model: str) -> str:
        """The label of a model's rows in tables: the data set, and the settings that differ from the nearest preset.

        Settings that do not concern the model are left out. The paper's recipe is named, ours is not.
        """
        defaults = {each.name: each.default for each in fields(self)}
        presets = {name: {**defaults, **self.presets[name]} for name in ("full", "paper", "quick", "smoke")}
        names = [name for name in (*_training_settings(), *self.judged_by) if name not in ("dataset", "fallback")]
        values = {name: getattr(self, name) for name in names}
        nearest = min(presets, key=lambda preset: sum(values[name] != presets[preset][name] for name in names))
        others = {name for owned in OWN_SETTINGS.values() for name in owned} - set(OWN_SETTINGS.get(model, ()))
        changed = [name for name in names if name not in others and values[name] != presets[nearest][name]]
        words = [_describe(name.replace("_", " "), values[name]) for name in changed]
        return ", ".join([self.data_name(), *(["paper"] if nearest == "paper" else []), *words])

    def data_name(self) -> str:
        """The data set as tables name it: generated images, or a part of CelebA, have a name of their own."""
        if self.dataset not in DATASETS:
            return own_name(self.dataset)
        sets = self.sets()
        if sets.generated:
            return f"{self.dataset} (generated)"
        _, _, part = sets.name.partition(" (")
        return f"{self.dataset} ({part}" if part else self.dataset

    def sets(self) -> ImageSets:
        """Training and test images, on the CPU; with `validate`, the latter are training images."""
        sets = load_images(self)
        if self.validate:
            # Not the seed by which `Code` holds images out.
            sets = ImageSets(*hold_out(sets.train, self.validate, seed=1))
        return ImageSets(_subset(sets.train, self.images), _subset(sets.test, self.test_images))

    def trained(self, trial: Trial, context: TrialContext) -> tuple[Autoencoder, float | None]:
        """The model of a trial, trained here or loaded from the source, and the seconds per epoch if trained here."""
        from .training import Code

        sets = self.sets()
        if sets.generated:
            context.info(f"{self.dataset} was not found: using {sets.name} instead")
        if not self.source:
            task = Code(self, trial, sets)
            with tf32(torch.backends.cudnn.allow_tf32, autotune=not context.options.deterministic):
                model = context.fit(task)
            assert isinstance(model, Autoencoder)
            seconds = None if task.clock.mean is None else task.clock.mean * task.per_epoch
        else:
            model, seconds = build_autoencoder(trial.model, self, trial.seed), None
            load_weights(model, self.source, trial)
            context.parameters = sum(each.numel() for each in model.parameters() if each.requires_grad)
            model.to(context.device).eval()
        built_by = {each.name: getattr(self, each.name) for each in fields(AutoencoderSettings)}
        if self.dataset not in DATASETS:  # a saved model needs their size, and not the images
            channels, side = self.image_shape
            built_by |= {"dataset": self.data_name(), "image_size": side, "channels": channels}
        how = {"kind": trial.model, "settings": AutoencoderSettings(**built_by), "seed": trial.seed}
        context.save_model(model, build_autoencoder, **how)
        return model, seconds


def _describe(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"no {name}"
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"


@functools.cache
def _training_settings() -> tuple[str, ...]:
    """The settings by which a model is built, trained and tested: a source determines them."""
    return tuple(each.name for each in fields(Coding) if each.name not in ("models", "source", "data_dir"))


def _subset(images: Images, count: int) -> Images:
    """A random part of a set, always the same."""
    if not 0 < count < len(images):
        return images
    return images.take(torch.randperm(len(images), generator=stream(0, "subset"))[:count])


def read_source(folder: str | Path) -> dict[str, Any]:
    """The settings of a run of `autoencode`."""
    record = read_record(find_run(folder))
    if record.get("experiment") != "autoencode":
        raise InputError(f"{folder} is a run of {record.get('experiment')}: source must be one of autoencode")
    settings = record.get("settings")
    if not isinstance(settings, dict) or not isinstance(settings.get("models"), list):
        raise InputError(f"{folder} has a damaged run.json: it names no models and settings; choose another source")
    return settings


def find_run(folder: str | Path) -> Path:
    """The folder of a run: the given one, or the only run in it (as --out makes it)."""
    folder = Path(folder)
    if (folder / "run.json").is_file():
        return folder
    inside = sorted(path.parent for path in folder.glob("*/run.json"))
    if len(inside) == 1:
        return inside[0]
    if inside:
        names = ", ".join(path.name for path in inside)
        raise InputError(f"{folder} holds {len(inside)} runs, {names}: name one of them as source")
    raise InputError(f"{folder} has no run.json: source must be the folder of a run of `ncode run autoencode`")


def load_weights(model: nn.Module, folder: str | Path, trial: Trial) -> None:
    """Load the final weights of the same model and seed from a run, which is left unchanged."""
    place = _find_trial(find_run(folder), trial)
    steps = checkpoint_paths(place / "checkpoints" / "model")
    if not steps:
        raise InputError(f"{place} has no checkpoint: train the model again with `ncode run autoencode`")
    try:
        model.load_state_dict(read_checkpoint(steps[-1]).weights)
    except DamagedCheckpoint as error:
        raise InputError(f"{steps[-1]} is damaged ({error}): train the model again") from error
    except RuntimeError as error:
        raise InputError(f"{steps[-1]} does not fit the model that its run describes: {error}") from error


def _find_trial(folder: Path, trial: Trial) -> Path:
    """The folder of the trial with that model and seed, whatever its label."""
    for path in sorted((folder / "trials").glob("*/result.json")):
        result = Result.from_json(read_json(path))
        if (result.model, result.seed) == (trial.model, trial.seed):
            return path.parent
    raise InputError(
        f"{folder} has not trained {trial.model} with seed {trial.seed}: let that run finish, or choose models and"
        " seeds it has"
    )
