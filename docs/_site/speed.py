"""The table of speeds on the first page, from the files in results/ that benchmarks write."""

import json
from pathlib import Path
from typing import Any

LIBRARIES = ("torchdiffeq", "torchode", "diffrax")
WORKLOADS = {  # what each measures, in a few words
    "mlp-flow": "512 samples with weights of their own",
    "uneven": "the same, and one sample is difficult",
    "plain-node": "a plain neural ODE",
    "convolutions": "images, with kernels of their own",
    "linear-flow": "a linear flow (ncode: in closed form)",
    "plastic": "a memory with Hebbian weights (ncode, torchdiffeq: one rk4 step)",
}


def table(results: Path) -> str:
    """Milliseconds of a training step by library, each at its fastest: one table per machine."""
    lines = []
    for path in sorted(results.glob("bench-solver-*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        machine = f"{data.get('device_name', data['device'])}, torch {data['versions']['torch']}"
        lines += [f"| {machine} | ncode | {' | '.join(LIBRARIES)} |", "|---|" + "---:|" * (len(LIBRARIES) + 1)]
        measured = data["workloads"]
        lines += [_row(title, measured[name]) for name, title in WORKLOADS.items() if name in measured]
        lines.append("")
    return "\n".join(lines)


def _row(title: str, workload: dict[str, Any]) -> str:
    times = {library: _fastest(workload, library) for library in ("ncode", *LIBRARIES)}
    shown = {library: "–" if time is None else f"{time:.1f}" for library, time in times.items()}
    best = f"{min(time for time in times.values() if time is not None):.1f}"
    cells = [f"**{cell}**" if cell == best else cell for cell in shown.values()]
    return f"| {title} | {' | '.join(cells)} |"


def _fastest(workload: dict[str, Any], library: str) -> float | None:
    """The fastest way to use a library that has a right gradient and the same arithmetic as the others."""
    rows = (row for row in workload["rows"] if row["library"] == library)
    fair = [row["seconds"] * 1e3 for row in rows if (row["gradient_error"] or 0) < 0.1 and "TF32" not in row["label"]]
    return min(fair, default=None)
