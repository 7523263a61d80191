"""`Experiment`: settings that know how to run themselves."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from torch import Tensor

from ncode import InputError

from ..training.result import Column, Reported, Result, Trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..training.trial_context import TrialContext

PRESETS = ("smoke", "quick", "paper")
DOTS = 150  # an inch, of PNG figures


class Finished(NamedTuple):
    """A trial that is done, and where its files are.

    >>> about = ("reflection", "node", "reflection", "quick", 0, {}, {"error": 0.3}, 25, 1.0, "CPU", {}, "", "")
    >>> Finished(Trial("node", "reflection"), Result(*about), Path("runs")).result.metrics
    {'error': 0.3}
    """

    trial: Trial
    result: Result
    folder: Path

    def load(self, name: str) -> dict[str, Tensor]:
        """The tensors that the trial kept under a name: see `TrialContext.save_tensors`."""
        from safetensors.torch import load_file

        return load_file(self.folder / "kept" / f"{name}.safetensors")


class Picture(NamedTuple):
    """A figure of an experiment: its file name, what is drawn, and the sentence below it.

    >>> import tempfile
    >>> from matplotlib.figure import Figure
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.name for path in Picture("flow", Figure(), "Nothing yet.").save(Path(folder))]
    ['flow.svg', 'flow.png']
    """

    name: str
    figure: Figure
    caption: str

    def save(self, folder: Path) -> tuple[Path, ...]:
        """Write it as SVG and as PNG."""
        paths = tuple(folder / f"{self.name}.{kind}" for kind in ("svg", "png"))
        for path in paths:
            self.figure.savefig(path, dpi=DOTS)
        return paths


@dataclass(frozen=True)
class Experiment(ABC):
    """An experiment of the paper. Its fields are its settings, and options of the command.

    A subclass is a frozen dataclass, in a file of its own, whose defaults are the paper's settings.

    Attributes:
        name: What it is called on the command line.
        line: One line, for `ncode list`.
        question: A paragraph for the report: what is asked, and what a reader should look for.
        presets: "smoke" (seconds), "quick" (about a minute on two cores), "paper": changes to the defaults.
        columns: The metrics that tables show.
        paper: The paper's own numbers.

    >>> from ncode_lab.experiments import find
    >>> settings = find("reflection").preset("smoke")
    >>> settings.steps, [trial.name for trial in settings.trials(seeds=[0])][0]
    (3, 'node-reflection-seed-0')
    """

    name: ClassVar[str]
    line: ClassVar[str]
    question: ClassVar[str]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]]
    columns: ClassVar[tuple[Column, ...]]
    paper: ClassVar[tuple[Reported, ...]] = ()

    @classmethod
    def preset(cls, name: str) -> Self:
        """The settings of a preset."""
        if name not in PRESETS:
            raise InputError(f"there is no preset {name!r}; choose one of: {', '.join(PRESETS)}")
        return cls(**cls.presets.get(name, {}))

    @abstractmethod
    def trials(self, seeds: Sequence[int]) -> list[Trial]:
        """What there is to run, in order."""

    @abstractmethod
    def run(self, trial: Trial, context: TrialContext) -> dict[str, float]:
        """Run one trial and return its metrics: train with `context.fit`, save data for figures with `save_tensors`."""

    @abstractmethod
    def figures(self, finished: Sequence[Finished]) -> list[Picture]:
        """Draw what the trials that are done have kept. There may be fewer than `trials` has."""

    @classmethod
    def redraw(cls, results: Sequence[Result]) -> list[Picture]:
        """What can be drawn of results alone, without what the trials kept. Nothing, unless an experiment says how."""
        return []

    @classmethod
    def about(cls) -> dict[str, Any]:
        """What a report says of the experiment: title, question, models, columns of its tables, the paper's numbers."""
        return {
            "title": f"{cls.name.capitalize()}: {cls.line}",
            "question": cls.question,
            # In the order in which tables have them.
            "models": list(cls.presets.get("paper", {}).get("models", getattr(cls, "models", ()))),
            "columns": [column._asdict() for column in cls.columns],
            "paper": [reported._asdict() for reported in cls.paper],
        }
