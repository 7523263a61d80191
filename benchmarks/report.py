"""Tables for people and JSON for the record."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .aims import judge
from .contest import Aim, Contest
from .measure import Row, wrong_gradient

Columns = Mapping[str, Callable[[Row, Sequence[Row]], float | None]]
HEAD = (
    "library",
    "how",
    "ms",
    "/ eager",
    "/ compiled",
    "NFE",
    "backward",
    "MiB",
    "error",
    "gradient error",
    "first, s",
    "f",
)


def table(rows: Sequence[Row], columns: Columns) -> str:
    """Markdown that also reads well as plain text."""
    ours = {row.entry.label: row.seconds for row in rows if row.entry.library == "ncode"}
    numbers = [_numbers(row, rows, columns) for row in rows]
    # The further numbers come before the last, which is no number.
    lines: list[tuple[str, ...]] = [(*HEAD[:-1], *columns, HEAD[-1])]
    for row, more in zip(rows, numbers, strict=True):
        *cells, last = _cells(row, ours)
        lines.append((*cells, *("" if number is None else f"{number:.4g}" for number in more.values()), last))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    left = {0, 1, len(widths) - 1}
    rule = ["-" * width if i in left else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    lines.insert(1, tuple(rule))
    return "\n".join(
        "| "
        + " | ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        + " |"
        for line in lines
    )


def _numbers(row: Row, rows: Sequence[Row], columns: Columns) -> dict[str, float | None]:
    """What the workload wants to know beside what all want to know."""
    return {name: number(row, rows) for name, number in columns.items()}


def _cells(row: Row, ours: Mapping[str, float]) -> tuple[str, ...]:
    nfe, back = "", ""
    if row.nfe is not None:
        nfe = f"{row.nfe.forward:.0f}"
        if row.nfe.most is not None and row.nfe.most != row.nfe.forward:
            nfe = f"{row.nfe.forward:.1f} to {row.nfe.most:.0f}"
        back = "" if row.nfe.backward is None else f"{row.nfe.backward:.0f}"
    return (
        row.entry.library,
        row.entry.label,
        f"{row.seconds * 1e3:.2f}",
        *(f"{row.seconds / ours[label]:.2f}" if label in ours else "" for label in ("eager", "compiled")),
        nfe,
        back,
        "" if row.memory is None else f"{row.memory / 2**20:.1f}",
        "" if row.error is None else f"{row.error:.1e}",
        f"{row.gradient_error:.1e}",
        f"{row.first:.1f}",
        row.variant,
    )


def notes(rows: Sequence[Row], failed: Mapping[str, str], contest: Contest, device: str) -> list[str]:
    """Below the table: aims, reached or not; who did not take part; what failed."""
    lines = [""]
    for verdict in _judge(rows, contest.aims, device):
        word = "reached" if verdict["reached"] else "NOT reached"
        lines.append(f"aim {verdict['aim']:g}: {verdict['ours']} / {verdict['peer']} = {verdict['ratio']:.3f}, {word}")
    lines += [f"{row.name}: {remark}" for row in rows if (remark := _remark(row, contest))]
    lines += [
        f"WRONG GRADIENT {row.name}: its relative error is {row.gradient_error:.2g}"
        for row in rows
        if wrong_gradient(row, contest)
    ]
    lines += [f"skipped {peer}: {why}" for peer, why in contest.skipped.items()]
    lines += [
        f"left out {row.name}, {variant}: {why}"
        for row in rows
        for variant, why in row.tried.items()
        if isinstance(why, str)
    ]
    return lines + [f"FAILED {row}: {why}" for row, why in failed.items()]


def _judge(rows: Sequence[Row], aims: Sequence[Aim], device: str) -> list[dict[str, Any]]:
    """Each aim that can be judged."""
    found = [judge(aim, [_row(row) for row in rows]) for aim in aims if aim.device == device]
    return [verdict for verdict in found if verdict is not None]


def record(title: str, rows: Sequence[Row], failed: Mapping[str, str], contest: Contest, device: str) -> dict[str, Any]:
    """All that was measured on one workload."""
    return {
        "title": title,
        "about": dict(contest.about),
        "reference_loss": contest.reference.loss,
        "rows": [
            {
                **_row(row),
                "more": _numbers(row, rows, contest.columns),
                "wrong_gradient": wrong_gradient(row, contest),
                "remark": _remark(row, contest),
            }
            for row in rows
        ],
        "aims": _judge(rows, contest.aims, device),
        "skipped": dict(contest.skipped),
        "failed": dict(failed),
    }


def _remark(row: Row, contest: Contest) -> str | None:
    """What the workload says about a row of ours."""
    return contest.remark(row) if contest.remark is not None and row.entry.library == "ncode" else None


def _row(row: Row) -> dict[str, Any]:
    return {
        "library": row.entry.library,
        "label": row.entry.label,
        "apart": row.entry.apart,
        "variant": row.variant,
        "seconds": row.seconds,
        "all_seconds": row.times,
        "first_seconds": row.first,
        "threads_busy": row.busy,
        "nfe": None if row.nfe is None else row.nfe._asdict(),
        "peak_bytes": row.memory,
        "loss": row.loss,
        "error": row.error,
        "gradient_error": row.gradient_error,
        "tried": row.tried,
    }


def load(path: Path) -> dict[str, Any]:
    """The workloads of an earlier run."""
    return json.loads(path.read_text())["workloads"] if path.exists() else {}


def write(path: Path, data: Mapping[str, Any]) -> None:
    """Write JSON, making folders on the way."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n")
