"""`python -m benchmarks.summary`: write the tables of benchmarks/README.md from the files in results/.

With `--check`, write nothing and exit with 1 if the tables differ from the results.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import workloads
from .aims import verdict
from .contest import Aim

ROOT = Path(__file__).parents[1]
README = ROOT / "benchmarks" / "README.md"
STRUCTURE = ("convolutions", "linear-flow", "plastic")  # shown in a table of their own
EPOCH = "cifar-epoch"
WRONG = 0.1  # relative error of a gradient above which the table shows it
EPOCH_COLUMNS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "ms per step": lambda row: f"{row['seconds'] * 1e3:.1f}",
    "relative to the paper's way": lambda row: _number(row["more"].get("/ paper"), ".3f"),
    "s per epoch": lambda row: _number(row["more"].get("epoch, s"), ".1f"),
    "MiB, batch 512": lambda row: _number(row["peak_bytes"], ".0f", 2**-20),
    "NFE": lambda row: _number((row["nfe"] or {}).get("forward"), ".1f"),
    "NFE backward": lambda row: _number((row["nfe"] or {}).get("backward"), ".1f"),
    "loss": lambda row: f"{row['loss']:.4f}",
}
# By result file: what was measured, the aim, and how to read the value from the file.
CODING: dict[str, dict[str, tuple[str, Callable[[Mapping[str, Any]], str]]]] = {
    "fid-cifar10.json": {
        "FID of CIFAR-10's training images to its test images": (
            "3.15, as published",
            lambda data: f"{data['train to test']:.4f}, {sum(data['seconds'].values()):.0f} s",
        ),
    },
    "mixture-cuda.json": {
        f"1,000 components, 10,000 codes of 128 dimensions, {case}": (
            "60 s",
            lambda data, case=case: f"{_fit(data, 1000, case)['seconds']:.1f} s",
        )
        for case in ("until it converges", "100 iterations")
    },
    "autoencoder-cuda.json": {
        "50 epochs of AutoN-CODE, CIFAR-10": ("5 min", lambda data: f"{data['models'][0]['min, 50 epochs']:.1f} min"),
        "the latent flow, part of a step": ("0.1", lambda data: f"{data['models'][0]['part of the step']:.3f}"),
    },
}


def found() -> list[dict[str, Any]]:
    """The result files, each with its path and a name for its device."""
    files = sorted((ROOT / "results").glob("bench-solver-*.json"))
    results = [{"path": path, **json.loads(path.read_text())} for path in files]
    return [{**data, "name": data.get("device_name", data["device"])} for data in results]


def tables() -> str:
    """Two tables per device, from the result files."""
    parts = []
    for data in found():
        parts.append(f"{_machine(data)}; milliseconds")
        for structure in (False, True):
            some = {
                name: it for name, it in data["workloads"].items() if name != EPOCH and (name in STRUCTURE) == structure
            }
            parts += [_table(some)] if some else []
    return "\n\n".join(parts)


def epochs() -> str:
    """One table of the whole classifier per device."""
    parts = []
    for data in found():
        measured = data["workloads"].get(EPOCH)
        if measured is None:
            parts.append(f"{_machine(data)}: not measured")
            continue
        about = measured["about"]
        size = " x ".join(map(str, about["image"]))
        sizes = f"batch {about['batch']}, {size}, {'TF32' if about['tf32'] else 'float32'}"
        parts += [f"{_machine(data)}; {sizes}", _epoch_table(measured["rows"])]
        parts += [f"Refused: {row} ({why})" for row, why in measured["failed"].items()]
    return "\n\n".join(parts)


def aims() -> str:
    """All aims of the workloads, and whether they were reached."""
    results = found()
    devices = [data["device"] for data in results]
    lines = [
        f"| workload | our fastest | relative to the fastest of | {' | '.join(data['name'] for data in results)} |",
        "|---|---|---|" + "---|" * len(results),
    ]
    for workload in workloads.names():
        stated: tuple[Aim, ...] = getattr(workloads.load(workload), "AIMS", ())
        for kind in dict.fromkeys((aim.ours, aim.peer, aim.row, aim.apart) for aim in stated):
            ours, peer, row, apart = kind
            by_device = {aim.device: aim for aim in stated if (aim.ours, aim.peer, aim.row, aim.apart) == kind}
            cells = [
                verdict(by_device[device], data["workloads"].get(workload)) if device in by_device else "–"
                for device, data in zip(devices, results, strict=True)
            ]
            names = [", ".join(filter(None, some)) for some in ((ours or "all", apart), (peer, row, apart))]
            lines.append(f"| {workload} | " + " | ".join((*names, *cells)) + " |")
    return "\n".join(lines)


def coding() -> str:
    """Measurements of parts that the autoencoder experiments use, with their aims."""
    lines = ["| | aim | measured | command |", "|---|---|---|---|"]
    for name, rows in CODING.items():
        path = ROOT / "lab" / "results" / name
        data = json.loads(path.read_text()) if path.is_file() else None
        for what, (aim, read) in rows.items():
            shown = f"{read(data)} ({data['environment']['device_name']})" if data else "not measured"
            # Older files name the module from before the move to benchmarks/lab.
            command = f"`{re.sub('benchmarks[.](?!lab)', 'benchmarks.lab.', data['command'])}`" if data else "–"
            lines.append(f"| {what} | {aim} | {shown} | {command} |")
    return "\n".join(lines)


def grids() -> str:
    """Ratios to diffrax over batches, widths and tolerances, one table per device."""
    parts = []
    for path in sorted((ROOT / "results").glob("bench-grid-*.json")):
        data = json.loads(path.read_text())
        machine = _machine({**data, "path": path, "name": data.get("device_name", data["device"])})
        parts += [f"{machine}; time over diffrax's", _grid_table(data["cells"])]
        for flow, it in data["summary"].items():
            parts.append(f"{flow}: mean {it['geometric_mean']:.2f}, worst {it['worst']:.2f}, of {it['cells']} cells.")
    return "\n\n".join(parts) or "Not measured."


def _grid_table(cells: list[dict[str, Any]]) -> str:
    batches = sorted({cell["batch"] for cell in cells})
    rows: dict[tuple[str, int, float], dict[int, str]] = {}
    for cell in cells:
        shown = f"{cell['ratio']:.2f}" + ("*" if cell.get("left_out") else "")
        rows.setdefault((cell["flow"], cell["width"], cell["tolerance"]), {})[cell["batch"]] = shown
    head = " | ".join(f"batch {batch:,}" for batch in batches)
    lines = [f"| flow | units | rtol = atol | {head} |", "|---|---:|---:|" + "---:|" * len(batches)]
    for (flow, width, tolerance), row in rows.items():
        lines.append(f"| {flow} | {width} | {tolerance:g} | {' | '.join(row.get(it, '') for it in batches)} |")
    return "\n".join(lines)


def eager() -> str:
    """Eager training steps relative to torchdiffeq's."""
    path = ROOT / "results" / "bench-eager-cpu.json"
    data = json.loads(path.read_text())
    problems = {f"{it['problem']}, atol {it['atol']:g}": it["rows"] for it in data["problems"]}
    rows: dict[str, list[str]] = {}
    for row in (row for some in problems.values() for row in some):
        rows.setdefault(row["entry"], []).append(f"{row['ratio']:.2f}")
    lines = [f"| | {' | '.join(problems)} |", "|---|" + "---:|" * len(problems)]
    lines += [f"| {entry} | {' | '.join(cells)} |" for entry, cells in rows.items() if set(cells) != {"1.00"}]
    return "\n\n".join([_machine({**data, "path": path, "name": data["device_name"]}), "\n".join(lines)])


