"""Count the calls of the fuzz tests, for the driver in `run.py`."""

from __future__ import annotations


def pytest_terminal_summary(terminalreporter):
    from . import promises  # later than Hypothesis chooses its profile

    terminalreporter.write_line(f"fuzzed calls: {promises.calls}")
