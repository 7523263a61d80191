import multiprocessing
import os
import random
import signal
import time

import pytest
from ncode_lab.training.lock import FolderLock, is_locked

PROCESSES, TURNS = 6, 150


def take_turns(folder, seed, counts):
    """Acquire and release, like 6 processes that resume, fail and resume again; write down overlaps."""
    draw = random.Random(seed)
    holder, turns, overlaps = folder / "holder", 0, 0
    for _ in range(TURNS):
        is_locked(folder)
        lock = FolderLock.acquire(folder)
        if lock is None:
            continue
        turns += 1
        try:
            os.close(os.open(holder, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            overlaps += 1
        time.sleep(draw.random() * 1e-4)
        holder.unlink(missing_ok=True)
        lock.release()
    counts.put((turns, overlaps))


def test_six_processes_never_hold_the_lock_at_the_same_time(tmp_path):
    context = multiprocessing.get_context("fork")
    counts = context.Queue()
    processes = [context.Process(target=take_turns, args=(tmp_path, seed, counts)) for seed in range(PROCESSES)]
    for process in processes:
        process.start()
    found = [counts.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    assert sum(turns for turns, _ in found) > PROCESSES
    assert sum(overlaps for _, overlaps in found) == 0
    assert not is_locked(tmp_path)


def hold_forever(folder, ready):
    FolderLock.acquire(folder)
    ready.set()
    signal.pause()


def test_the_lock_ends_with_a_killed_process(tmp_path):
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=hold_forever, args=(tmp_path, ready))
    process.start()
    assert ready.wait(60)
    assert is_locked(tmp_path)
    assert FolderLock.acquire(tmp_path) is None
    process.kill()
    process.join()
    assert not is_locked(tmp_path)
    assert FolderLock.acquire(tmp_path) is not None


def test_the_file_of_the_lock_stays_and_release_may_be_called_twice(tmp_path):
    lock = FolderLock.acquire(tmp_path)
    inode = (tmp_path / ".lock").stat().st_ino
    lock.release()
    lock.release()
    assert (tmp_path / ".lock").stat().st_ino == inode
    again = FolderLock.acquire(tmp_path)
    assert again is not None
    lock.release()
    assert is_locked(tmp_path)


def test_asking_creates_no_file_and_does_not_lock(tmp_path):
    assert not is_locked(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", ["ENOLCK", "EOPNOTSUPP"])
def test_a_file_system_without_locks_is_no_obstacle(tmp_path, monkeypatch, error):
    import errno
    import fcntl

    def refuse(*_):
        raise OSError(getattr(errno, error), "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert FolderLock.acquire(tmp_path) is not None
    assert not is_locked(tmp_path)
