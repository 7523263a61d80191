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


def tables() -> str:
    """One table a device, from the result files."""
    paths = sorted((ROOT / "results").glob("bench-solver-*.json"))
    return "\n\n".join(_device(json.loads(path.read_text()), path.name) for path in paths)


def _device(data: dict[str, Any], name: str) -> str:
    versions = data["versions"]
    name_of = data.get("device_name", data["device"])
    lines = [
        f"**{name_of}**, torch {versions['torch']}, {data['threads']} CPU thread (`results/{name}`); milliseconds",
        "",
        "| | " + " | ".join(data["workloads"]) + " |",
        "|---|" + "---:|" * len(data["workloads"]),
    ]
    rows: dict[str, dict[str, str]] = {}
    for workload, found in data["workloads"].items():
        for row in found["rows"]:
            label = f"{row['library']}, {row['label']}"
            rows.setdefault(label, {})[workload] = f"{row['seconds'] * 1e3:.1f}"
    for label, cells in rows.items():
        lines.append(f"| {label} | " + " | ".join(cells.get(workload, "") for workload in data["workloads"]) + " |")
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
