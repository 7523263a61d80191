import subprocess
import sys
from importlib.metadata import version

import pytest

from ncode.cli import main


def test_version_is_that_of_the_installed_package(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"ncode {version('torch-ncode')}\n"


def test_list_says_that_there_are_no_experiments_yet(capsys):
    assert main(["list"]) == 0
    assert "next release" in capsys.readouterr().out


def test_no_command_prints_the_help(capsys):
    assert main([]) == 0
    assert "usage: ncode" in capsys.readouterr().out


def test_misspelt_command_gets_the_nearest_right_one(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["lsit"])
    assert stop.value.code == 2
    assert "there is no command 'lsit'; did you mean 'list'?" in capsys.readouterr().err


def test_command_like_no_other_gets_the_whole_list(capsys):
    with pytest.raises(SystemExit):
        main(["xyzzy"])
    assert "choose one of: list." in capsys.readouterr().err


def test_the_command_line_starts_the_same_program():
    run = subprocess.run([sys.executable, "-m", "ncode.cli", "list"], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert "next release" in run.stdout
