"""The ratio to diffrax over settings: tolerances, batches and hidden widths of three flows.

    python -m benchmarks.grid --device cuda --json results/bench-grid-cuda.json
    python -m benchmarks.grid --flows mlp-flow --batches 64 --widths 8 --tolerances 1e-3    # one cell

A cell is a training step, forward and backward, with compile=True, over the faster of diffrax's two gradients; all take
turns in one process. A gradient of diffrax whose relative error is above 0.5 is left out of its cell. The table ends
with the geometric mean of the ratios and the worst one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import shlex
import sys
from pathlib import Path
from typing import Any

from .environment import describe, prepare

FLOWS = ("mlp-flow", "plain-node", "closed-loop")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--flows", nargs="*", default=list(FLOWS), choices=FLOWS)
    parser.add_argument("--batches", nargs="*", type=int, default=[64, 512, 4096])
    parser.add_argument("--widths", nargs="*", type=int, default=[8, 16, 64])
    parser.add_argument("--tolerances", nargs="*", type=float, default=[1e-3, 1e-5], help="both rtol and atol")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-search", action="store_true", help="each row's first formulation, not its fastest")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    prepare(arguments.device, 1)
    cells = []
    for cell in itertools.product(arguments.flows, arguments.tolerances, arguments.batches, arguments.widths):
        found = measure(arguments, *cell)
        if found is not None:
            cells.append(found)
            print(json.dumps(found), flush=True)
            write(arguments, cells)
    for flow, summary in summaries(cells).items():
        print(flow, json.dumps(summary))


def write(arguments: argparse.Namespace, cells: list[dict[str, Any]]) -> None:
    """The result file, after each cell, so that a run that is cut short leaves what it has."""
    if arguments.json is None:
        return
    command = ("python -m benchmarks.grid " + shlex.join(sys.argv[1:])).strip()
    head = {"command": command, "seed": arguments.seed, **describe(arguments.device, 1)}
    result = {**head, "cells": cells, "summary": summaries(cells)}
    arguments.json.write_text(json.dumps(result, indent=1) + "\n")


def measure(
    arguments: argparse.Namespace, name: str, tolerance: float, batch: int, width: int
) -> dict[str, Any] | None:
    """Milliseconds of a cell; None where the flow has no such width."""
    from .contest import Contest, Settings
    from .flow import reference
    from .libraries import diffrax, ours
    from .measure import Broken, alternate, fastest

    flow = make_flow(name, batch, width, arguments.seed, tolerance)
    if flow is None:
        return None
    settings = Settings(device=arguments.device, repeats=arguments.repeats, seed=arguments.seed)
    entries = [*ours.entries(flow, settings), *diffrax.entries(flow, settings)]
    # At these tolerances libraries differ by what they allow; the benchmark compares their time alone.
    contest = Contest(entries, reference(flow), (), {}, loss_tolerance=0.1, gradient_tolerance=0.5)
    rows, left_out = [], {}
    for entry in entries:
        try:
            rows.append(fastest(entry, contest, search=not arguments.no_search))
        except Broken as reasons:
            left_out[f"{entry.library}, {entry.label}"] = str(reasons)
    alternate(rows, arguments.repeats)
    times = {row.name: 1e3 * row.seconds for row in rows}
    own = times["ncode, compiled"]
    peer = min(value for key, value in times.items() if key.startswith("diffrax"))
    cell = {"flow": name, "tolerance": tolerance, "batch": batch, "width": width}
    first = {row.name: row.first for row in rows}
    return {**cell, "ratio": own / peer, "ms": times, "first_s": first, "left_out": left_out}


def make_flow(name: str, batch: int, width: int, seed: int, tolerance: float) -> Any:
    """The flow of a cell."""
    from .flow import Flow
    from .workloads import closed_loop, mlp_flow, plain_node

    more: dict[str, Any] = {"rtol": tolerance, "atol": tolerance, "generic": ("compiled",)}
    if name == "plain-node":
        return plain_node.flow(batch, seed, width, **more)
    if name == "closed-loop":  # the width of the feedback: that of the field is limited by the state of a kernel
        return closed_loop.flow(batch, seed, driver=width, **more)
    x0, theta = mlp_flow.draw(batch, seed, width)
    jax_fields = dict(itertools.islice(mlp_flow.JAX.items(), 2))
    return Flow(x0, theta, {"baddbmm": mlp_flow.baddbmm}, jax_fields, **more)


def summaries(cells: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The geometric mean and the largest ratio of each flow."""
    found = {}
    for name in dict.fromkeys(cell["flow"] for cell in cells):
        ratios = [cell["ratio"] for cell in cells if cell["flow"] == name]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        found[name] = {"geometric_mean": mean, "worst": max(ratios), "cells": len(ratios)}
    return found


if __name__ == "__main__":
    main()
