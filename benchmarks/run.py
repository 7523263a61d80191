"""One run of the benchmark: workloads, one after the other, each as a table; then the record."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import torch

from . import workloads
from .contest import Contest, Settings
from .environment import describe
from .measure import Broken, Row, alternate, fastest, inspect
from .report import record, table, verdicts, write


def run(options: Namespace, command: str, path: Path | None) -> int:
    """Run and print; returns the exit status: 1 if a row of ours is broken."""
    settings = Settings(
        options.device, options.repeats, options.seed, not options.no_compile, options.quick, options.peers
    )
    surroundings = describe(options.device, options.threads)
    broken: dict[str, str] = {}
    records = {}
    for name in options.only or workloads.names():
        module = workloads.load(name)
        torch.compiler.reset()
        contest = module.contest(settings)
        rows, failed = _measure(contest, settings)
        print(f"\n## {module.TITLE}\n")
        print(table(rows, options.device))
        notes = [f"skipped {peer}: {why}" for peer, why in contest.skipped.items()]
        notes += [f"FAILED {row}: {why}" for row, why in failed.items()]
        for line in (*verdicts(rows, contest.aims, options.device), *notes):
            print(line)
        sys.stdout.flush()
        records[name] = record(module.TITLE, rows, failed, contest, options.device)
        broken |= {f"{name}, {row}": why for row, why in failed.items() if row.startswith("ncode")}
    if path is not None:
        write(path, {"command": command, "seed": options.seed, **surroundings, "workloads": records})
        print(f"\nwrote {path}")
    for row, why in broken.items():
        print(f"BROKEN {row}: {why}", file=sys.stderr)
    return 1 if broken else 0


def _measure(contest: Contest, settings: Settings) -> tuple[list[Row], dict[str, str]]:
    """Find each entry's fastest variant, then let them take turns."""
    rows: list[Row] = []
    failed: dict[str, str] = {}
    for entry in contest.entries:
        print(f"... {entry.library}, {entry.label}", file=sys.stderr, flush=True)
        try:
            rows.append(fastest(entry, contest, settings.quick))
        except Broken as reasons:
            failed[f"{entry.library}, {entry.label}"] = str(reasons)
    alternate(rows, 1 if settings.quick else settings.repeats)
    for row in rows:
        inspect(row)
    return rows, failed
