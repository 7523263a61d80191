"""Run an experiment over a grid of settings, with a journal from which an interrupted sweep resumes."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, get_args, get_origin, get_type_hints

from ncode import InputError
from ncode.errors import check_choice

from ..limits import DATA_LIMIT, read_bytes
from ..report import gather
from ..training import RunOptions
from ..training.files import check_file_name, explain_os_errors, to_json_value, write_json
from ..training.lock import FolderLock, lock_owner
from ..training.run_folder import find_unfinished, read_record
from .base import Experiment
from .runner import run

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

    def __post_init__(self) -> None:
        for name in ("workers", "minutes"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1; given {getattr(self, name)}")
        if self.name is not None:
            check_file_name("name", self.name)


@dataclass(frozen=True, kw_only=True)
class Sweep(SweepOptions):
    """A sweep of an experiment."""

    base: Experiment  # the settings that the grid changes
    preset: str  # the name of the preset that they started from
    grid: Mapping[str, tuple[Any, ...]]  # values of each setting
    options: RunOptions = field(default_factory=RunOptions)  # of each point; the sweep's folder goes to `options.out`

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "metric", self.metric or self.base.columns[0].metric)
        known = [metric for point in self.points() for metric in replace(self.base, **point).metrics]
        check_choice("metric", self.metric, dict.fromkeys(known))

    @property
    def folder(self) -> Path:
        """The folder of the sweep. The same sweep has the same folder, so that it resumes."""
        if self.name:
            return self.options.out / self.name
        earlier = self._name_by_counts("=")  # lr=2 for two values of lr, as earlier versions wrote it
        return earlier if earlier.is_dir() else self._name_by_counts("-x")

    def _name_by_counts(self, sign: str) -> Path:
        axes = "-".join(f"{name}{sign}{len(values)}" for name, values in self.grid.items())
        return self.options.out / f"{self.base.name}-{self.preset}-{axes}"

    def points(self) -> list[Point]:
        """All combinations, the last setting changing fastest."""
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]

    def key(self, point: Point) -> str:
        """Everything that the metric of a point depends on, as text."""
        settings = asdict(replace(self.base, **point))
        about = {"metric": self.metric, "seed": self.options.seed, "seeds": self.options.seeds, "settings": settings}
        return json.dumps(to_json_value(about), sort_keys=True)


def sweep(plan: Sweep) -> tuple[str, int]:
    """Run every point that has no value yet. Returns the table of all points, and the number of those with a value.

    A point that fails does not stop the others; running the same sweep again repeats it.
    """
    _check_cluster(plan.cluster)
    with explain_os_errors(plan.folder):
        plan.folder.mkdir(parents=True, exist_ok=True)
        lock = FolderLock.acquire(plan.folder)
    if lock is None:
        raise InputError(f"{plan.folder} is in use by {lock_owner(plan.folder)}: wait for it, or stop it first")
    try:
        values = _complete(plan, plan.folder / "values.json")
        return _table(plan, values), sum(plan.key(point) in values for point in plan.points())
    finally:
        lock.release()


def _check_cluster(cluster: str) -> None:
    if cluster != "none":
        import submitit  # noqa: F401  # or say that it is missing, before a folder is made
    if cluster == "slurm" and shutil.which("srun") is None:
        raise InputError(
            "--cluster slurm needs Slurm, and its command srun was not found: start the sweep on a login node of the"
            " cluster, or leave --cluster out to run it here"
        )


def _complete(plan: Sweep, journal: Path) -> dict[str, float]:
    """Run the points without a value, write each value to the journal, and return all of them."""
    values = _read_values(journal)
    todo = [(number, point) for number, point in enumerate(plan.points()) if plan.key(point) not in values]
    for point, outcome in _run_points(plan, todo):
        if isinstance(outcome, Exception):
            settings = " ".join(f"{name}={_text(value)}" for name, value in point.items())
            print(f"failed: {settings}: {type(outcome).__name__}: {outcome}", flush=True)
        else:
            values[plan.key(point)] = outcome
            write_json(journal, values)
    return values


def _read_values(journal: Path) -> dict[str, float]:
    """The values of a journal. Damaged entries are left out, with a warning, so that their points run again.

    A journal has one entry per line, so that a torn or overwritten line costs no other.
    """
    if not journal.is_file():
        return {}
    with explain_os_errors(journal):
        lines = [line.strip() for line in read_bytes(journal, DATA_LIMIT).splitlines()]
    values, damaged = {}, 0
    for line, following in itertools.zip_longest(lines, lines[1:]):
        if line in (b"{", b"}", b"{}"):
            continue
        try:
            # Otherwise the line may be torn, and its number may have lost digits.
            if not line.endswith(b",") and following != b"}":
                raise ValueError("neither another entry nor the end follows")
            ((key, value),) = json.loads(b"{" + line.removesuffix(b",") + b"}").items()
            # Null stands for a value that was not finite.
            values |= {} if value is None else {key: float(value)}
        except (ValueError, TypeError, OverflowError, RecursionError):
            damaged += 1
    if damaged:
        lost = f"{damaged} damaged line{'s' if damaged > 1 else ''} left out"
        print(f"{journal}: {lost}; points without a value run again", flush=True)
    return values


def run_point(plan: Sweep, number: int, point: Point) -> float:
    """Run one point in a folder of its own, and return the mean of the metric over its models and seeds."""
    out = plan.folder / f"point-{number:03}"
    options = replace(plan.options, out=out)
    experiment = replace(plan.base, **point)
    path = run(experiment, plan.preset, options, _unfinished(out, experiment, options))
    results = gather([path])[0].results
    return fmean(result.metrics[check_choice("metric", plan.metric, result.metrics)] for result in results)


def _unfinished(out: Path, experiment: Experiment, options: RunOptions) -> Path | None:
    """An unfinished run of the same settings and seeds: another grid may have left one of other settings."""
    try:
        path = find_unfinished(out, experiment.name)
        record = {} if path is None else read_record(path)
    except InputError:  # a damaged record: the point runs anew
        return None
    before = record.get("options")
    same = isinstance(before, dict) and all(before.get(name) == getattr(options, name) for name in ("seed", "seeds"))
    return path if same and record.get("settings") == to_json_value(experiment) else None


def _run_points(plan: Sweep, todo: Sequence[tuple[int, Point]]) -> Iterator[tuple[Point, float | Exception]]:
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
            except Exception as error:  # also a crash of the process
                yield point, error


def _table(plan: Sweep, values: Mapping[str, float]) -> str:
    """The points, best first."""
    rows = [(point, values.get(plan.key(point))) for point in plan.points()]
    done = [(point, value) for point, value in rows if value is not None]
    done.sort(key=lambda item: -item[1] if plan.maximise else item[1])
    cells = [[*plan.grid, plan.metric]]
    cells += [[*map(_text, point.values()), f"{value:.6g}"] for point, value in done]
    cells += [[*map(_text, point.values()), "failed"] for point, value in rows if value is None]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    return "\n".join([*lines, "", str(plan.folder)])


def read_grid(kind: type[Experiment], arguments: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """A grid from command-line arguments such as "lr=0.01,0.02", in the types of the settings."""
    if not arguments:
        raise InputError("say which settings to sweep: --grid SETTING=VALUE,VALUE ...")
    hints, known = get_type_hints(kind), [setting.name for setting in fields(kind)]
    grid = {}
    for argument in arguments:
        name, equals, values = argument.partition("=")
        if not equals or not values:
            raise InputError(f"a part of the grid is SETTING=VALUE,VALUE; given {argument!r}")
        name = check_choice("setting", name.replace("-", "_"), known)
        if name in grid:
            raise InputError(f"the grid has {name} twice: give all of its values at once, {name}=VALUE,VALUE")
        grid[name] = tuple(_read_value(name, value, hints[name]) for value in values.split(","))
        if len(set(grid[name])) < len(grid[name]):
            raise InputError(f"the values of {name} must differ; given {values}")
    return grid


def _read_value(name: str, text: str, hint: Any) -> Any:
    if get_origin(hint) is tuple:
        return tuple(_read_value(name, part, get_args(hint)[0]) for part in text.split("+"))
    if get_origin(hint) is Literal:
        kinds = {str(value): value for value in get_args(hint)}
        return kinds[check_choice(f"value of {name}", text, kinds)]
    if hint is bool:
        return check_choice(f"value of {name}", text.lower(), ("true", "false")) == "true"
    try:
        return hint(text) if hint in (int, float, str) else float(text)
    except ValueError:
        raise InputError(f"{name} takes {getattr(hint, '__name__', hint)} values; given {text!r}") from None


def _text(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, tuple) else str(value)
