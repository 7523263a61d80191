"""The cycles of a soak test: interrupt something, finish it, and compare with what it gives without interruption."""

from __future__ import annotations

import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from checks import Lost, difference, is_unfinished, make_block, results_in, same_block, summarise, table_in
from disk import Disk
from process import Ending, Fault, Process, random_fault

import ncode

EXPERIMENTS: Mapping[str, tuple[str, ...]] = {
    "reflection": ("--steps", "12"),
    "annuli": ("--steps", "8"),
    "vanderpol": ("--steps", "8"),
    "tracking": ("--models", "skew", "lstm", "--steps", "12", "--rival-steps", "12"),
    "memory": ("--episodes", "32", "--rival-episodes", "32"),
}
GRID = ("--grid", "lr=0.01,0.02", "hidden=2,4")
FREE = (8, 1000)  # kibibytes that a full disk has left, from and to
SAVES = 11  # per cycle


class Expected(NamedTuple):
    """What a command gives without interruption, its seconds and its number of calls that write."""

    found: Any
    seconds: float
    calls: int


class Soak:
    """A soak test: its folder, its random numbers, and what has happened so far."""

    def __init__(self, out: Path, mounts: bool):
        self.out, self.mounts = out, mounts
        self.counts: Counter[str] = Counter()
        self.findings: list[dict[str, Any]] = []
        self._rng = random.Random()
        self._place = out
        self._expected: dict[tuple[str, ...], Expected] = {}

    def cycle(self, seed: int) -> str:
        """Run one cycle in a folder of its own, and return its line."""
        self._rng = random.Random(seed)
        self._place = self.out / f"cycle-{seed}"
        shutil.rmtree(self._place, ignore_errors=True)
        self._place.mkdir(parents=True)
        kinds = {"run": self._run, "race": self._race, "sweep": self._sweep, "save": self._save}
        kind = self._rng.choices(list(kinds), (6, 2, 2, 2))[0]
        before, started, outcome = Counter(self.counts), time.monotonic(), "ok"
        disk = Disk(self._place / "disk", self.mounts)
        try:
            kinds[kind](disk)
        except Lost as finding:
            self.findings.append({"seed": seed, "kind": kind, "what": str(finding)})
            outcome = f"FINDING: {finding}"
        disk.close(keep=None if outcome == "ok" else self._place / "kept")
        if outcome == "ok":
            shutil.rmtree(self._place)
        changes = ", ".join(f"{name} {count}" for name, count in (self.counts - before).items())
        self.counts["cycles"] += 1
        return f"seed {seed} {kind}: {changes}; {time.monotonic() - started:.1f} s; {outcome}"

    def _run(self, disk: Disk) -> None:
        command = self._random_command()
        expected = self._without_interruption(command)
        known: dict[Path, bytes] = {}
        for _ in range(self._rng.randint(1, 5)):
            self._interrupt(lambda fault: self._continue(command, disk, fault), disk, expected)
            self._check_kept(known, disk)
            if self._rng.random() < 0.3:
                self._read_everything(disk.path)
            if self._rng.random() < 0.4:
                self.counts["torn files"] += disk.tear(self._rng)
            known |= results_in(disk.path)
        self._finish(command, disk, known, expected)

    def _race(self, disk: Disk) -> None:
        command = self._random_command()
        expected = self._without_interruption(command)
        self._continue(command, disk, Fault("kill at a call", self._rng.randint(1, expected.calls)))
        known = results_in(disk.path)
        for _ in range(self._rng.randint(1, 3)):
            faults = [self._fault(expected, disks=False) for _ in range(self._rng.randint(2, 4))]
            racers = [
                Process.command([*command, "--resume"], disk.path, fault, self._place, str(i))
                for i, fault in enumerate(faults)
            ]
            for racer in racers:
                self._count(racer.end())
            self._check_kept(known, disk)
            known |= results_in(disk.path)
        self._finish(command, disk, known, expected)

    def _sweep(self, disk: Disk) -> None:
        seed = str(self._rng.randint(0, 3))
        command = ["sweep", "reflection", "--smoke", *GRID, "--seed", seed, "--device", "cpu"]
        expected = self._without_interruption(command)
        for _ in range(self._rng.randint(1, 4)):
            self._interrupt(lambda fault: self._command(command, disk.path, fault), disk, expected)
            if self._rng.random() < 0.4:
                self.counts["torn files"] += disk.tear(self._rng)
        ending = None
        for _ in range(4):
            ending = self._command(command, disk.path, Fault())
            if table_in(ending.text, _header()) == expected.found:
                return
            torn = [path for path in disk.torn if path.name in ending.text]
            self.counts["advice followed"] += disk.follow_advice(torn)
        raise Lost(f"the sweep ended as {ending}, instead of with\n{expected.found}")

    def _save(self, disk: Disk) -> None:
        models = [make_block(self._rng.randint(0, 9), 2 ** self._rng.randint(0, 12)) for _ in range(SAVES + 1)]
        folder, now = disk.path / "model", models[0]
        now.save_pretrained(folder)
        for new in models[1:]:
            fault = self._fault(Expected(None, 0.02, 6))
            if fault.kind == "full disk":
                disk.leave(self._rng.randint(4, 80))
            self._count(Process(lambda new=new: new.save_pretrained(folder), disk.path, fault, self._place).end())
            disk.grow()
            try:
                loaded = ncode.NCODE.from_pretrained(folder)
            except Exception as error:
                raise Lost(f"{fault}: the folder cannot be loaded: {error}") from error
            matches = [model for model in (now, new) if same_block(model, loaded)]
            if not matches:
                raise Lost(f"{fault}: the folder holds neither the old nor the new model")
            now = matches[0]

    def _random_command(self) -> list[str]:
        name, seed = self._rng.choice(list(EXPERIMENTS)), str(self._rng.randint(0, 2))
        return ["run", name, "--smoke", *EXPERIMENTS[name], "--seed", seed, "--device", "cpu", "--quiet"]

    def _fault(self, expected: Expected, disks: bool = True) -> Fault:
        return random_fault(self._rng, expected.seconds, expected.calls, disks and self.mounts)

    def _interrupt(self, start: Callable[[Fault], Any], disk: Disk, expected: Expected) -> None:
        fault = self._fault(expected)
        if fault.kind == "full disk":
            disk.leave(self._rng.randint(*FREE))
        start(fault)
        disk.grow()

    def _without_interruption(self, command: Sequence[str]) -> Expected:
        if tuple(command) not in self._expected:
            out, started = self._place / "expected", time.monotonic()
            out.mkdir()
            ending = self._command(command, out, Fault())
            if ending.status:
                raise Lost(f"without interruption: {ending}")
            found = table_in(ending.text, _header()) if command[0] == "sweep" else summarise(out)
            calls = int((self._place / "calls-0").read_text())
            self._expected[tuple(command)] = Expected(found, time.monotonic() - started, calls)
            shutil.rmtree(out)
        return self._expected[tuple(command)]

    def _command(self, command: Sequence[str], out: Path | None, fault: Fault) -> Ending:
        ending = Process.command(command, out, fault, self._place).end()
        self._count(ending)
        return ending

    def _count(self, ending: Ending) -> None:
        if ending.status == -signal.SIGKILL:
            self.counts["kills"] += 1
        elif ending.fault.kind in ("failing calls", "full disk") and ending.status:
            self.counts["full disks"] += 1
        elif ending.fault.kind == "stop after a time" and ending.status:
            self.counts["stops"] += 1

    def _continue(self, command: Sequence[str], disk: Disk, fault: Fault) -> None:
        """Resume the run, or start it if it has not begun."""
        records = list(disk.path.glob("*/run.json"))
        begun = any(map(is_unfinished, records))
        if begun or not records:
            save_every = ["--save-every", str(self._rng.randint(1, 3))]
            self._command([*command, *save_every, *(["--resume"] if begun else [])], disk.path, fault)

    def _finish(self, command: Sequence[str], disk: Disk, known: Mapping[Path, bytes], expected: Expected) -> None:
        """Resume without interruption, following the advice for torn files, and compare."""
        for _ in range(6):
            records = list(disk.path.glob("*/run.json"))
            if records and not any(map(is_unfinished, records)):
                break
            ending = self._command([*command, *(["--resume"] if records else [])], disk.path, Fault())
            if not ending.status:  # it may name a torn file that it has already put aside and made again
                continue
            torn = [path for path in disk.torn if str(path) in ending.text]
            if not torn:
                raise Lost(f"the run cannot be resumed:\n{ending.text}")
            self.counts["advice followed"] += disk.follow_advice(torn)
        else:
            raise Lost("the run does not finish")
        self._check_kept(known, disk)
        found = summarise(disk.path)
        if found != expected.found:
            raise Lost(f"the resumed run differs from an uninterrupted one: {difference(found, expected.found)}")

    def _check_kept(self, known: Mapping[Path, bytes], disk: Disk) -> None:
        for path, content in known.items():
            if path not in disk.torn and (not path.is_file() or path.read_bytes() != content):
                raise Lost(f"a finished result disappeared or changed: {path}")

    def _read_everything(self, runs: Path) -> None:
        for name, out in (("report", "report.html"), ("collect", "collected")):
            self._command([name, str(runs), "--out", str(self._place / out)], None, Fault())
            self.counts["reads"] += 1


def _header() -> str:
    return GRID[1].partition("=")[0]
