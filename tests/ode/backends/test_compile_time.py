"""What compiles for long says so, through logging."""

import logging
import time

from ncode.ode.backends import compile_time
from ncode.ode.backends.compile_time import report_if_slow


def test_slow_compilation_says_so_while_it_goes_on_and_when_it_is_done(caplog, monkeypatch):
    monkeypatch.setattr(compile_time, "SLOW", 0.01)
    caplog.set_level(logging.INFO, "ncode")
    with report_if_slow("a step"):
        deadline = time.monotonic() + 30
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.01)
        assert caplog.messages == ["still compiling a step"]
    assert len(caplog.messages) == 2
    assert caplog.messages[1].startswith("compiled a step in ")


def test_fast_compilation_says_nothing(caplog, monkeypatch):
    monkeypatch.setattr(compile_time, "SLOW", 3600.0)
    caplog.set_level(logging.INFO, "ncode")
    with report_if_slow("a step"):
        pass
    assert not caplog.messages
