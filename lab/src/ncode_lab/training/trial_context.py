"""`TrialContext`: what an experiment uses to run one trial."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ncode import InputError
from ncode.block import save_pretrained

from .built_model import BuiltModel
from .devices import seed_all
from .files import explain_os_errors, replace_folder, write_file
from .loop import fit
from .options import RunOptions
from .progress import MetricsLog, Progress, TrialClock
from .result import Trial
from .task import Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

PRETRAINED = "pretrained"  # the folder of a trial's saved model


def load_line(folder: Path) -> str:
    """The line of Python that loads a saved model.

    >>> print(load_line(Path("runs/a/pretrained")))
    ncode.from_pretrained('runs/a/pretrained', allow_imports=["ncode_lab"])
    """
    return f'ncode.from_pretrained({str(folder)!r}, allow_imports=["ncode_lab"])'


class TrialContext:
    """Trains the models of a trial, and writes its files.

    Creating it seeds torch's random numbers for the trial, so that models built next have weights of the trial's seed.

    Args:
        fabric: The devices, from `ncode_lab.training.devices.start_fabric`.
        folder: The trial's folder, from `RunFolder.trial`.
        trial: The trial.
        options: How to run.
        progress: What the user sees. Default: nothing.

    Attributes:
        parameters: Number of trained parameters of the model fitted last.
        final: Metrics of its last evaluation; of the best one, with its "best step", if the task keeps the best.

    >>> from tempfile import TemporaryDirectory
    >>> from ncode_lab.training.devices import start_fabric
    >>> temporary, options = TemporaryDirectory(), RunOptions(device="cpu")
    >>> context = TrialContext(start_fabric(options), Path(temporary.name), Trial("node", "annuli"), options)
    >>> context.save_tensors("points", x=torch.zeros(3, 2))
    >>> [file.name for file in (context.folder / "kept").iterdir()]
    ['points.safetensors']
    >>> temporary.cleanup()
    """

    def __init__(
        self, fabric: Fabric, folder: Path, trial: Trial, options: RunOptions, progress: Progress | None = None
    ):
        self.fabric, self.folder, self.trial, self.options = fabric, Path(folder), trial, options
        self.progress = progress or Progress(quiet=True)
        self.parameters = 0
        self.final: dict[str, float] = {}
        self.clock = TrialClock()
        self.log = MetricsLog(self.folder / "metrics.jsonl", writes=fabric.is_global_zero)
        self._fitted: set[str] = set()
        seed_all(trial.seed, "weights")

    @property
    def device(self) -> torch.device:
        """Where the model and its batches are."""
        return self.fabric.device

    @property
    def seconds(self) -> float:
        """Time that the trial has taken so far, including earlier processes up to their last checkpoints."""
        return self.clock.seconds

    def fit(self, task: Task, name: str = "model") -> nn.Module:
        """Train a task's model, or resume its training, and return it on the device, in evaluation mode.

        A trial that trains more than one model gives each fit its own `name`.
        """
        if name in self._fitted:
            raise InputError(f"this trial has already fitted {name!r}: give each fit its own name")
        self._fitted.add(name)
        self.parameters = sum(each.numel() for each in task.model.parameters() if each.requires_grad)
        self.final = fit(task, self, name)
        # What follows draws the same numbers, whether this process has trained the model or only loaded it.
        seed_all(self.trial.seed, "after", name)
        return task.model.eval()

    def save_tensors(self, name: str, **tensors: Tensor) -> None:
        """Write tensors to kept/NAME.safetensors, for the figures."""
        if not self.fabric.is_global_zero:
            return
        from safetensors.torch import save

        content = save({key: each.detach().cpu().contiguous().clone() for key, each in tensors.items()})
        folder = self.folder / "kept"
        with explain_os_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_file(folder / f"{name}.safetensors", content)

    def save_model(self, model: nn.Module, build: Callable[..., nn.Module] | None = None, **arguments: Any) -> None:
        """With --save, write a trained model to the trial's folder pretrained/, which `from_pretrained` reads.

        Args:
            model: The model.
            build: A function at the top level of a module that builds it, if the library cannot save it by itself.
            arguments: Arguments of `build`: numbers, strings and dataclasses.
        """
        if not self.options.save or not self.fabric.is_global_zero:
            return
        from safetensors import SafetensorError

        saved = model if build is None else BuiltModel(build, arguments, model)
        target = self.folder / PRETRAINED
        with explain_os_errors(target):
            try:
                with replace_folder(target) as temporary:
                    # The card says where the folder will be; like the record, it names no folder of this machine.
                    save_pretrained(saved, temporary, name=target.name if target.is_absolute() else target.as_posix())
            except SafetensorError as error:  # its way to say that the disk is full
                raise OSError(str(error)) from error
        self.info(f"saved: {load_line(target)}")

    def info(self, text: str) -> None:
        """Print a line, except when quiet."""
        self.progress.info(text)

    def curves(self, max_points: int = 200) -> dict[str, list[float]]:
        """The logged metrics, one list per quantity, thinned: "train step", "train loss", "evaluation step", ..."""
        return self.log.curves(max_points)
