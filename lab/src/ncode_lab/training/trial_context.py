"""`TrialContext`: where a trial does its work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ncode import InputError

from .clock import TrialClock
from .files import explain_os_errors, write_file
from .log import MetricsLog
from .loop import fit
from .options import RunOptions
from .progress import Progress
from .result import Trial
from .seeds import seed_all
from .task import Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class TrialContext:
    """Trains what a trial wants trained, and keeps its files.

    Making a context sets the seed of the trial: what is built next has weights of its own seed.

    Args:
        fabric: The devices, from `ncode_lab.training.devices.start_fabric`.
        folder: Of the trial, from `RunFolder.trial`.
        trial: What is run.
        preset: Its name.
        options: How to run.
        progress: Who tells the user. Nobody, unless given.

    Attributes:
        device: Where the model and its batches are.
        parameters: Trained numbers of the model that was fitted last.
        final: What the last evaluation of that model gave, or the best one where the task keeps the best weights: then
            "best step" says after which step that was.

    >>> from tempfile import TemporaryDirectory
    >>> from ncode_lab.training.devices import start_fabric
    >>> place, options = TemporaryDirectory(), RunOptions(device="cpu")
    >>> context = TrialContext(start_fabric(options), Path(place.name), Trial("node", "annuli"), "smoke", options)
    >>> context.save_tensors("points", x=torch.zeros(3, 2))
    >>> [file.name for file in (context.folder / "kept").iterdir()]
    ['points.safetensors']
    >>> place.cleanup()
    """

    def __init__(
        self,
        fabric: Fabric,
        folder: Path,
        trial: Trial,
        preset: str,
        options: RunOptions,
        progress: Progress | None = None,
    ):
        self.fabric, self.folder, self.trial = fabric, Path(folder), trial
        self.preset, self.options = preset, options
        self.progress = progress or Progress(quiet=True)
        self.parameters = 0
        self.final: dict[str, float] = {}
        self._clock = TrialClock()
        self._log = MetricsLog(self.folder / "metrics.jsonl", writes=fabric.is_global_zero)
        self._fitted: set[str] = set()
        seed_all(trial.seed, "weights")

    @property
    def device(self) -> torch.device:
        """Where the model and its batches are."""
        return self.fabric.device

    @property
    def seconds(self) -> float:
        """How long the trial has taken so far, in all its lives. Of one that was killed, up to its last checkpoint."""
        return self._clock.seconds

    def fit(self, task: Task, name: str = "model") -> nn.Module:
        """Train a task's model, or go on where an earlier life of the run had come to.

        Args:
            task: What to train.
            name: Its name within the trial, for a trial that trains more than one model.

        Returns:
            The model, on the device, in evaluation mode.
        """
        if name in self._fitted:
            raise InputError(f"this trial has fitted {name!r} already: give each fit a name of its own")
        self._fitted.add(name)
        self.parameters = sum(each.numel() for each in task.model.parameters() if each.requires_grad)
        self.final = fit(
            task,
            self.fabric,
            self.folder,
            seed=self.trial.seed,
            name=name,
            title=self.trial.name if name == "model" else f"{self.trial.name} {name}",
            options=self.options,
            log=self._log,
            clock=self._clock,
            progress=self.progress,
        )
        # So that what follows draws the same numbers, whether this life of the run has trained or only loaded.
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

    def info(self, text: str) -> None:
        """Tell the user something; nothing when quiet."""
        self.progress.info(text)

    def curves(self, max_points: int = 200) -> dict[str, list[float]]:
        """What was logged, as one list a quantity: "train step", "train loss", "evaluation step", ..., thinned."""
        return self._log.curves(max_points)
