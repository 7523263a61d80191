"""Damaged and hostile run folders: every command is right, or says a sentence."""

from __future__ import annotations

import contextlib
import json
import os
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .command import Slow, ncode
from .mutations import HOSTILE, changed_json, edited, edits, json_changes, remove

few = settings(
    max_examples=3 if settings().derandomize else max(settings().max_examples // 10, 1),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
TRAIN = ("run", "reflection", "--smoke", "--models", "node", "--save-every", "1", "--quiet", "--device", "cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a finished run, and its metrics."""
    out = tmp_path_factory.mktemp("trained")
    assert ncode(*TRAIN, "--out", out)[0] == 0
    (run,) = out.iterdir()
    (result,) = run.glob("trials/*/result.json")
    return run, json.loads(result.read_text())["metrics"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("place")


def copy_of(trained, place, finished: bool):
    """A copy of the run in an empty folder; unfinished, it ends before its result."""
    run, metrics = trained
    for old in place.iterdir():
        if old.is_dir():
            _unlock(old)
        remove(old)
    copy = place / "runs" / run.name
    shutil.copytree(run, copy)
    if not finished:
        record = json.loads((copy / "run.json").read_text())
        (copy / "run.json").write_text(json.dumps({**record, "finished": None}))
        (result,) = copy.glob("trials/*/result.json")
        result.unlink()
    return copy, metrics


def _unlock(folder):
    for path in [folder, *folder.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755)


def names_of(copy) -> list[str]:
    files = sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file())
    assert {"run.json", "summary.md"} <= set(files)
    return files


def read_all(place) -> None:
    """Commands that read run folders."""
    runs = place / "runs"
    ncode("report", runs, "--out", place / "report.html")
    ncode("collect", runs, "--out", place / "collected")
    outside = {path.name for path in place.iterdir()} - {"runs", "report.html", "collected"}
    assert not outside, f"written outside of its folder: {outside}"


def resume(place, copy, metrics, *, same: bool) -> None:
    """Resume the run: its metrics are those of the run before, or a sentence says why not."""
    status, _ = ncode(*TRAIN, "--out", place / "runs", "--resume")
    if status == 0 and same:
        (result,) = copy.glob("trials/*/result.json")
        assert json.loads(result.read_text())["metrics"] == metrics


@few
@given(number=st.integers(0, 100), changes=edits)
def test_readers_survive_damaged_files(trained, place, number, changes):
    copy, _ = copy_of(trained, place, finished=True)
    names = names_of(copy)
    file = copy / names[number % len(names)]
    file.write_bytes(edited(file.read_bytes(), changes))
    read_all(place)


@few
@given(name=st.sampled_from(["run.json", "result.json"]), changes=json_changes())
def test_readers_survive_odd_values(trained, place, name, changes):
    copy, _ = copy_of(trained, place, finished=True)
    (file,) = copy.rglob(name)
    file.write_text(changed_json(file.read_text(), changes))
    read_all(place)


@few
@given(number=st.integers(0, 100), changes=edits)
def test_a_run_with_a_damaged_file_resumes_or_says_why_not(trained, place, number, changes):
    copy, metrics = copy_of(trained, place, finished=False)
    names = [name for name in names_of(copy) if not name.startswith("figures")]
    file = copy / names[number % len(names)]
    file.write_bytes(edited(file.read_bytes(), changes))
    try:
        resume(place, copy, metrics, same=file.name != "run.json")
    except Slow:
        assert file.name == "run.json"  # the settings may ask for more work now


@few
@given(changes=json_changes())
def test_a_run_with_odd_values_in_its_record_resumes_or_says_why_not(trained, place, changes):
    copy, metrics = copy_of(trained, place, finished=False)
    file = copy / "run.json"
    file.write_text(changed_json(file.read_text(), changes))
    with contextlib.suppress(Slow):  # the settings may ask for more work now
        resume(place, copy, metrics, same=False)


@few
@given(number=st.integers(0, 100), kind=st.sampled_from(sorted(HOSTILE)), finished=st.booleans())
def test_hostile_folders_are_survived(trained, place, number, kind, finished):
    if kind == "unreadable" and os.geteuid() == 0:
        return  # root reads it anyway
    copy, metrics = copy_of(trained, place, finished=finished)
    things = sorted(str(path.relative_to(copy)) for path in copy.rglob("*"))
    HOSTILE[kind](copy / things[number % len(things)])
    read_all(place)
    if not finished:
        resume(place, copy, metrics, same=False)
