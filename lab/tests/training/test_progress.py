import io
import logging
import re

import pytest
from ncode_lab.training import Progress
from ncode_lab.training import progress as progress_module
from ncode_lab.training.progress import MetricsLog

from .tiny import context_at, train


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_quiet_prints_nothing(tmp_path, capfd):
    train(tmp_path, options={"quiet": True})
    assert capfd.readouterr() == ("", "")


def test_elsewhere_than_on_a_terminal_lines_are_plain(tmp_path, monkeypatch):
    monkeypatch.setattr(progress_module, "SECONDS_BETWEEN_LINES", -1.0)
    stream = io.StringIO()
    train(tmp_path, Progress(stream=stream))
    told = stream.getvalue().splitlines()
    assert "\x1b" not in stream.getvalue()
    assert re.fullmatch(r"tiny-products-seed-0  step 1/6  loss \S+  nfe 12  control norm \S+  \d+ s left", told[0])
    assert [line for line in told if "step 6/6  loss" in line]
    assert [line for line in told if re.search(r"step 3/6  evaluation: error \S+$", line)]


def test_lines_come_every_few_seconds_and_at_the_end(tmp_path):
    stream = io.StringIO()
    train(tmp_path, Progress(stream=stream))
    assert [line.split("  ")[1] for line in stream.getvalue().splitlines() if "loss" in line] == ["step 6/6"]


def test_on_a_terminal_there_is_a_live_bar(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    context = context_at(tmp_path, Progress(stream=stream))
    context.info("[bold] is not markup")
    train(tmp_path, Progress(stream=stream))
    for word in ("[bold] is not markup", "6/6", "loss", "nfe", "control norm", "error"):
        assert word in stream.getvalue()


@pytest.mark.parametrize("disabled", [False, True])
def test_what_the_library_logs_while_it_compiles_is_printed_during_a_fit(disabled):
    stream, log = io.StringIO(), logging.getLogger("ncode")
    log.disabled = disabled  # as logging.config.dictConfig does where other packages call it
    level, progress = log.level, Progress(stream=stream)
    progress.start("tiny", steps=2)
    log.info("still compiling a step")
    progress.finish()
    log.info("nobody listens any more")
    assert stream.getvalue() == "still compiling a step\n"
    assert log.level == level


def test_a_warning_is_told_even_when_quiet_but_by_one_process(capsys):
    Progress(quiet=True).warn("the checkpoint is damaged")
    Progress(prints=False).warn("the same, from the second process")
    Progress(quiet=True).info("no more than that")
    assert capsys.readouterr().err == "the checkpoint is damaged\n"


@pytest.mark.parametrize("end", ["finished", "failed"])
def test_the_cursor_comes_back(tmp_path, monkeypatch, end):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    if end == "failed":
        with pytest.raises(ZeroDivisionError):
            train(tmp_path, Progress(stream=stream), at_step={3: lambda: 1 / 0})
    else:
        train(tmp_path, Progress(stream=stream))
    assert stream.getvalue().rfind("\x1b[?25h") > stream.getvalue().rfind("\x1b[?25l")


HOSTILE = [
    '{"step": 2, "kind": "train", "fit": "model", "lo',
    '{"step": "2", "kind": "train", "fit": "model"}',
    '{"step": 2, "kind": ["train"], "fit": {}}',
    '{"step": 2, "kind": "train", "fit": "model", "loss": "text"}',
    "null",
    "[" * 100_000,
    "\0" * 50,
]


@pytest.mark.parametrize("damage", HOSTILE)
def test_a_damaged_line_of_the_log_costs_no_other_line(tmp_path, damage):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.write(1, "train", "model", {"loss": 0.5})
    with open(log.path, "a") as file:
        file.write(damage + "\n")
    log.write(3, "train", "model", {"loss": 0.25})
    assert log.curves() == {"train step": [1, 3], "train loss": [0.5, 0.25]}
    log.cut("model", 1)
    assert log.curves() == {"train step": [1], "train loss": [0.5]}
    assert len(log.path.read_text().splitlines()) == 1
