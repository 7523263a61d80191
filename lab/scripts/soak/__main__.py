"""Soak test of runs: train small experiments, interrupt them again and again, resume, and check that nothing is lost.

    python lab/scripts/soak --minutes 120 --out out/soak        run for two hours
    python lab/scripts/soak --seed 7 --cycles 1 --out out/soak  repeat one cycle

A cycle prints one line with its seed. It is one of

    run     training, interrupted up to five times, then resumed to the end: metrics and curves must equal those of an
            uninterrupted run, and no result may disappear or change on the way
    race    the same, with several processes that resume one folder at once: at most one may hold it
    sweep   a sweep: its table must equal that of an uninterrupted one
    save    `save_pretrained` over a good folder: afterwards it must hold the old or the new model

An interruption is a kill -9 (after a random time, or just before a random call that writes), Ctrl-C, a full disk (a
small tmpfs where mounting is allowed, and failing calls), or one of these and then a torn file: the file that was
written last ends at a random byte. In between, `ncode report` and `ncode collect` must read what is there. A process
that prints a traceback or never ends is a finding too. The folder of a finding is kept, and OUT/summary.json counts
everything.

    __main__.py    the arguments, and one cycle after the other
    cycles.py      the four kinds of cycle
    checks.py      what must be equal at the end
    process.py     child processes, and how they are interrupted
    disk.py        a disk that can be full, and torn files
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch starts threads, which a fork would lose

from cycles import Soak
from disk import can_mount
from process import preload


def main() -> int:
    """Run cycles until the time is over; the exit status is 1 if there were findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--cycles", type=int, default=sys.maxsize, help="at most this many")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first cycle; the next ones count up")
    parser.add_argument("--out", type=Path, default=Path("out/soak"))
    given = parser.parse_args()
    out = given.out.resolve()
    preload()
    soak = Soak(out, can_mount(out))
    started, seed = time.monotonic(), given.seed
    summary: dict[str, Any] = {}
    print(f"soak of {given.minutes:g} minutes in {out}, full disks by {'tmpfs' if soak.mounts else 'failing calls'}")
    while time.monotonic() - started < 60 * given.minutes and seed - given.seed < given.cycles:
        print(f"[{time.strftime('%H:%M:%S')}] {soak.cycle(seed)}", flush=True)
        summary = {"seconds": round(time.monotonic() - started), "seeds": [given.seed, seed]}
        summary |= {**soak.counts, "findings": soak.findings}
        (out / "summary.json").write_text(json.dumps(summary, indent=1))
        seed += 1
    print(json.dumps(summary, indent=1))
    return bool(soak.findings)


if __name__ == "__main__":
    sys.exit(main())
