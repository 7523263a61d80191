"""The explorer as a file."""

import json
import re
from pathlib import Path

import ncode_lab.explorer
import pytest
from ncode_lab.cli import main

FOLDER = Path(ncode_lab.explorer.__file__).parent


def test_the_command_writes_one_small_page_that_loads_nothing(tmp_path, capsys):
    assert main(["explorer", "--out", str(tmp_path / "new" / "page.html")]) == 0
    page = Path(capsys.readouterr().out.strip())
    text = page.read_text(encoding="utf-8")
    assert page.stat().st_size < 500_000
    assert not re.search(r"https?://|\bsrc=|@import|\beval\b|new Function|fetch\(|XMLHttpRequest", text)


def test_a_place_that_cannot_be_written_is_told_in_a_sentence(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["explorer", "--out", str(tmp_path / "file" / "page.html")]) == 2
    assert "the explorer cannot be written to" in capsys.readouterr().err


def test_every_model_of_every_task_is_shipped_with_weights():
    shipped = json.loads((FOLDER / "pretrained.json").read_text())
    tasks = ("line", "mirror", "annuli", "spirals", "own")
    assert list(shipped) == [f"{t}/{m}" for t in tasks for m in ("node", "anode", "open-loop", "closed-loop")]


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.js")), ids=lambda file: file.name)
def test_a_source_file_is_short_and_has_no_long_lines(file):
    lines = file.read_text(encoding="utf-8").splitlines()
    assert 40 <= len(lines) <= 400
    assert max(map(len, lines)) <= 120