def flows() -> str:
    """Training steps of a normalising flow by entry, and how many times faster our compiled one is than each peer."""
    path = ROOT / "results" / "bench-cnf-cpu.json"
    data = json.loads(path.read_text())
    entries = [row["entry"] for row in data["problems"][0]["rows"]]
    peers = list(data["problems"][0]["rows"][0]["times_faster"])
    lines = [
        f"| field, steps of training | {' | '.join(entries)} | {' | '.join(f'over {peer}' for peer in peers)} |",
        "|---|" + "---:|" * (len(entries) + len(peers)),
    ]
    for problem in data["problems"]:
        rows = {row["entry"]: row for row in problem["rows"]}
        cells = [f"{rows[entry]['seconds'] * 1e3:.1f}" for entry in entries]
        cells += [f"{rows['ncode compiled']['times_faster'][peer]:.2f}" for peer in peers]
        lines.append(f"| {problem['field']}, {problem['trained_steps']} | {' | '.join(cells)} |")
    return "\n\n".join([_machine({**data, "path": path, "name": data["device_name"]}), "\n".join(lines)])


def events() -> str:
    """Solves with events, next to other ways to find them."""
    path = ROOT / "results" / "bench-events-cpu.json"
    data = json.loads(path.read_text())
    lines = ["| | forward | with gradient | error of times | of gradients | first step, s |", "|---|" + "---:|" * 5]
    for name, row in data["rows"].items():
        solved = row.get("solved_balls", data["balls"])
        label = name if solved == data["balls"] else f"{name} ({solved} balls, scaled)"
        errors = [_number(row.get(f"error_of_{kind}"), ".0e") for kind in ("times", "gradients")]
        cells = [*(f"{row[part] * 1e3:,.0f}" for part in ("forward", "step")), *errors, f"{row['first_seconds']:.1f}"]
        lines.append(f"| {label} | {' | '.join(cells)} |")
    ratios = [f"{ratio:.2f} of the time of `{name}`" for name, ratio in data["ratios"].items()]
    shown = f"A step of `ncode` takes {', and '.join(ratios)}."
    return "\n\n".join([_machine({**data, "path": path, "name": data["device_name"]}), "\n".join(lines), shown])


