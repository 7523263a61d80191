"""An experiment over a grid of settings, written down in a journal that a sweep can be gone on with from."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from ncode import InputError
from ncode.checks import check_choice

from ..report import gather
from ..training import Result, RunOptions
from ..training.files import explain_os_errors, to_json_value
from ..training.run_folder import find_unfinished, read_record
from .base import Experiment
from .runner import run

if TYPE_CHECKING:
    from optuna import Study

Point = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Options of a sweep that do not depend on the experiment."""

    metric: str = ""
    """Metric that ranks the points: its mean over models and seeds. Default: the experiment's first column."""
    maximise: bool = False
    """Whether a larger metric is better."""
    name: str | None = None
    """Name of the sweep's folder. Default: made from the experiment and its grid."""
    workers: int = 1
    """Points that run at the same time."""
    cluster: Literal["none", "local", "slurm"] = "none"
    """What runs the points: this process, processes of submitit on this machine, or a Slurm cluster."""
    partition: str | None = None
    """Slurm's partition."""
    minutes: int = 240
    """Slurm's time limit per point."""


@dataclass(frozen=True, kw_only=True)
class Sweep(SweepOptions):
    """A sweep of an experiment.

    Attributes:
        base: The settings that the grid changes.
        preset: The name of the preset that they started from.
        grid: Values of each setting.
        options: How each point is run; the sweep's folder goes to `options.out`.
    """

    base: Experiment
    preset: str
    grid: Mapping[str, tuple[Any, ...]]
    options: RunOptions = field(default_factory=RunOptions)

    def __post_init__(self) -> None:
        object.__setattr__(self, "metric", self.metric or self.base.columns[0].metric)

    @property
    def folder(self) -> Path:
        """Where it is written down. The same sweep has the same folder, so saying it again goes on with it."""
        axes = "-".join(f"{name}={len(values)}" for name, values in self.grid.items())
        return self.options.out / (self.name or f"{self.base.name}-{self.preset}-{axes}")

    def points(self) -> list[Point]:
        """All combinations, the last setting changing fastest."""
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]

    def question(self, point: Point) -> str:
        """What is asked of a point: its number answers this and nothing else, whatever the folder is called."""
        settings = asdict(replace(self.base, **point))
        asked = {"metric": self.metric, "seed": self.options.seed, "seeds": self.options.seeds, "settings": settings}
        return json.dumps(to_json_value(asked), sort_keys=True)


def sweep(plan: Sweep) -> str:
    """Run every point that is not done yet, and give the table of all.

    A point that fails is written down as failed, and the others go on; saying the same sweep again tries it again.
    """
    study = _study(plan)
    todo = [(number, point) for number, point in enumerate(plan.points()) if _value(study, plan, point) is None]
    for point, outcome in _outcomes(plan, todo):
        _tell(study, plan, point, outcome)
    return table(plan, study)


def run_point(plan: Sweep, number: int, point: Point) -> float:
    """Run one point, in a folder of its own: the mean of the metric over its models and seeds."""
    out = plan.folder / f"point-{number:03}"
    options = replace(plan.options, out=out)
    experiment = replace(plan.base, **point)
    path = run(experiment, plan.preset, options, _begun(out, experiment, options))
    return fmean(_metric(result, plan.metric) for result in gather([path])[0].results)


def _begun(out: Path, experiment: Experiment, options: RunOptions) -> Path | None:
    """A run of the same settings and seeds to go on with; point 3 of another grid is another experiment."""
    path = find_unfinished(out, experiment.name)
    if path is None:
        return None
    record = read_record(path)
    before = record["settings"], record["options"]["seed"], record["options"]["seeds"]
    return path if before == (to_json_value(experiment), options.seed, options.seeds) else None


