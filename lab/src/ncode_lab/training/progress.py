"""What the user sees of a run: a live bar on a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

SECONDS_BETWEEN_LINES = 5.0


class Progress:
    """Tells how a run goes, on stderr.

    Args:
        quiet: Only warnings.
        prints: False in all processes of a run but one: nothing at all.
        stream: Where to, in place of stderr.

    >>> progress = Progress(stream=sys.stdout)
    >>> progress.start("open-loop", steps=100)
    >>> progress.update(100, {"loss": 0.01234567, "nfe": 26.0})
    open-loop  step 100/100  loss 0.01235  nfe 26
    >>> progress.finish()
    """

    def __init__(self, quiet: bool = False, prints: bool = True, stream: TextIO | None = None):
        self._stream = stream
        self._warns, self._talks = prints, prints and not quiet
        self._title, self._steps, self._begun = "", 0, 0
        self._values = self._evaluation = ""
        self._started = self._told = 0.0
        self._bar: Bar | None = None
        self._task: Any = None

    @property
    def stream(self) -> TextIO:
        """Where the words go: asked each time, as stderr may be another later."""
        return self._stream or sys.stderr

    def start(self, title: str, steps: int, done: int = 0) -> None:
        """A fit begins, or goes on after `done` steps."""
        self._title, self._steps, self._begun = title, steps, done
        self._values = self._evaluation = ""
        self._started = self._told = time.monotonic()
        if self._talks and self.stream.isatty():
            self._bar = _new_bar(self.stream)
            self._task = self._bar.add_task(title, total=steps, completed=done, values="")
            self._bar.start()

    def update(self, step: int, values: dict[str, float]) -> None:
        """A step is done."""
        self._values = _text(values)
        self._show(step)
        if self._bar is None and self._is_time(step):
            self._print(f"{self._title}  step {step}/{self._steps}  {self._values}{self._left(step)}")

    def evaluated(self, step: int, values: dict[str, float]) -> None:
        """The model was evaluated."""
        self._evaluation = f"evaluation: {_text(values)}" if values else ""
        self._show(step)
        if self._bar is None and values and self._is_time(step):
            self._print(f"{self._title}  step {step}/{self._steps}  {self._evaluation}")

    def finish(self) -> None:
        """The fit is over: the bar stays as it is."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def info(self, text: str) -> None:
        """A line, unless quiet."""
        if self._talks:
            self._print(text)

    def warn(self, text: str) -> None:
        """A line, even when quiet."""
        if self._warns:
            self._print(text)

    def _show(self, step: int) -> None:
        if self._bar is not None:
            values = "\n".join(filter(None, (self._values, self._evaluation)))
            self._bar.update(self._task, completed=step, values=values)

    def _is_time(self, step: int) -> bool:
        """For another plain line."""
        now = time.monotonic()
        if not self._talks or (step < self._steps and now - self._told <= SECONDS_BETWEEN_LINES):
            return False
        self._told = now
        return True

    def _print(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self.stream, flush=True)

    def _left(self, step: int) -> str:
        done, left = step - self._begun, self._steps - step
        if not done or not left:
            return ""
        return f"  {_duration((time.monotonic() - self._started) / done * left)} left"


def _new_bar(stream: TextIO) -> Bar:
    """How far it is, and below how good. The bar comes first: a long title must not push it out of sight."""
    from rich.console import Console, RenderableType
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.table import Column
    from rich.text import Text

    class Lines(Bar):
        def get_renderables(self) -> Iterable[RenderableType]:
            yield self.make_tasks_table(self.tasks)
            for task in self.tasks:
                yield Text(task.fields["values"])

    return Lines(
        BarColumn(bar_width=20),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
        console=Console(file=stream),
        expand=True,
    )


def _text(values: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items())


def _duration(seconds: float) -> str:
    """As a person says it.

    >>> _duration(8.2), _duration(200), _duration(7500)
    ('8 s', '3 min 20 s', '2 h 05 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
