"""Timing the candidate formulations of one piece of work, on any device: what the probe_* scripts have in common.

A probe prints a table and writes JSON; its numbers are what the defaults of `ncode` are chosen by. Run one as

    PYTHONPATH=src python -m benchmarks.probe_convolution --device cuda --out probe_convolution.json
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .environment import describe
from .memory import peak_bytes

Run = Callable[[], Sequence[Tensor]]  # one forward and backward pass: the output, then the gradients


def arguments(description: str) -> argparse.Namespace:
    """What every probe can be told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="on a CPU")
    parser.add_argument("--out", type=Path, default=None, help="where to write JSON")
    parser.add_argument("--quick", action="store_true", help="small sizes, few repeats: only to see that it runs")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    return options


def seconds(run: Callable[[], Any], device: str, budget: float) -> float:
    """Median seconds of a call, after three calls to warm up, with as many repeats as the budget of seconds allows."""
    synchronise = torch.cuda.synchronize if device == "cuda" else lambda: None
    for _ in range(3):
        run()
    synchronise()
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 3 or (time.perf_counter() - start < budget and len(times) < 200):
        begin = time.perf_counter()
        run()
        synchronise()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def graphed(run: Run, budget: float) -> float:
    """Seconds of the same work as one CUDA graph: what is left when launching costs nothing."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()
    found = seconds(graph.replay, "cuda", budget)
    del kept
    return found


def errors(got: Sequence[Tensor], expected: Sequence[Tensor]) -> list[float]:
    """The relative error of each tensor, as norms."""
    return [
        float((a.detach().double() - b.double()).norm() / b.double().norm().clamp_min(1e-300))
        for a, b in zip(got, expected, strict=True)
    ]


def probe(
    name: str,
    forward: Callable[[], Any],
    run: Run,
    reference: Sequence[Tensor] | None,
    options: argparse.Namespace,
    *,
    capture: bool = True,
    **facts: Any,
) -> dict[str, Any]:
    """Measure one candidate. One that fails is reported with its reason."""
    budget = getattr(options, "budget", 0.2 if options.quick else 2.0)
    row: dict[str, Any] = {"name": name, **facts}
    try:
        with torch.no_grad():
            row["forward_ms"] = 1e3 * seconds(forward, options.device, budget)
        row["both_ms"] = 1e3 * seconds(run, options.device, budget)
        row["peak_mib"] = peak_bytes(run, options.device) / 2**20
        if reference is not None:
            row["errors"] = errors(run(), reference)
    except Exception as error:  # one candidate's failure is a result, and no reason to lose the others'
        row["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if options.device == "cuda" and capture and "failed" not in row:
        try:
            row["graphed_ms"] = 1e3 * graphed(run, budget)
        except Exception as error:
            row["graphed_failed"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            torch.cuda.synchronize()
    gc.collect()
    if options.device == "cuda":
        torch.cuda.empty_cache()
    print(line(row), flush=True)
    return row


def line(row: dict[str, Any]) -> str:
    """One row of the table."""
    if "failed" in row:
        return f"{row['name']:<44} {row['failed']}"
    graph = f"{row['graphed_ms']:9.3f}" if "graphed_ms" in row else "        -"
    off = " ".join(f"{error:.0e}" for error in row.get("errors", []))
    return f"{row['name']:<44} {row['forward_ms']:9.3f} {row['both_ms']:9.3f} {graph} {row['peak_mib']:9.1f}  {off}"


def headline(title: str) -> None:
    """Above the rows of one size."""
    print(f"\n{title}\n{'':<44} {'forward':>9} {'both':>9} {'graphed':>9} {'peak MiB':>9}  errors", flush=True)


def write(rows: Iterable[dict[str, Any]], options: argparse.Namespace) -> None:
    """The rows and the machine as JSON, where asked for."""
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        machine = describe(options.device, options.threads)
        options.out.write_text(json.dumps({"machine": machine, "rows": list(rows)}, indent=1))