BLOCKS = {
    **{"measured": tables, "grid": grids, "eager": eager, "epoch": epochs},
    **{"events": events, "flows": flows, "aims": aims, "coding": coding},
}


def _fit(data: Mapping[str, Any], components: int, case: str) -> Mapping[str, Any]:
    (fit,) = (each for each in data["fits"] if (each["components"], each["case"]) == (components, case))
    return fit


def _machine(data: Mapping[str, Any]) -> str:
    threads = f"{data['threads']} CPU thread"
    return f"**{data['name']}**, torch {data['versions']['torch']}, {threads} (`results/{data['path'].name}`)"


def _number(value: float | None, form: str, unit: float = 1.0) -> str:
    return "" if value is None else format(value * unit, form)


def _epoch_table(rows: list[dict[str, Any]]) -> str:
    cells = {name: [show(row) for row in rows] for name, show in EPOCH_COLUMNS.items()}
    shown = {name: column for name, column in cells.items() if any(column)}
    lines = ["| | " + " | ".join(shown) + " |", "|---|" + "---:|" * len(shown)]
    for i, row in enumerate(rows):
        lines.append(
            f"| {row['library']}, {row['label']} | " + " | ".join(column[i] for column in shown.values()) + " |"
        )
    return "\n".join(lines)


def _table(some: dict[str, Any]) -> str:
    rows: dict[str, dict[str, str]] = {}
    for workload, measured in some.items():
        for row in measured["rows"]:
            cell = f"{row['seconds'] * 1e3:.1f}"
            if row["gradient_error"] > WRONG:
                cell += f" (gradient off by {row['gradient_error']:.2g})"
            rows.setdefault(f"{row['library']}, {row['label']}", {})[workload] = cell
    lines = ["| | " + " | ".join(some) + " |", "|---|" + "---:|" * len(some)]
    ours_first = sorted(rows.items(), key=lambda row: not row[0].startswith("ncode"))
    lines += [f"| {label} | " + " | ".join(cells.get(name, "") for name in some) + " |" for label, cells in ours_first]
    return "\n".join(lines)


def rendered() -> str:
    """The README with tables made from the results."""
    text = README.read_text()
    for name, block in BLOCKS.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, after = text.split(begin)[0], text.split(end)[1]
        text = f"{before}{begin}\n\n{block()}\n\n{end}{after}"
    return text


if __name__ == "__main__":
    if "--check" not in sys.argv[1:]:
        README.write_text(rendered())
    elif README.read_text() != rendered():
        sys.exit("the tables of benchmarks/README.md differ from results/: run python -m benchmarks.summary")
