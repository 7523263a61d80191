"""Child processes that run the command `ncode`, and how they are interrupted."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from checks import Lost
from ncode_lab.cli import main as ncode_command
from ncode_lab.training import RunFolder, TrialContext

# Imported before the first fork, so that a cycle takes seconds.
PRELOADED = ("safetensors.torch", "lightning_fabric", "matplotlib.figure", "ncode_lab.cli.run", "ncode_lab.cli.report")
PRELOADED += ("matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg")
SECONDS_PER_PROCESS = 600.0  # a process that takes longer hangs
WRITES = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink")


class Fault(NamedTuple):
    """What happens to a process. `at` counts calls that write, or seconds."""

    kind: str = "none"
    at: float = 0.0


class Ending(NamedTuple):
    """How a process ended: its exit status, negative for a signal, and what it printed."""

    status: int
    text: str
    fault: Fault


def preload() -> None:
    """Import what every child needs."""
    for name in PRELOADED:
        import_module(name)


def random_fault(rng: random.Random, seconds: float, calls: int, disks: bool) -> Fault:
    """A fault for a process that takes so many seconds and makes so many calls that write."""
    kinds = ["kill at a call", "kill at a call", "kill after a time", "stop after a time", "failing calls"]
    kind = rng.choice(kinds + ["full disk"] * disks)
    if kind in ("kill at a call", "failing calls"):
        return Fault(kind, rng.randint(1, calls + 2))
    return Fault(kind, rng.uniform(0.0, 1.2 * seconds) if "time" in kind else 0.0)


class Process:
    """A child process with a fault. `place` is a folder for its log, off the disk that it writes to."""

    def __init__(self, call: Callable[[], int | None], out: Path | None, fault: Fault, place: Path, name: str = "0"):
        self._fault, self._log, self._held = fault, place / f"log-{name}", place / "held"
        sys.stdout.flush()
        sys.stderr.flush()
        self._child = os.fork()
        if self._child == 0:
            self._run(call, out, place / f"calls-{name}")

    @classmethod
    def command(cls, arguments: Sequence[str], out: Path | None, fault: Fault, place: Path, name: str = "0") -> Process:
        """The command `ncode`; `out` is where it writes."""
        given = [*arguments, *(["--out", str(out)] if out else [])]
        return cls(lambda: _run_command(given), out, fault, place, name)

    def end(self) -> Ending:
        """Wait for the process, interrupting it on the way, and check how it ends."""
        started, signalled = time.monotonic(), False
        while True:
            done, status = os.waitpid(self._child, os.WNOHANG)
            seconds = time.monotonic() - started
            if done:
                break
            if "after a time" in self._fault.kind and not signalled and seconds >= self._fault.at:
                os.kill(self._child, signal.SIGKILL if self._fault.kind.startswith("kill") else signal.SIGINT)
                signalled = True
            if seconds > SECONDS_PER_PROCESS:
                os.kill(self._child, signal.SIGKILL)
                os.waitpid(self._child, 0)
                raise Lost(f"no end within {SECONDS_PER_PROCESS:.0f} s:\n{self._log.read_text()[-3000:]}")
            time.sleep(0.005)
        ending = Ending(os.waitstatus_to_exitcode(status), self._log.read_text(errors="replace"), self._fault)
        self._check(ending)
        return ending

    def _check(self, ending: Ending) -> None:
        twice = self._held / "twice"
        if twice.exists():
            raise Lost(f"two processes worked in one folder: {twice.read_text()}")
        # Where the loop does not handle Ctrl-C itself, Python shows where it was interrupted.
        interrupted = self._fault.kind == "stop after a time" and "KeyboardInterrupt" in ending.text
        usual = ending.status in (0, 1, 2, 130, -signal.SIGKILL, -signal.SIGINT)
        if not usual or ("Traceback" in ending.text and not interrupted):
            raise Lost(f"{self._fault}: status {ending.status}\n{ending.text[-3000:]}")

    def _run(self, call: Callable[[], int | None], out: Path | None, calls: Path) -> None:
        """Be the child; ends the process."""
        status: Any = 70
        try:
            handle = os.open(self._log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            _watch_holders(self._held)
            counter = _count_calls(out, self._fault)
            status = call() or 0
            calls.write_text(str(counter[0]))
        except SystemExit as error:
            status = error.code
        except KeyboardInterrupt:
            status = 130
        except BaseException as error:
            # A full disk is an error of a call in Python; the command has to explain it.
            status = 1 if os.strerror(errno.ENOSPC) in str(error) else 70
            if status == 70:
                traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status if isinstance(status, int) else 1)


def _run_command(arguments: list[str]) -> int:
    """Run the command `ncode`; whatever it raises would be a traceback on a terminal."""
    try:
        return ncode_command(arguments)
    except Exception:
        traceback.print_exc()
        return 1


def _count_calls(out: Path | None, fault: Fault) -> list[int]:
    """Count the calls that change files below `out`, and let the fault happen at its call."""
    counter, root = [0], str(out)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not _changes_files(event, arguments, root):
            return
        counter[0] += 1
        if fault.kind == "kill at a call" and counter[0] == fault.at:
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.kind == "failing calls" and counter[0] >= fault.at and event in ("open", "os.mkdir"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[0]))

    if out is not None:
        sys.addaudithook(hook)
    return counter


def _changes_files(event: str, arguments: tuple[Any, ...], root: str) -> bool:
    if event not in WRITES:
        return False
    path = os.fsdecode(arguments[0]) if isinstance(arguments[0], (str, bytes, os.PathLike)) else ""
    if event == "open":
        flags = arguments[2] if isinstance(arguments[2], int) else 0
        if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return False
    # Folders are removed by names relative to their parents.
    return path.startswith(root) or (event in ("os.remove", "os.rmdir") and not os.path.isabs(path))


def _watch_holders(held: Path) -> None:
    """Take a second lock, held by the kernel, while a run is held: two holders are noticed whatever the lab does."""
    held.mkdir(exist_ok=True)
    handles: dict[str, int] = {}
    initialise, close = TrialContext.__init__, RunFolder.close

    def begin(self: TrialContext, fabric: Any, folder: Path, *rest: Any, **named: Any) -> None:
        run = str(Path(folder).parent.parent)
        if run not in handles:
            handles[run] = os.open(held / hashlib.sha256(run.encode()).hexdigest(), os.O_CREAT | os.O_RDWR, 0o644)
            try:
                fcntl.flock(handles[run], fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                (held / "twice").write_text(run)
        initialise(self, fabric, folder, *rest, **named)

    def end(self: RunFolder) -> None:
        handle = handles.pop(str(self.path), None)
        if handle is not None:
            os.close(handle)
        close(self)

    TrialContext.__init__, RunFolder.close = begin, end
