"""Damaged journals of sweeps: the sweep resumes, and a torn end never changes a value."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ncode_lab.experiments import sweep

from .command import ncode
from .mutations import edited, edits

quiet = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
COMMAND = ("sweep", "reflection", "--smoke", "--grid", "lr=0.01,0.02", "hidden=4,8", "--device", "cpu")


@pytest.fixture
def journal(tmp_path, monkeypatch):
    """The journal of a finished sweep whose points take no time, and the table that it printed."""
    monkeypatch.setattr(sweep, "run_point", lambda plan, number, point: number + 1 / 3)
    status, table = ncode(*COMMAND, "--out", tmp_path)
    assert status == 0
    (path,) = tmp_path.glob("*/values.json")
    return path, path.read_bytes(), table


@quiet
@given(end=st.floats(0, 1, width=16))
def test_a_torn_journal_costs_no_value(journal, end):
    path, content, table = journal
    path.write_bytes(content[: int(end * len(content))])
    status, text = ncode(*COMMAND, "--out", path.parents[1])
    assert status == 0
    assert text.endswith(table)


@quiet
@given(changes=edits)
def test_a_damaged_journal_does_not_stop_the_sweep(journal, changes):
    path, content, _ = journal
    path.write_bytes(edited(content, changes))
    status, text = ncode(*COMMAND, "--out", path.parents[1])
    assert status == 0
    assert "failed" not in text
