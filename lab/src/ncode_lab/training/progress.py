"""What a run reports on its way: a live bar or plain lines, metrics.jsonl, TensorBoard, and the time it took."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ncode import InputError

from ..limits import DATA_LIMIT, read_bytes
from .files import explain_os_errors, to_json_value, write_file

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

SECONDS_BETWEEN_LINES = 5.0


_LOG = logging.getLogger("ncode")


class _LogLines(logging.Handler):
    """Prints what the library says while it compiles."""

    def __init__(self, progress: Progress):
        super().__init__(logging.INFO)
        self.progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        self.progress.info(record.getMessage())


class Progress:
    """Shows the progress of a run on stderr: a live bar on a terminal, plain lines elsewhere.

    Args:
        quiet: Print only warnings.
        prints: False in all processes of a run but one: print nothing at all.
        stream: Where to print. Default: stderr.

    >>> progress = Progress(stream=sys.stdout)
    >>> progress.start("open-loop", steps=100)
    >>> progress.update(100, {"loss": 0.01234567, "nfe": 26.0})
    open-loop  step 100/100  loss 0.01235  nfe 26
    >>> progress.finish()
    """

    def __init__(self, quiet: bool = False, prints: bool = True, stream: TextIO | None = None):
        self._stream = stream
        self._warns, self._informs = prints, prints and not quiet
        self._title, self._steps, self._first = "", 0, 0
        self._values = self._evaluation = ""
        self._started = self._printed = 0.0
        self._bar: Bar | None = None
        self._task: Any = None
        self._handler, self._level = _LogLines(self), _LOG.level

    @property
    def stream(self) -> TextIO:
        """Where to print; looked up each time, as stderr may be replaced later."""
        return self._stream or sys.stderr

    def start(self, title: str, steps: int, done: int = 0) -> None:
        """Begin to show a fit of `steps` steps, of which `done` were taken before."""
        self._title, self._steps, self._first = title, steps, done
        self._values = self._evaluation = ""
        self._started = self._printed = time.monotonic()
        if self._informs:
            _LOG.addHandler(self._handler)
            _LOG.setLevel(logging.INFO)
            _LOG.disabled = False  # as dictConfig of another package may leave it
        if self._informs and self.stream.isatty():
            self._bar = _make_bar(self.stream)
            self._task = self._bar.add_task(title, total=steps, completed=done, values="")
            self._bar.start()

    def update(self, step: int, values: dict[str, float]) -> None:
        """Show the numbers of a training step."""
        self._values = _format(values)
        self._show(step, self._values + self._time_left(step))

    def evaluated(self, step: int, values: dict[str, float]) -> None:
        """Show the metrics of an evaluation."""
        self._evaluation = f"evaluation: {_format(values)}" if values else ""
        self._show(step, self._evaluation or None)

    def finish(self) -> None:
        """End the fit. The bar stays on the screen as it is."""
        _LOG.removeHandler(self._handler)
        _LOG.setLevel(self._level)
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def info(self, text: str) -> None:
        """Print a line, except when quiet."""
        if self._informs:
            self._print(text)

    def warn(self, text: str) -> None:
        """Print a line, even when quiet."""
        if self._warns:
            self._print(text)

    def _show(self, step: int, text: str | None) -> None:
        now = time.monotonic()
        due = step == self._steps or now - self._printed > SECONDS_BETWEEN_LINES
        if self._bar is not None:
            values = "\n".join(filter(None, (self._values, self._evaluation)))
            self._bar.update(self._task, completed=step, values=values)
        elif self._informs and text is not None and due:
            self._printed = now
            self._print(f"{self._title}  step {step}/{self._steps}  {text}")

    def _print(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self.stream, flush=True)

    def _time_left(self, step: int) -> str:
        done, left = step - self._first, self._steps - step
        if not done or not left:
            return ""
        return f"  {format_seconds((time.monotonic() - self._started) / done * left, 0)} left"


def _make_bar(stream: TextIO) -> Bar:
    """The bar, with the values below it. The bar comes first: a long title must not push it off the screen."""
    from rich.console import Console, RenderableType
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar
    from rich.table import Column
    from rich.text import Text

    class BarWithValues(Bar):
        def get_renderables(self) -> Iterable[RenderableType]:
            yield self.make_tasks_table(self.tasks)
            for task in self.tasks:
                yield Text(task.fields["values"])

    return BarWithValues(
        BarColumn(bar_width=20),
        MofNCompleteColumn(table_column=Column(no_wrap=True)),
        TimeRemainingColumn(table_column=Column(no_wrap=True)),
        TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)),
        console=Console(file=stream),
        expand=True,
    )


def _format(values: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in values.items())


def format_seconds(seconds: float, digits: int = 1) -> str:
    """Format a duration, with digits after the point if it is under a minute.

    >>> format_seconds(4.21), format_seconds(4.21, 0), format_seconds(200), format_seconds(7300)
    ('4.2 s', '4 s', '3 min 20 s', '2 h 1 min')
    """
    if not math.isfinite(seconds):
        return "unknown"
    if seconds < 59.95:
        return f"{seconds:.{digits}f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours} h {minutes_left} min" if hours else f"{minutes} min {rest} s"


class MetricsLog:
    """The metrics of a trial, one JSON object per line: {"step", "kind": "train" or "evaluation", "fit", ...}.

    With `writes=False`, for processes that must not touch the file, it does nothing.
    """

    def __init__(self, path: Path, writes: bool = True):
        self.path, self.writes = path, writes

    def write(self, step: int, kind: str, fit: str, values: dict[str, float]) -> None:
        """Append a line."""
        if not self.writes:
            return
        line = json.dumps(to_json_value({"step": step, "kind": kind, "fit": fit, **values}))
        with explain_os_errors(self.path), open(self.path, "ab") as file:
            file.write(line.encode() + b"\n")

    def sync(self) -> None:
        """Wait until all lines are on the disk: a checkpoint must not outlive the lines before it."""
        if self.writes and self.path.is_file():
            with explain_os_errors(self.path), open(self.path, "ab") as file:
                os.fsync(file.fileno())

    def cut(self, fit: str, step: int) -> None:
        """Remove what a fit wrote after a step, and a line that a killed process left incomplete."""
        if not self.writes or not self.path.is_file():
            return
        lines = [line for line in self._read() if line["fit"] != fit or line["step"] <= step]
        write_file(self.path, "".join(json.dumps(line) + "\n" for line in lines).encode())

    def curves(self, max_points: int = 200) -> dict[str, list[float]]:
        """One list per quantity, thinned to at most `max_points`. Names start with that of the fit unless "model"."""
        if not self.writes or not self.path.is_file():
            return {}
        groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for line in self._read():
            prefix = "" if line["fit"] == "model" else f"{line['fit']} "
            groups[prefix + line["kind"]].append(line)
        curves: dict[str, list[float]] = {}
        for name, lines in groups.items():
            lines = _thin(lines, max_points)
            for key in dict.fromkeys(key for line in lines for key in line if key not in ("kind", "fit")):
                curves[f"{name} {key}"] = [math.nan if line.get(key) is None else line[key] for line in lines]
        return curves

    def _read(self) -> list[dict[str, Any]]:
        found = []
        for text in read_bytes(self.path, DATA_LIMIT).splitlines():
            try:
                line = json.loads(text)
            except (ValueError, RecursionError):
                continue  # torn by a crash, or damaged
            if _is_line(line):
                found.append(line)
        return found


def _is_line(line: Any) -> bool:
    kinds = {"fit": str, "kind": str, "step": int}
    if not isinstance(line, dict) or not kinds.keys() <= line.keys():
        return False
    return all(isinstance(value, kinds.get(name, int | float | None)) for name, value in line.items())


def _thin(lines: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Select lines at equal distances, including the first and the last."""
    if len(lines) <= count:
        return list(lines)
    return [lines[round(index * (len(lines) - 1) / (count - 1))] for index in range(count)]


class TensorBoardLog:
    """Writes metrics for TensorBoard; `done` steps of earlier processes stay, what they wrote after is hidden."""

    def __init__(self, folder: Path, done: int = 0):
        self._folder = folder
        with explain_os_errors(folder):
            self._writer = import_summary_writer()(str(folder), purge_step=done + 1 if done else None)

    def write(self, step: int, kind: str, values: dict[str, float]) -> None:
        with explain_os_errors(self._folder):
            for name, value in values.items():
                self._writer.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        with explain_os_errors(self._folder):
            self._writer.close()


def import_summary_writer() -> Any:
    """Return TensorBoard's writer, or raise if it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError("--tensorboard needs the package tensorboard: pip install 'ncode-lab[tensorboard]'") from error
    return SummaryWriter


class TrialClock:
    """Counts the seconds of a trial over all processes that ran it, up to the last checkpoint of each."""

    def __init__(self) -> None:
        self._earlier, self._started = 0.0, time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds of all processes together."""
        return self._earlier + time.perf_counter() - self._started

    def resume(self, seconds: float) -> None:
        """Continue from a checkpoint written after `seconds`. Of several checkpoints in a trial, the latest counts."""
        self._earlier = max(self._earlier, seconds)
