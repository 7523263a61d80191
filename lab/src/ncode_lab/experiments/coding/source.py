"""Trained models of a run of `autoencode`, for use by other experiments."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from ncode import InputError

from ...training import Trial
from ...training.checkpoint import MANIFEST, WEIGHTS


class Source(NamedTuple):
    """Settings and models of a run."""

    settings: dict[str, Any]
    models: tuple[str, ...]


def read_source(folder: str | Path) -> Source:
    """Read run.json of a run of `autoencode`."""
    path = find_run(folder) / "run.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        name, settings = record["experiment"], dict(record["settings"])
        models = tuple(settings["models"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged ({error}): train the models again with `ncode run autoencode`") from error
    if name != "autoencode":
        raise InputError(f"{folder} is a run of {name}: source must be one of autoencode")
    return Source(settings, models)


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
    from safetensors.torch import load

    place = _find_trial(find_run(folder), trial)
    steps = sorted((place / "checkpoints" / "model").glob("step-*"), key=lambda path: int(path.name[5:]))
    if not steps:
        raise InputError(f"{place} has no checkpoint: train the model again with `ncode run autoencode`")
    try:
        content = (steps[-1] / WEIGHTS).read_bytes()
        expected = json.loads((steps[-1] / MANIFEST).read_text(encoding="utf-8"))["sha256"][WEIGHTS]
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{steps[-1]} is damaged ({error}): train the model again") from error
    if hashlib.sha256(content).hexdigest() != expected:
        raise InputError(f"{steps[-1] / WEIGHTS} is damaged, it is not what was written: train the model again")
    try:
        model.load_state_dict(load(content))
    except RuntimeError as error:
        raise InputError(f"{steps[-1]} does not fit the model that its run describes: {error}") from error


def _find_trial(folder: Path, trial: Trial) -> Path:
    """The folder of the trial with that model and seed, whatever its label."""
    for path in sorted((folder / "trials").glob("*/result.json")):
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
            if (result["model"], result["seed"]) == (trial.model, trial.seed):
                return path.parent
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} is damaged ({error}): train the model again") from error
    raise InputError(
        f"{folder} has not trained {trial.model} with seed {trial.seed}: let that run finish, or choose models and"
        " seeds it has"
    )
