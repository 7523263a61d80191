"""One run of the benchmark: workloads, one after the other, each as a table; then the record."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import torch

from . import workloads
from .contest import Contest, Settings
from .environment import describe
from .measure import TURN, Broken, Row, alternate, fastest, inspect
from .report import load, notes, record, table, write


def run(options: Namespace, command: str, path: Path | None) -> int:
    """Run and print; returns the exit status: 1 if a row is broken or disagrees with the reference."""
    settings = Settings(
        device=options.device,
        repeats=options.repeats,
        seed=options.seed,
        compile=not options.no_compile,
        search=not (options.no_search or options.quick),
        quick=options.quick,
        peers=options.peers,
        tf32=not options.no_tf32,
    )
    about = {"command": command, "seed": options.seed, **describe(options.device, options.threads)}
    records = load(path) if path is not None and options.append else {}
    status = 0
    for name in options.only or workloads.names():
        module = workloads.load(name)
        torch.compiler.reset()
        contest = module.contest(settings)
        rows, failed = _measure(contest, settings)
        print(f"\n## {module.TITLE}\n\n{table(rows, contest.columns)}")
        print(*notes(rows, failed, contest, options.device), sep="\n", flush=True)
        records[name] = {"command": command, **record(module.TITLE, rows, failed, contest, options.device)}
        status = 1 if failed else status
        if path is not None:  # after each: a run that is stopped keeps what it has
            write(path, {**about, "workloads": records})
    if path is not None:
        print(f"\nwrote {path}")
    return status


def _measure(contest: Contest, settings: Settings) -> tuple[list[Row], dict[str, str]]:
    """Find each entry's fastest variant, then let them take turns."""
    rows: list[Row] = []
    failed: dict[str, str] = {}
    for entry in contest.entries:
        print(f"... {entry.library}, {entry.label}", file=sys.stderr, flush=True)
        try:
            rows.append(fastest(entry, contest, settings.search))
        except Broken as reasons:
            failed[f"{entry.library}, {entry.label}"] = str(reasons)
    turn = 0.0 if settings.quick else TURN
    alternate(rows, 1 if settings.quick else settings.repeats, turn, contest.patience)
    for row in rows:
        inspect(row)
    return rows, failed
