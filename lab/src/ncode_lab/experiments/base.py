"""`Experiment`: a dataclass of settings that knows how to run itself."""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, get_args, get_origin, get_type_hints

from torch import Tensor

from ncode import InputError
from ncode.errors import check_choice

from ..training.files import write_file
from ..training.result import Column, Reported, Result, Trial
from ..training.run_folder import RESULT

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..training import TrialContext

PRESETS = ("smoke", "quick", "full", "paper")
DPI = 150  # of PNG figures


class Finished(NamedTuple):
    """A trial that is done, and the folder of its files."""

    trial: Trial
    result: Result
    folder: Path

    def load(self, name: str) -> dict[str, Tensor]:
        """The tensors that the trial saved under a name: see `TrialContext.save_tensors`."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        path = self.folder / "kept" / f"{name}.safetensors"
        try:
            return load_file(path)
        except (OSError, SafetensorError) as error:
            raise InputError(
                f"{path} is damaged ({error}): delete {RESULT} of that trial, and a run with --resume makes both again"
            ) from error


class Picture(NamedTuple):
    """A figure of an experiment: its file name, the drawing, and its caption."""

    name: str
    figure: Figure
    caption: str

    def save(self, folder: Path) -> tuple[Path, ...]:
        """Write it as SVG and as PNG."""
        paths = []
        for kind in ("svg", "png"):
            drawn = io.BytesIO()
            self.figure.savefig(drawn, format=kind, dpi=DPI)
            paths.append(folder / f"{self.name}.{kind}")
            write_file(paths[-1], drawn.getvalue())
        return tuple(paths)


@dataclass(frozen=True)
class Experiment(ABC):
    """An experiment. Its fields are its settings, and options of the command line.

    A subclass is a frozen dataclass, in a folder of its own.

    Attributes:
        name: Name on the command line.
        line: One line for `ncode list`.
        question: A paragraph for the report: the question, and what a reader should look for.
        presets: Changes to the defaults for "smoke" (seconds), "quick" (about a minute on two cores), "full" (our best
            recipe) and "paper" (the paper's own settings). An experiment without a recipe of ours has no "full", and
            uses "paper" for it; one that is not in the paper has no "paper", and uses "full" for it.
        columns: The metrics that tables show.
        paper: The paper's own numbers.
        renamed: Settings that earlier versions called otherwise, by their old names.
        retired: Settings of earlier versions, with the value that is now fixed.
    """

    name: ClassVar[str]
    line: ClassVar[str]
    question: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]
    columns: ClassVar[tuple[Column, ...]]
    paper: ClassVar[tuple[Reported, ...]] = ()
    renamed: ClassVar[Mapping[str, str]] = {}
    retired: ClassVar[Mapping[str, Any]] = {}

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that results may have. Default: those of the columns."""
        return tuple(column.metric for column in self.columns)

    @classmethod
    def preset(cls, name: str) -> Self:
        """The settings of a preset."""
        return cls(**cls._changes(check_choice("preset", name, PRESETS)))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> tuple[Self, str]:
        """Settings and preset of a run from its run.json, also of a run that an earlier version began."""
        settings, preset = record.get("settings"), record.get("preset")
        if not isinstance(settings, dict) or preset not in PRESETS:
            raise InputError("its run.json has no settings, or no preset: start a new run without --resume")
        settings = {cls.renamed.get(name, name): value for name, value in settings.items()}
        cls.check_retired(settings)
        # Before there was "full", its settings were called "paper".
        if preset == "paper" and "full" in cls.presets and cls.retired.keys() & settings.keys():
            preset = "full"
        return cls(**cls.check_types(settings)), preset

    @classmethod
    def check_types(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of this experiment in those read from JSON, with tuples for lists. Refuses other types."""
        hints, known = get_type_hints(cls), {field.name for field in fields(cls)}
        found = {name: _to_tuple(value) for name, value in settings.items() if name in known}
        for name, value in found.items():
            if not _has_type(value, hints[name]):
                raise InputError(f"its run.json is damaged: the setting {name} is {value!r:.60}")
        return found

    @classmethod
    def check_retired(cls, settings: Mapping[str, Any]) -> None:
        """Refuse settings of an earlier version that this one cannot reproduce."""
        known = {field.name for field in fields(cls)}
        for name, value in settings.items():
            if name not in known and not (name in cls.retired and _to_tuple(value) == cls.retired[name]):
                raise InputError(
                    f"the run was begun by another version: {cls.name} has no setting {name}, which was {value!r}."
                    " Start a new run, or use that version"
                )

    def data(self) -> dict[str, Any]:
        """Load the data, or refuse them, before there is a run; return what the run records about data of the user.

        A resumed run must find them unchanged. Default: nothing.
        """
        return {}

    @abstractmethod
    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        """The trials to run, in order."""

    def trains(self, trial: Trial) -> bool:
        """Whether a trial has a model, which --save saves."""
        return True

    @abstractmethod
    def run(self, trial: Trial, context: TrialContext) -> dict[str, float]:
        """Run one trial and return its metrics.

        Train with `context.fit(task)`, and save what the figures need with `context.save_tensors`.
        """

    @abstractmethod
    def figures(self, finished: Sequence[Finished]) -> list[Picture]:
        """Figures of the finished trials, which may be fewer than `trials` lists."""

    @classmethod
    def redraw(cls, results: Sequence[Result]) -> list[Picture]:
        """Figures that need result files only, without the tensors that trials saved. Default: none."""
        return []

    @classmethod
    def remark(cls, results: Sequence[Result]) -> str:
        """What a table says next to the name of a model, given its results on one problem. Default: nothing."""
        return ""

    @classmethod
    def about(cls) -> dict[str, Any]:
        """What a report says about the experiment: title, question, models, table columns and the paper's numbers."""
        return {
            "title": f"{cls.name.capitalize()}: {cls.line}",
            "question": cls.question,
            # In the order of the tables.
            "models": list(cls._changes("full").get("models", getattr(cls, "models", ()))),
            "columns": [column._asdict() for column in cls.columns],
            "paper": [reported._asdict() for reported in cls.paper],
        }

    @classmethod
    def _changes(cls, preset: str) -> Mapping[str, Any]:
        other = {"full": "paper", "paper": "full"}
        return cls.presets[preset if preset in cls.presets else other[preset]]


def _has_type(value: Any, hint: Any) -> bool:
    """Whether a value has the type of a setting: a plain type, a Literal, or a tuple of either."""
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_has_type(each, get_args(hint)[0]) for each in value)
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, int | float if hint is float else hint)


def _to_tuple(value: Any) -> Any:
    """JSON has lists where settings have tuples."""
    return tuple(map(_to_tuple, value)) if isinstance(value, list) else value
