"""Run an experiment: its trials one by one, then its figures and its summary."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ncode import InputError

from ..data import describe, summarise
from ..report import summary_markdown
from ..training import Progress, Result, RunFolder, RunOptions, Trial, TrialContext
from ..training.devices import start_fabric
from ..training.environment import describe_environment, without_machine_paths
from ..training.files import to_json_value, write_file
from ..training.trial_context import PRETRAINED
from .base import Experiment, Finished
from .command import repeat_command


def run(experiment: Experiment, preset: str, options: RunOptions, folder: Path | None = None) -> Path:
    """Run every trial that has no result yet, then draw. Returns the run's folder.

    `preset` is the name of the preset that the settings started from, and `folder` that of a run to resume.

    >>> import tempfile
    >>> from ncode_lab.experiments import find, run
    >>> with tempfile.TemporaryDirectory() as out:
    ...     options = RunOptions(out=Path(out), quiet=True, device="cpu")
    ...     path = run(find("reflection")(models=("node",), steps=2), "smoke", options)
    ...     sorted(file.name for file in path.iterdir() if not file.name.startswith("."))
    ['figures', 'run.json', 'summary.md', 'trials']
    """
    fabric = start_fabric(options)
    data = experiment.data()
    trials = experiment.trials(options.all_seeds)
    if options.save and not any(map(experiment.trains, trials)):
        raise InputError(f"these settings of {experiment.name} train no model: leave --save out")
    record = {
        **experiment.about(),
        # Columns may depend on settings.
        "columns": [column._asdict() for column in experiment.columns],
        "preset": preset,
        "data": data,
        "settings": asdict(experiment),
        "options": asdict(options) | {"out": options.out.name},
        "command": repeat_command(experiment, preset, options),
        **describe_environment(fabric.device),
        "trials": [trial.name for trial in trials],
    }
    if folder is None:
        place = RunFolder.create(options.out, experiment.name, record, fabric)
    else:
        place = RunFolder.open(folder, fabric)
    with place:
        _check_data(place, data)
        progress = Progress(quiet=options.quiet, prints=fabric.is_global_zero)
        count = f"{len(trials)} trial{'s' if len(trials) != 1 else ''}"
        progress.info(f"{experiment.name} --{preset}, {count} in {place.path}")
        if data:
            progress.info(describe(data))
        finished = []
        for trial in trials:
            result = place.result(trial.name, progress.warn)
            if result is None:
                context = TrialContext(fabric, place.trial(trial.name), trial, options, progress)
                place.write_result(trial.name, _run_trial(experiment, trial, context, record))
                result = place.result(trial.name)
            elif options.save and experiment.trains(trial) and not (place.trial(trial.name) / PRETRAINED).is_dir():
                progress.warn(f"{trial.name} was finished without --save: its model is not saved")
            assert result is not None
            finished.append(Finished(trial, result, place.trial(trial.name)))
        if fabric.is_global_zero:
            _draw(experiment, finished, place)
        fabric.barrier()
        place.finish()
    return place.path


def _check_data(place: RunFolder, now: dict[str, Any]) -> None:
    """Refuse to resume a run with data other than those it was started with."""
    before = place.record.get("data")
    # The checksum covers how images were split; the sentence about it differs between versions.
    if before and _without_split(to_json_value(now)) != _without_split(before):
        raise InputError(
            f"the data have changed since {place.path} was started. Before: {summarise(before)}. Now: {summarise(now)}."
            " Put the former data back, or leave --resume out to start a new run"
        )


def _without_split(about: Any) -> Any:
    return {key: about[key] for key in about if key != "test split"} if isinstance(about, dict) else about


def _draw(experiment: Experiment, finished: list[Finished], place: RunFolder) -> None:
    """Write the figures and the summary."""
    pictures = experiment.figures(finished)
    for picture in pictures:
        picture.save(place.figures)
    place.update(figures=[{"name": picture.name, "caption": picture.caption} for picture in pictures])
    summary = summary_markdown({**place.record, "finished": True}, [done.result for done in finished])
    write_file(place.path / "summary.md", summary.encode("utf-8", "replace"))


def _run_trial(experiment: Experiment, trial: Trial, context: TrialContext, record: dict[str, Any]) -> Result:
    metrics = experiment.run(trial, context)
    return Result(
        experiment=experiment.name,
        model=trial.model,
        dataset=trial.dataset,
        seed=trial.seed,
        metrics=dict(metrics),
        parameters=context.parameters,
        seconds=round(context.seconds, 3),
        about=dict(trial.about),
        curves=context.curves(),
        settings=without_machine_paths(record["settings"]),
        **{name: record[name] for name in ("preset", "device", "versions", "commit", "command")},
    )
