"""Count the commands of the fuzz tests, for the driver in `tests/fuzz/run.py` of the library."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_data_of_this_machine(monkeypatch, tmp_path):
    monkeypatch.delenv("NCODE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def pytest_terminal_summary(terminalreporter):
    from . import command

    terminalreporter.write_line(f"fuzzed calls: {command.calls}")
