"""Checkpoints of a training run, and the weights of its best evaluation."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ncode.errors import check_choice

from ..limits import CHECKPOINT_LIMIT, TEXT_LIMIT, read_bytes
from .files import explain_os_errors, remove_folder, remove_leftovers, replace_folder

WEIGHTS, STATE, MANIFEST = "weights.safetensors", "state.pt", "manifest.json"
CHECKPOINTS_KEPT = 2
BEST_STEP = "best step"
_NAME = re.compile(r"step-(\d+)")


class Checkpoint(NamedTuple):
    """The weights of a model after some step, and the state needed to continue training."""

    step: int
    weights: dict[str, Tensor]
    state: dict[str, Any]


class Checkpoints:
    """The last two checkpoints of one fit: folders such as step-000200, complete or absent, verified by checksums.

    `warn` is called with a message for each damaged checkpoint.
    """

    def __init__(self, folder: Path, warn: Callable[[str], None]):
        self.folder, self._warn = folder, warn

    def write(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint, then remove all but the last two. If writing fails, earlier ones stay untouched."""
        target = self.folder / f"step-{checkpoint.step:06d}"
        contents = _pack(checkpoint)
        with explain_os_errors(target):
            with replace_folder(target) as temporary:
                for name, content in contents.items():
                    (temporary / name).write_bytes(content)
            for old in checkpoint_paths(self.folder)[:-CHECKPOINTS_KEPT]:
                remove_folder(old)

    def load(self) -> Checkpoint | None:
        """Load the newest undamaged checkpoint; None if there is none. Removes what interrupted writes left behind."""
        if not self.folder.is_dir():
            return None
        remove_leftovers(self.folder)
        for path in reversed(checkpoint_paths(self.folder)):
            try:
                return read_checkpoint(path)
            except DamagedCheckpoint as reason:
                renamed = path.with_name(f"damaged-{path.name}")
                shutil.rmtree(renamed, ignore_errors=True)
                os.rename(path, renamed)
                self._warn(f"the checkpoint {path} is damaged ({reason}): now {renamed.name}, and the previous is used")
        return None


def checkpoint_paths(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    found = [(int(match[1]), path) for path in folder.glob("step-*") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


class DamagedCheckpoint(Exception):
    """A checkpoint whose files are not what was written."""


def _pack(checkpoint: Checkpoint) -> dict[str, bytes]:
    from safetensors.torch import save

    buffer = io.BytesIO()
    torch.save({"step": checkpoint.step, **checkpoint.state}, buffer)
    contents = {WEIGHTS: save(checkpoint.weights, metadata={"format": "pt"}), STATE: buffer.getvalue()}
    checksums = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    manifest = json.dumps({"step": checkpoint.step, "sha256": checksums}, indent=2) + "\n"
    return {**contents, MANIFEST: manifest.encode()}


def read_checkpoint(path: Path) -> Checkpoint:
    """Read the folder of one checkpoint. Raises `DamagedCheckpoint` if its files are not what was written."""
    from safetensors.torch import load

    try:
        manifest = json.loads(read_bytes(path / MANIFEST, TEXT_LIMIT).decode("utf-8"))
        checksums, step = dict(manifest["sha256"]), int(manifest["step"])
        contents = {name: read_bytes(path / name, CHECKPOINT_LIMIT) for name in (WEIGHTS, STATE)}
    except FileNotFoundError as error:
        raise DamagedCheckpoint(f"{Path(error.filename).name} is missing") from error
    except (ValueError, KeyError, TypeError, OSError, OverflowError, RecursionError) as error:
        raise DamagedCheckpoint(f"{MANIFEST} cannot be read: {error}") from error
    for name, content in contents.items():
        if hashlib.sha256(content).hexdigest() != checksums.get(name):
            raise DamagedCheckpoint(f"the checksum of {name} is wrong")
    try:
        state = torch.load(io.BytesIO(contents[STATE]), map_location="cpu", weights_only=True)
        weights = load(contents[WEIGHTS])
    except Exception as error:  # right checksums of odd content: an unpickler can raise anything
        raise DamagedCheckpoint(f"its content cannot be read: {error}") from error
    if not isinstance(state, dict) or state.pop("step", None) != step:
        raise DamagedCheckpoint(f"{MANIFEST} and {STATE} are from different steps")
    return Checkpoint(step, weights, state)


class BestWeights:
    """Keeps a copy of the weights of the best evaluation by a metric, such as "accuracy" or "-error".

    Of equal evaluations, the earlier counts. `state` is what a checkpoint stores; None before the first.

    >>> best = BestWeights("-error")
    >>> for step, error in ((10, 0.5), (20, 0.25), (30, 0.75), (40, math.nan)):
    ...     best.update(step, {"error": error}, lambda: {"weight": torch.tensor(error)})
    >>> best.weights, best.evaluation({})
    ({'weight': tensor(0.2500)}, {'error': 0.25, 'best step': 20})
    """

    def __init__(self, metric: str):
        self._metric, self._sign = metric.removeprefix("-"), -1 if metric.startswith("-") else 1
        self.state: dict[str, Any] | None = None

    def update(self, step: int, evaluation: dict[str, float], weights: Callable[[], dict[str, Tensor]]) -> None:
        """Compare the evaluation after a step with the best so far. `weights` is called only if it is better."""
        value = self._sign * evaluation[check_choice("metric in keep_best", self._metric, evaluation)]
        # False for nan.
        if value > (-math.inf if self.state is None else self.state["value"]):
            self.state = {"step": step, "value": value, "evaluation": evaluation, "weights": weights()}

    @property
    def weights(self) -> dict[str, Tensor] | None:
        """The best weights; None if no evaluation gave a number."""
        return None if self.state is None else self.state["weights"]

    def evaluation(self, last: dict[str, float]) -> dict[str, float]:
        """The best evaluation and its step; `last` and nan if no evaluation gave a number."""
        if self.state is None:
            return {**last, BEST_STEP: math.nan}
        return {**self.state["evaluation"], BEST_STEP: self.state["step"]}
