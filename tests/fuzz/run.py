"""Fuzz for a number of calls or minutes: `make fuzz SEED=1 CALLS=100000` or `make fuzz MINUTES=60`.

Each round is a run of pytest with a seed of its own, which counts up. A failure is minimised by Hypothesis; the command
printed with it repeats that round. Prints when a round begins and how it ended, and the sum at the end.
"""

from __future__ import annotations

import argparse
import itertools
import re
import shlex
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests/fuzz", "lab/tests/fuzz")


def run_round(seed: int, profile: str, arguments: list[str]) -> tuple[int, int, str]:
    """Run pytest with a seed. Returns the seed, the number of calls, and what a failed round printed."""
    print(f"seed {seed}: begun", flush=True)
    tests = [] if any(not each.startswith("-") for each in arguments) else FOLDERS
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, *arguments]
    command += [f"--hypothesis-profile={profile}", f"--hypothesis-seed={seed}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    calls = sum(map(int, re.findall(r"^fuzzed calls: (\d+)$", done.stdout, re.MULTILINE)))
    said = f"repeat with: {shlex.join(command)}\n{done.stdout}{done.stderr}" if done.returncode else ""
    return seed, calls, said


def main() -> int:
    """Run rounds until enough calls were made, or the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--calls", type=int, default=10_000, help="stop after this many calls")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this time")
    parser.add_argument("--workers", type=int, default=1, help="rounds at the same time")
    parser.add_argument("--short", action="store_true", help="rounds of a minute or so instead of ten")
    parser.add_argument("arguments", nargs="*", help="further arguments for pytest, after --")
    given = parser.parse_args()
    started, calls, rounds, failed = time.monotonic(), 0, 0, 0
    seeds, profile = itertools.count(given.seed), "fuzz-short" if given.short else "fuzz"
    with ThreadPoolExecutor(given.workers) as pool:
        pending = {pool.submit(run_round, next(seeds), profile, given.arguments) for _ in range(given.workers)}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for seed, made, said in (each.result() for each in done):
                calls, rounds, failed = calls + made, rounds + 1, failed + bool(said)
                minutes = (time.monotonic() - started) / 60
                outcome = f"FAILED: {said}" if said else "ok"
                print(f"seed {seed}: {made} calls, {calls} in all, {minutes:.1f} min, {outcome}", flush=True)
                if made and calls < given.calls and minutes < given.minutes:
                    pending.add(pool.submit(run_round, next(seeds), profile, given.arguments))
    minutes = (time.monotonic() - started) / 60
    print(f"{calls} calls in {minutes:.1f} min, {failed} of {rounds} rounds failed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
