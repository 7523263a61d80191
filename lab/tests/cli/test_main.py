import subprocess
import sys
from importlib.metadata import version

import pytest
from ncode_lab.cli import main
from ncode_lab.cli.main import WORDS
from ncode_lab.experiments import EXPERIMENTS


def test_version_is_that_of_the_installed_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ncode {version('torch-ncode')}\n"


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"]])
def test_the_help_names_every_word(words, capsys):
    assert main(words) == 0
    out = capsys.readouterr().out
    assert all(f"  {word}" in out for word in WORDS)


@pytest.mark.parametrize("word", WORDS)
def test_every_word_has_a_help_of_its_own(word, capsys):
    status = 0
    try:
        status = main([word, "--help"])
    except SystemExit as stop:
        status = stop.code
    assert status == 0
    assert len(capsys.readouterr().out) > 40


def test_misspelt_command_gets_the_nearest_right_one(capsys):
    assert main(["lsit"]) == 2
    assert "there is no command 'lsit'; did you mean 'list'?" in capsys.readouterr().err


def test_command_like_no_other_gets_the_whole_list(capsys):
    assert main(["xyzzy"]) == 2
    assert "choose one of: list, run, report" in capsys.readouterr().err


def test_list_has_a_line_for_each_experiment_and_its_presets(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in EXPERIMENTS:
        at = next(i for i, line in enumerate(lines) if line.startswith(name))
        assert [line.split()[0] for line in lines[at + 1 : at + 4]] == ["--smoke", "--quick", "--paper"]


def test_a_missing_extra_is_named_with_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tyro", None)
    monkeypatch.delitem(sys.modules, "ncode_lab.cli.reporting", raising=False)
    assert main(["report"]) == 2
    assert "`ncode report` needs the package tyro: pip install 'torch-ncode[experiments]'" in capsys.readouterr().err


def test_the_command_line_starts_the_same_program():
    run = subprocess.run([sys.executable, "-m", "ncode_lab.cli", "list"], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("reflection")


def test_a_reader_who_goes_away_ends_the_command_without_a_word():
    words = [sys.executable, "-m", "ncode_lab.cli", "list"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.close()
        assert command.stderr.read() == ""
    assert command.returncode == 141
