"""Trained models of a run of `autoencode`, for use by other experiments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from ncode import InputError

from ...training import Result, Trial
from ...training.checkpoint import DamagedCheckpoint, read_checkpoint
from ...training.files import read_json
from ...training.run_folder import read_record


def read_source(folder: str | Path) -> dict[str, Any]:
    """The settings of a run of `autoencode`."""
    record = read_record(find_run(folder))
    if record["experiment"] != "autoencode":
        raise InputError(f"{folder} is a run of {record['experiment']}: source must be one of autoencode")
    return record["settings"]


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
    steps = sorted((place / "checkpoints" / "model").glob("step-*"), key=lambda path: int(path.name[5:]))
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
