"""Find runs and results, and read them, complete or not. What is missing or damaged becomes a note."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from ncode import InputError

from ..training import Column, Reported, Result
from ..training.files import read_json
from ..wording import model_name

RECORD = "run.json"
# Titles in run folders of earlier versions, and names of metrics.
OLD_TITLES = {
    "evaluations a solve": "evaluations per solve",
    "evaluations an episode": "evaluations per episode",
    "seconds an epoch": "seconds per epoch",
}

MAX_DIGITS = 20  # after the decimal point of a column

Line = TypeVar("Line", Column, Reported)


@dataclass(frozen=True)
class Drawing:
    """A figure: its name, its caption, and its files, SVG before PNG.

    >>> Drawing("flow", "The flow of a NODE.", (Path("figures/flow.svg"),)).name
    'flow'
    """

    name: str
    caption: str
    files: tuple[Path, ...]


@dataclass(frozen=True)
class Run:
    """A run, as far as it could be read. `notes` has one sentence per missing or damaged thing.

    >>> Run("annuli-1", {"title": "Two annuli"}, (), (), (), (), ()).text("title")
    'Two annuli'
    """

    name: str  # of its folder
    record: Mapping[str, Any]  # the content of run.json
    columns: tuple[Column, ...]
    paper: tuple[Reported, ...]
    results: tuple[Result, ...]
    drawings: tuple[Drawing, ...]
    notes: tuple[str, ...]
    unfinished: bool = False

    def text(self, key: str) -> str:
        """Return a text of the record, or an empty one."""
        value = self.record.get(key)
        return value if isinstance(value, str) else ""

    def part(self, key: str) -> dict[str, Any]:
        """Return a dict of the record, or an empty one."""
        value = self.record.get(key)
        return dict(value) if isinstance(value, Mapping) else {}


def gather(paths: Sequence[str | Path], about: Mapping[str, Mapping[str, Any]] | None = None) -> list[Run]:
    """Read all runs in the given places, in order.

    Args:
        paths: Run folders, JSON files of one result each, or folders of either.
        about: By experiment, what a record would say of results outside a run folder: title, question, columns, paper.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     gather([folder])
    Traceback (most recent call last):
    ncode.errors.InputError: there is no run and no result in ...
    """
    if isinstance(paths, str | Path):
        raise InputError(f"a list of paths was expected; given {str(paths)!r}: put it in brackets")
    if not paths:
        raise InputError("there is nothing to report on: give run folders, or result files")
    runs: list[Run] = []
    loose: list[Path] = []
    for path in map(Path, paths):
        _check_exists(path)
        found = [_read_folder(folder) for folder in _run_folders(path)]
        files = list(_result_files(path))
        if not found and not files:
            raise InputError(
                f"there is no run and no result in {path}: give a run folder (it holds {RECORD}), a result file (JSON),"
                " or a folder of either"
            )
        runs += found
        loose += files
    return runs + _read_loose(list(dict.fromkeys(loose)), about or {})


def _check_exists(path: Path) -> None:
    if path.exists():
        return
    siblings = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    close = get_close_matches(path.name, siblings, 1)
    raise InputError(f"there is no {path}" + (f"; did you mean {path.with_name(close[0])}?" if close else ""))


def _is_run(folder: Path) -> bool:
    # A run that was stopped before it wrote its record still has its trials.
    return (folder / RECORD).is_file() or (folder / "trials").is_dir()


def _run_folders(path: Path) -> Iterator[Path]:
    if path.name == RECORD:
        yield path.parent
    elif path.is_dir() and _is_run(path):
        yield path
    elif path.is_dir():
        yield from (folder for folder in sorted(path.iterdir()) if folder.is_dir() and _is_run(folder))


def _result_files(path: Path) -> Iterator[Path]:
    if path.is_file() and path.name != RECORD:
        yield path
    elif path.is_dir() and not _is_run(path):
        yield from sorted(path.glob("*.json"))
        yield from (f for f in sorted(path.glob("*/*.json")) if not _is_run(f.parent))


def _read_folder(folder: Path) -> Run:
    notes: list[str] = []
    record: Mapping[str, Any] = {}
    try:
        record = read_json(folder / RECORD)
    except InputError as error:
        notes.append(f"The settings of this run are unknown: {error}.")
    results = _read_trials(folder, record, notes)
    columns, paper = read_columns(record, notes)
    drawings = _find_drawings(folder, record, notes)
    name, unfinished = folder.resolve().name, not record.get("finished")
    return Run(name, record, columns, paper, results, drawings, tuple(notes), unfinished)


def _read_trials(folder: Path, record: Mapping[str, Any], notes: list[str]) -> tuple[Result, ...]:
    """Read results in the order of the record; others come last."""
    listed = record.get("trials")
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    # A name with a separator could point outside the run.
    names = [name for name in names if Path(name).name == name]
    found = {path.parent.name: path for path in sorted(folder.glob("trials/*/result.json"))}
    results = []
    for name in dict.fromkeys([*names, *found]):
        if name in found:
            try:
                results.append(Result.from_json(read_json(found[name])))
            except InputError as error:
                notes.append(f"Trial {name}: {found[name].name} is left out: {error}.")
    missing = [name for name in names if name not in found]
    if not record.get("finished"):
        total = f" of {len(names)}" if names else ""
        notes.insert(0, f"This run has not finished. Finished trials: {len(found)}{total}.")
    if missing:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        notes.append(f"No result yet from {', '.join(missing[:5])}{more}.")
    return tuple(results)


def _find_drawings(folder: Path, record: Mapping[str, Any], notes: list[str]) -> tuple[Drawing, ...]:
    """Find the figures of the record, then others in the folder: a stopped run has not listed them yet."""
    found: dict[str, list[Path]] = {}
    for suffix in ("svg", "png"):
        for path in sorted(folder.glob(f"figures/*.{suffix}")):
            if path.is_file():
                found.setdefault(path.stem, []).append(path)
    listed = record.get("figures")
    captions: dict[str, str] = {}
    for figure in listed if isinstance(listed, list) else []:
        if isinstance(figure, Mapping) and isinstance(figure.get("name"), str):
            captions[figure["name"]] = str(figure.get("caption") or figure["name"])
    notes += [f"The figure {name} is missing." for name in captions if name not in found]
    names = [name for name in dict.fromkeys([*captions, *found]) if name in found]
    return tuple(Drawing(name, captions.get(name, name), tuple(found[name])) for name in names)


def _read_loose(files: Sequence[Path], about: Mapping[str, Mapping[str, Any]]) -> list[Run]:
    """Read result files outside run folders, as one run per experiment and preset."""
    groups: dict[tuple[str, str], list[Result]] = {}
    damaged: list[str] = []
    for path in files:
        try:
            result = Result.from_json(read_json(path))
            groups.setdefault((result.experiment, result.preset), []).append(result)
        except InputError as error:
            damaged.append(f"{Path(path.parent.name, path.name)} is left out: {error}.")
    if not groups and damaged:
        raise InputError(f"there is no result that can be read: {' '.join(damaged)}")
    runs = [_loose_run(*key, results, about.get(key[0], {})) for key, results in groups.items()]
    if damaged:
        runs[0] = replace(runs[0], notes=(*damaged, *runs[0].notes))
    return runs


def _loose_run(experiment: str, preset: str, results: Sequence[Result], about: Mapping[str, Any]) -> Run:
    notes: list[str] = []
    seen = [(result.model, result.dataset, result.seed) for result in results]
    for model, dataset, seed in dict.fromkeys(key for key in seen if seen.count(key) > 1):
        notes.append(
            f"There is more than one result of {model_name(model, experiment)} on {dataset} with seed {seed}: the"
            " spread is too small."
        )
    columns, paper = read_columns(about, notes)
    record = {**_common_record(results), **about, "experiment": experiment, "preset": preset}
    ordered = sort_results(results, about.get("models", ()))
    return Run(experiment, record, columns, paper, tuple(ordered), (), tuple(notes))


def _common_record(results: Sequence[Result]) -> dict[str, Any]:
    """Return the settings and versions that all results share, and every device, commit and command."""

    def values(name: str) -> list[str]:
        return list(dict.fromkeys(str(getattr(result, name)) for result in results))

    shared = {
        name: {
            key: value
            for key, value in getattr(results[0], name).items()
            if all(getattr(result, name).get(key) == value for result in results)
        }
        for name in ("settings", "versions")
    }
    texts = {name: ", ".join(values(name)) for name in ("device", "commit")}
    return {**texts, **shared, "command": "\n".join(values("command"))}


def sort_results(results: Sequence[Result], models: Sequence[str]) -> list[Result]:
    """Sort results as a run has them: problems by their numbers, models in the given order, and then any others.

    >>> about = ("", 0, {}, {}, 1, 1.0, "", {}, "", "")
    >>> found = [Result("memory", model, f"n {n}", *about, {"n": n}) for model in ("node", "ncode") for n in (10, 2)]
    >>> [(each.dataset, each.model) for each in sort_results(found, ["ncode", "node"])]
    [('n 2', 'ncode'), ('n 2', 'node'), ('n 10', 'ncode'), ('n 10', 'node')]
    """

    def padded(value: object) -> str:
        number = isinstance(value, int | float) and abs(value) <= sys.float_info.max
        return f"{value:020.6f}" if number else str(value)  # 10 after 2

    def place(model: str) -> int:
        return models.index(model) if model in models else len(models)

    found = sorted(results, key=lambda result: [padded(value) for value in result.about.values()])
    problems = list(dict.fromkeys(result.dataset for result in found))
    return sorted(found, key=lambda result: (problems.index(result.dataset), place(result.model)))


def read_columns(record: Mapping[str, Any], notes: list[str]) -> tuple[tuple[Column, ...], tuple[Reported, ...]]:
    """Read columns and the paper's numbers of a record. What cannot be read is left out, with a note."""
    columns: tuple[Column, ...] = ()
    paper: tuple[Reported, ...] = ()
    try:
        columns = _read_lines(Column, record.get("columns", []))
        columns = tuple(column._replace(title=OLD_TITLES.get(column.title, column.title)) for column in columns)
        paper = _read_lines(Reported, record.get("paper", []))
    except InputError as error:
        notes.append(f"The columns of the table, or the paper's numbers, cannot be read: {error}.")
    return columns, paper


def _read_lines(kind: type[Line], value: object) -> tuple[Line, ...]:
    """Read columns, or the paper's numbers, as `run.json` has them: lists of values, or of objects with names."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise InputError(f"a list of {kind.__name__} was expected; given {value!r:.60}")
    return tuple(_read_line(kind, item) for item in value)


def _read_line(kind: type[Line], item: Any) -> Line:
    try:
        line = kind(**item) if isinstance(item, Mapping) else kind(*item)
    except TypeError as error:
        raise InputError(f"{item!r:.60} is no {kind.__name__}: {error}") from error
    for name, value in line._asdict().items():
        if not _fits(name, value):
            raise InputError(f"{item!r:.80} is no {kind.__name__}: its {name} is {value!r:.60}")
    return line


def _fits(name: str, value: object) -> bool:
    if name == "digits":
        return isinstance(value, int) and 0 <= value <= MAX_DIGITS
    if name in ("scale", "value"):
        return isinstance(value, int | float) and abs(value) <= sys.float_info.max
    return isinstance(value, str)
