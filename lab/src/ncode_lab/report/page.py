"""The report: one self-contained HTML page."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ncode import InputError

from ..training import Result
from ..training.files import check_replaceable, replace_file
from ..training.progress import format_seconds
from ..wording import format_number, model_name, problem_name
from .html import Markup, as_html, join, tag
from .pictures import embed
from .runs import OLD_TITLES, Drawing, Run, gather
from .tables import NONE, make_table

# A second defence after escaping: the browser loads nothing and runs nothing.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
# A figure with a larger ratio of width to height gets its own row.
WIDE = 1.5
ENVIRONMENT = ("device", "commit", "started", "finished")


def write_report(
    runs: Sequence[str | Path],
    out: str | Path,
    about: Mapping[str, Mapping[str, Any]] | None = None,
    redraw: Callable[[Run, Path], Sequence[Drawing]] | None = None,
    explorer: str | None = None,
    remark: Callable[[Sequence[Result]], str] = lambda group: "",
) -> Path:
    """Write one page about runs, and return its path.

    Args:
        runs: Run folders, result files, or folders of either: see `gather`.
        out: The file to write, or a folder for `report.html`.
        about: Title, question, columns and the paper's numbers for results outside a run folder, by experiment.
        redraw: Draws the figures of a run without any, into the given folder.
        explorer: Address of the explorer, to link to.
        remark: What tables say next to the model of a group of results: see `make_table`.

    >>> import json, tempfile
    >>> result = dict(experiment="annuli", model="node", dataset="annuli", preset="quick", seed=0, settings={},
    ...               metrics={"error": 0.5}, parameters=354, seconds=1.0, device="cpu", versions={}, commit="",
    ...               command="ncode run annuli --quick")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "0.json").write_text(json.dumps(result))
    ...     page = write_report([folder], folder)
    ...     page.name, '<td class="number">0.500</td>' in page.read_text()
    ('report.html', True)
    """
    out = Path(out)
    if out.is_dir():
        out = out / "report.html"
    check_replaceable(out)
    with tempfile.TemporaryDirectory() as folder:
        found = gather(runs, about)
        if redraw is not None:
            found = [run if run.drawings else _redrawn(run, redraw, Path(folder)) for run in found]
        page = render(found, explorer, remark)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # A lone surrogate, which JSON may hold and UTF-8 may not, becomes a question mark.
        replace_file(out, page.encode("utf-8", "replace"))
    except OSError as error:
        raise InputError(f"the report cannot be written to {out}: {error.strerror or error}") from error
    return out


def _redrawn(run: Run, redraw: Callable[[Run, Path], Sequence[Drawing]], folder: Path) -> Run:
    try:
        return replace(run, drawings=tuple(redraw(run, folder)))
    except Exception as error:  # results may hold anything: curves of unequal lengths, settings that are missing
        fault = f"The figures cannot be drawn from these results: {type(error).__name__}: {error}."
        return replace(run, notes=(*run.notes, fault))


def render(
    runs: Sequence[Run],
    explorer: str | None = None,
    remark: Callable[[Sequence[Result]], str] = lambda group: "",
) -> str:
    """Return the page as text."""
    title = f"N-CODE: {_title(runs[0])}" if len(runs) == 1 else "N-CODE: report"
    style = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
    keys = [f"run-{number}" for number in range(1, len(runs) + 1)]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", http_equiv="Content-Security-Policy", content=POLICY),
        tag("title", title),
        tag("style", Markup(style)),
    )
    sections = (_section(key, run, remark) for key, run in zip(keys, runs, strict=True))
    body = tag("body", _opening(keys, runs, explorer), tag("main", *sections))
    return "<!doctype html>\n" + tag("html", head, body, lang="en") + "\n"


def _title(run: Run) -> str:
    return run.text("title") or run.text("experiment") or run.name


def _opening(keys: Sequence[str], runs: Sequence[Run], explorer: str | None) -> Markup:
    line = "Neurally controlled ODEs: our results, next to those of the paper."
    links = (
        tag("li", tag("a", _title(run), href=f"#{key}"), " ", tag("span", _facts(run), class_="facts"))
        for key, run in zip(keys, runs, strict=True)
    )
    contents = tag("nav", tag("h2", "Contents"), tag("ol", *links), aria_label="Contents")
    more = [_explorer_link(explorer)] if explorer else []
    return tag("header", tag("h1", "N-CODE report"), tag("p", line, class_="lead"), contents, *more)


def _explorer_link(address: str) -> Markup:
    link = tag("a", "Explorer", href=address)
    return tag("p", link, ": the same models, small, to train in the browser.", class_="explorer")


def _facts(run: Run) -> str:
    """Return one line: experiment, data, preset, trials and seeds, time, start, and whether it is complete."""
    results = run.results
    facts = [run.text("experiment"), _dataset(run), f"{run.text('preset')} preset" if run.text("preset") else ""]
    for noun, count in (("trial", len(results)), ("seed", len({result.seed for result in results}))):
        facts.append(f"{count} {noun}" + ("" if count == 1 else "s"))
    if results:
        facts.append(format_seconds(sum(result.seconds for result in results)))
    facts.append(run.text("started")[:19].replace("T", " "))
    facts.append("not finished" if run.unfinished else "see notes" if run.notes else "")
    # A line may break between facts, not within one.
    return " · ".join(fact.replace(" ", "\N{NO-BREAK SPACE}") for fact in facts if fact)


def _dataset(run: Run) -> str:
    """The data set of a run, if it has one and is not named after it."""
    names = {result.dataset for result in run.results}
    name = str(run.part("data").get("name") or (names.pop() if len(names) == 1 else ""))
    return "" if name == run.text("experiment") else problem_name(name)


def _section(key: str, run: Run, remark: Callable[[Sequence[Result]], str]) -> Markup:
    figures, faults = _figures(run.drawings)
    notes = [tag("li", note) for note in (*run.notes, *faults)]
    paragraphs = (part.strip() for part in re.split(r"\n\s*\n", run.text("question")))
    # A number and its unit stay on one line.
    paragraphs = (part.replace(" %", "\N{NO-BREAK SPACE}%") for part in paragraphs)
    question = [tag("p", text, class_="question") for text in paragraphs if text]
    return tag(
        "section",
        tag("p", _facts(run), class_="facts"),
        tag("h2", _title(run), id=key),
        *question,
        *[tag("aside", tag("ul", *notes), class_="notes", aria_label="Notes")] * bool(notes),
        _results(run, remark),
        figures,
        _folded(run),
        tag("p", tag("a", "Back to contents", href="#"), class_="back"),
        aria_labelledby=key,
    )


def _results(run: Run, remark: Callable[[Sequence[Result]], str]) -> Markup:
    if not run.results:
        return join(tag("h3", "Results"), tag("p", "There are no results yet."))
    table = make_table(run.results, run.columns, run.paper, remark)
    return join(tag("h3", "Results"), as_html(table, _caption(run, table.datasets, any(table.in_paper))))


def _caption(run: Run, datasets: Sequence[str], in_paper: bool) -> str:
    parts = [f"{problem_name(datasets[0])}."] if len(datasets) == 1 and datasets[0] != run.text("experiment") else []
    if len({result.seed for result in run.results}) > 1:
        parts.append("Mean ± standard deviation over seeds.")
    if in_paper and run.text("preset") not in ("", "paper"):
        parts.append(f"The numbers of the paper are for its own setting, not for the {run.text('preset')} preset.")
    return " ".join(parts) or "One seed."


def _figures(drawings: Sequence[Drawing]) -> tuple[Markup, list[str]]:
    shown, faults = [], []
    for drawing in drawings:
        try:
            shown.append(_figure(drawing))
        except InputError as error:
            faults.append(f"The figure {drawing.name} is left out: {error}.")
    if not shown:
        return Markup(""), faults
    return join(tag("h3", "Figures"), tag("div", *shown, class_="figures")), faults


def _figure(drawing: Drawing) -> Markup:
    image = embed(drawing.files)
    wide = image.width > WIDE * image.height
    picture = tag("img", src=image.source, alt=drawing.caption, width=image.width, height=image.height)
    card = tag("div", picture, class_="card")
    return tag("figure", card, tag("figcaption", drawing.caption), class_="wide" if wide else None)


def _folded(run: Run) -> Markup:
    """Make the details that are folded by default."""
    command = run.text("command")
    parts = [("How to run it again", tag("pre", tag("code", command), tabindex=0))] if command else []
    if run.results:
        parts.append(("Every trial", _trials(run)))
    if run.part("data"):
        parts.append(("Data", _pairs(run.part("data"))))
    parts.append(("Settings", _pairs(run.part("settings"))))
    if run.part("options"):
        parts.append(("Options", _pairs(run.part("options"))))
    environment = {key: run.record[key] for key in ENVIRONMENT if run.record.get(key)}
    parts.append(("Environment", _pairs({"folder": run.name, **environment, **run.part("versions")})))
    folds = (
        tag("details", tag("summary", tag("h4", name)), content, class_="trials" if name == "Every trial" else None)
        for name, content in parts
    )
    return join(tag("h3", "Details"), *folds)


def _trials(run: Run) -> Markup:
    metrics = list(dict.fromkeys(name for result in run.results for name in result.metrics))
    numbers = ("seed", *(OLD_TITLES.get(name, name) for name in metrics), "time")
    heads = [tag("th", text, scope="col") for text in ("model", "dataset")]
    heads += [tag("th", text, scope="col", class_="number") for text in numbers]
    body = tag("tbody", *(_trial(result, metrics) for result in run.results))
    caption = tag("caption", tag("span", "Metrics in their own units."))
    table = tag("table", caption, tag("thead", tag("tr", *heads)), body)
    return tag("div", table, class_="box", role="region", tabindex=0, aria_label="Every trial")


def _trial(result: Result, metrics: Sequence[str]) -> Markup:
    numbers = [format_number(result.metrics[name], 4) if name in result.metrics else NONE for name in metrics]
    cells = (str(result.seed), *numbers, format_seconds(result.seconds))
    rest = (tag("td", text, class_="number") for text in cells)
    return tag(
        "tr",
        tag("th", model_name(result.model, result.experiment), scope="row"),
        tag("td", problem_name(result.dataset)),
        *rest,
    )


def _pairs(values: Mapping[str, Any]) -> Markup:
    if not values:
        return tag("p", "Not recorded.")
    return tag("dl", *(join(tag("dt", str(key)), tag("dd", _plain(value))) for key, value in values.items()))


def _plain(value: object) -> str:
    if isinstance(value, list) and value:
        return ", ".join(map(_plain, value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