def read_grid(kind: type[Experiment], words: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """A grid as it is said on the command line, in the types of the settings.

    >>> from ncode_lab.experiments import find
    >>> read_grid(find("reflection"), ["lr=0.01,0.02", "models=node,open-loop+closed-loop"])
    {'lr': (0.01, 0.02), 'models': (('node',), ('open-loop', 'closed-loop'))}
    """
    if not words:
        raise InputError("say which settings to sweep: --grid SETTING=VALUE,VALUE ...")
    hints, known = get_type_hints(kind), [setting.name for setting in fields(kind)]
    grid = {}
    for word in words:
        name, equals, values = word.partition("=")
        if not equals or not values:
            raise InputError(f"a part of the grid is SETTING=VALUE,VALUE; given {word!r}")
        name = check_choice("setting", name.replace("-", "_"), known)
        grid[name] = tuple(_read(name, value, hints[name]) for value in values.split(","))
    return grid


def table(plan: Sweep, study: Study) -> str:
    """The points, the best first."""
    values = [(point, _value(study, plan, point)) for point in plan.points()]
    done = [(point, value) for point, value in values if value is not None]
    done.sort(key=lambda item: -item[1] if plan.maximise else item[1])
    heads = [*plan.grid, plan.metric]
    rows = [[*map(_say, point.values()), f"{value:.6g}"] for point, value in done]
    rows += [[*map(_say, point.values()), "failed"] for point, value in values if value is None]
    widths = [max(len(row[i]) for row in [heads, *rows]) for i in range(len(heads))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [heads, *rows]]
    return "\n".join([*lines, "", str(plan.folder)])


def _study(plan: Sweep) -> Study:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with explain_os_errors(plan.folder):
        plan.folder.mkdir(parents=True, exist_ok=True)
    storage = JournalStorage(JournalFileBackend(str(plan.folder / "journal.log")))
    direction = "maximize" if plan.maximise else "minimize"
    return optuna.create_study(study_name="sweep", storage=storage, direction=direction, load_if_exists=True)


def _value(study: Study, plan: Sweep, point: Point) -> float | None:
    """What a point came to, in this life of the sweep or an earlier one."""
    question = plan.question(point)
    for trial in study.trials:
        if trial.value is not None and trial.user_attrs.get("question") == question:
            return trial.value
    return None


def _tell(study: Study, plan: Sweep, point: Point, outcome: float | Exception) -> None:
    from optuna.distributions import CategoricalDistribution
    from optuna.trial import TrialState, create_trial

    choices = {name: CategoricalDistribution([_say(value) for value in plan.grid[name]]) for name in point}
    about = {"params": {name: _say(value) for name, value in point.items()}, "distributions": choices}
    attributes = {"point": _key(point), "question": plan.question(point)}
    if isinstance(outcome, Exception):
        error = f"{type(outcome).__name__}: {outcome}"
        print(f"failed: {_key(point)}: {error}", flush=True)
        study.add_trial(create_trial(state=TrialState.FAIL, user_attrs={**attributes, "error": error}, **about))
    else:
        study.add_trial(create_trial(value=outcome, user_attrs=attributes, **about))


def _outcomes(plan: Sweep, todo: Sequence[tuple[int, Point]]) -> Iterator[tuple[Point, float | Exception]]:
    if plan.cluster == "none":
        for number, point in todo:
            try:
                yield point, run_point(plan, number, point)
            except Exception as error:
                yield point, error
        return
    import submitit

    executor = submitit.AutoExecutor(plan.folder / "jobs", cluster=plan.cluster)
    executor.update_parameters(timeout_min=plan.minutes)
    if plan.cluster == "slurm":
        executor.update_parameters(slurm_array_parallelism=plan.workers, slurm_partition=plan.partition)
    size = plan.workers if plan.cluster == "local" else max(1, len(todo))
    for batch in (todo[i : i + size] for i in range(0, len(todo), size)):
        with executor.batch():
            jobs = [executor.submit(run_point, plan, number, point) for number, point in batch]
        for (_, point), job in zip(batch, jobs, strict=True):
            try:
                yield point, job.result()
            except Exception as error:  # a crash of the process itself is one too
                yield point, error


def _metric(result: Result, name: str) -> float:
    return result.metrics[check_choice("metric", name, result.metrics)]


def _read(name: str, word: str, hint: Any) -> Any:
    if get_origin(hint) is tuple:
        return tuple(_read(name, part, get_args(hint)[0]) for part in word.split("+"))
    if get_origin(hint) is Literal:
        kinds = {str(value): value for value in get_args(hint)}
        return kinds[check_choice(f"value of {name}", word, kinds)]
    if hint is bool:
        return {"true": True, "false": False}[check_choice(f"value of {name}", word.lower(), ("true", "false"))]
    try:
        return hint(word) if hint in (int, float, str) else float(word)
    except ValueError:
        raise InputError(f"{name} takes {getattr(hint, '__name__', hint)} values; given {word!r}") from None


def _key(point: Point) -> str:
    return " ".join(f"{name}={_say(value)}" for name, value in point.items())


def _say(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)
