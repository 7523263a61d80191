"""Whether an aim was reached, from the rows of one workload as the result files hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .contest import Aim

Row = Mapping[str, Any]


def judge(aim: Aim, rows: Sequence[Row]) -> dict[str, Any] | None:
    """The best of our rows of that kind against the best of the peer's; None where one of them is missing."""
    like = [row for row in rows if _is_like(row, aim)]
    ours = [row for row in like if row["library"] == "ncode" and row["label"].startswith(aim.ours)]
    peers = [row for row in like if row["library"] == aim.peer and row["label"].startswith(aim.row)]
    if not ours or not peers:
        return None
    us, them = (min(some, key=lambda row: row["seconds"]) for some in (ours, peers))
    ratio = us["seconds"] / them["seconds"]
    return {"ours": _name(us), "peer": _name(them), "aim": aim.ratio, "ratio": ratio, "reached": ratio <= aim.ratio}


def verdict(aim: Aim, workload: Mapping[str, Any] | None) -> str:
    """The same in words, of a workload's record."""
    found = judge(aim, workload["rows"]) if workload else None
    if found is not None:
        return f"{found['ratio']:.3g} (aim {aim.ratio:g}, {'reached' if found['reached'] else '**not reached**'})"
    if workload and any(name.startswith(f"{aim.peer}, {aim.row}") for name in workload["failed"]):
        return f"no ratio (aim {aim.ratio:g}): the peer's answer was refused"
    return f"not measured (aim {aim.ratio:g})"


def _is_like(row: Row, aim: Aim) -> bool:
    """Rows of another kind say so at the end of their label, in older files there alone."""
    if "apart" in row:
        return row["apart"] == aim.apart
    return row["label"].endswith(aim.apart) if aim.apart else "TF32" not in row["label"]


def _name(row: Row) -> str:
    return f"{row['library']}, {row['label']}"
