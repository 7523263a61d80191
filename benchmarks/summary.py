"""`python -m benchmarks.summary`: writes the tables of benchmarks/README.md from results/bench-solver-*.json.

With `--check` it writes nothing, and exits with 1 if the tables are not what the results say.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
README = ROOT / "benchmarks" / "README.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


STRUCTURE = ("convolutions", "linear-flow", "plastic")  # workloads with rows of their own, so a table of their own
WRONG = 0.1  # a gradient's relative error from which on it is told


def tables() -> str:
    """Two tables a device, from the result files."""
    found = []
    for path in sorted((ROOT / "results").glob("bench-solver-*.json")):
        data = json.loads(path.read_text())
        versions, device = data["versions"], data.get("device_name", data["device"])
        threads = f"{data['threads']} CPU thread"
        found.append(f"**{device}**, torch {versions['torch']}, {threads} (`results/{path.name}`); milliseconds")
        for structure in (False, True):
            some = {name: it for name, it in data["workloads"].items() if (name in STRUCTURE) == structure}
            found += [_table(some)] if some else []
    return "\n\n".join(found)


def _table(workloads: dict[str, Any]) -> str:
    rows: dict[str, dict[str, str]] = {}
    for workload, found in workloads.items():
        for row in found["rows"]:
            cell = f"{row['seconds'] * 1e3:.1f}"
            if row["gradient_error"] > WRONG:
                cell += f" (gradient off by {row['gradient_error']:.2g})"
            rows.setdefault(f"{row['library']}, {row['label']}", {})[workload] = cell
    lines = ["| | " + " | ".join(workloads) + " |", "|---|" + "---:|" * len(workloads)]
    ours_first = sorted(rows.items(), key=lambda row: not row[0].startswith("ncode"))
    lines += [
        f"| {label} | " + " | ".join(cells.get(name, "") for name in workloads) + " |" for label, cells in ours_first
    ]
    return "\n".join(lines)


def rendered() -> str:
    """The README with the tables as the results say."""
    text = README.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


if __name__ == "__main__":
    if "--check" not in sys.argv[1:]:
        README.write_text(rendered())
    elif README.read_text() != rendered():
        sys.exit("the tables of benchmarks/README.md are not what results/ says: run python -m benchmarks.summary")
