"""The whole paper: one run per experiment and data set with the preset "paper", resumed until all of them are done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ncode import InputError
from ncode.errors import check_choice

from ..training import RunOptions
from ..training.files import to_json_value
from ..training.run_folder import find_finished, find_in_use, find_unfinished, read_record
from . import EXPERIMENTS, find
from .base import Experiment
from .runner import run

# Settings that may differ between machines.
_PLACES = ("source", "data_dir", "fid_weights")
_KINDS = ("auton-code", "ae", "ae-wide", "vae", "sparse", "denoising")


@dataclass(frozen=True)
class Step:
    """One run of the paper.

    Attributes:
        name: Name of its folder, and on the command line.
        experiment: The experiment to run.
        changes: Settings that differ from the preset.
        source: The step whose trained models it uses, if any.
    """

    name: str
    experiment: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    def settings(self, preset: str, out: Path) -> Experiment:
        """The settings of its run."""
        kind = find(self.experiment)
        source = {"source": str(finished_run(out, self.source))} if self.source else {}
        return kind(**{**kind.presets.get(preset, kind.presets["paper"]), **self.changes, **source})


def _on(experiment: str, dataset: str, source: bool = False, **changes: Any) -> Step:
    trained = f"autoencode-{dataset}" if source else ""
    return Step(f"{experiment}-{dataset}", experiment, {"dataset": dataset, **changes}, trained)


STEPS: tuple[Step, ...] = (
    *(Step(name, name) for name in ("reflection", "annuli", "vanderpol", "memory")),
    _on("classification", "mnist"),
    _on("classification", "cifar10"),
    _on("autoencode", "mnist", models=_KINDS),
    _on("autoencode", "cifar10", models=_KINDS),
    _on("autoencode", "celeba"),
    _on("generate", "cifar10", source=True),
    # As many components as there are test images in the part of CelebA that the lab reads.
    _on("generate", "celeba", source=True, components=(10, 100, 1000)),
    _on("cluster", "mnist", source=True, models=_KINDS),
    _on("cluster", "cifar10", source=True, models=_KINDS),
    _on("interpolate", "celeba", source=True),
)
NOT_IN_THE_PAPER = ("tracking",)
# To see that the whole works: each experiment once, in seconds.
SMOKE_STEPS: tuple[Step, ...] = tuple(
    Step(name, name, source="autoencode" if name in ("generate", "cluster", "interpolate") else "")
    for name in EXPERIMENTS
    if name not in NOT_IN_THE_PAPER
)


class Outcome(NamedTuple):
    """What became of a step: the folder of its run, or why there is none."""

    step: Step
    path: Path | None
    refused: str = ""


def select(steps: Sequence[Step], only: Sequence[str]) -> list[Step]:
    """The steps with these names, or of these experiments; all if none are given."""
    for name in only:
        check_choice("step", name, sorted({*(step.name for step in steps), *EXPERIMENTS}))
    return [step for step in steps if not only or {step.name, step.experiment} & set(only)]


def run_paper(
    steps: Iterable[Step], preset: str, options: RunOptions, say: Callable[[str], None] = lambda text: None
) -> list[Outcome]:
    """Run the steps that are not done yet, each in a folder of its own in `options.out`, and resume those begun.

    A finished step is not run again, so the same command continues after an interruption, also on another machine to
    which the folder was copied. A step that is refused, because its data are missing for example, does not keep the
    others from being run.
    """
    outcomes = []
    for step in steps:
        try:
            path = finished_run(options.out, step.name, step.experiment, required=False)
            if path is None:
                say(f"{step.name}: {find(step.experiment).line}")
                path = _run_step(step, preset, options)
            else:
                say(f"{step.name}: done before, {path}")
                _check_same(step.settings(preset, options.out), path, options)
            outcomes.append(Outcome(step, path))
        except InputError as error:
            outcomes.append(Outcome(step, None, str(error)))
            say(f"{step.name}: not run: {error}")
    return outcomes


def finished_run(out: Path, name: str, experiment: str = "autoencode", required: bool = True) -> Path | None:
    """The finished run of a step, in its folder."""
    path = find_finished(out / name, experiment)
    if path is None and required:
        raise InputError(f"it uses the models of {name}, which is not done in {out}: run that first, --only {name}")
    return path


def _run_step(step: Step, preset: str, options: RunOptions) -> Path:
    place = options.out / step.name
    settings = step.settings(preset, options.out)
    if (busy := find_in_use(place, step.experiment)) is not None:
        raise InputError(f"{busy} is in use by another process: wait for it, or leave this step to it")
    begun = find_unfinished(place, step.experiment)
    if begun is not None:
        _check_same(settings, begun, options)
    return run(settings, preset, replace(options, out=place), begun)


def _check_same(settings: Experiment, path: Path, options: RunOptions) -> None:
    """Refuse a folder whose run has other settings, or other seeds."""
    record = read_record(path)
    now, before = to_json_value(asdict(settings)), record.get("settings") or {}
    before = {settings.renamed.get(name, name): value for name, value in before.items()}
    differing = [name for name in now if name not in _PLACES and now[name] != before.get(name)]
    kept = record.get("options") or {}
    differing += [name for name in ("seed", "seeds", "precision") if kept.get(name) != getattr(options, name)]
    if differing:
        raise InputError(
            f"{path} was begun with other settings ({', '.join(differing)}): choose another --out, or remove it"
        )
