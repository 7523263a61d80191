import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import pytest
from ncode_lab.cli import main
from ncode_lab.cli.dispatch import COMMANDS
from ncode_lab.experiments import EXPERIMENTS, PRESETS


def test_version_is_that_of_the_installed_package(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ncode {version('torch-ncode')}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_the_help_names_every_command(arguments, capsys):
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert all(f"  {command}" in out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_own_help(command, capsys):
    status = 0
    try:
        status = main([command, "--help"])
    except SystemExit as stop:
        status = stop.code
    assert status == 0
    assert len(capsys.readouterr().out) > 40


def test_misspelt_command_gets_the_nearest_right_one(capsys):
    assert main(["lsit"]) == 2
    assert "unknown command 'lsit'; did you mean \"list\"?" in capsys.readouterr().err


def test_command_like_no_other_gets_the_whole_list(capsys):
    assert main(["xyzzy"]) == 2
    assert "known: list, run, report" in capsys.readouterr().err


def test_list_has_a_line_for_each_experiment_and_its_presets(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in EXPERIMENTS:
        at = next(i for i, line in enumerate(lines) if line.startswith(name))
        shown = [line.split()[0] for line in lines[at + 1 : at + 1 + len(PRESETS)]]
        assert shown == [f"--{preset}" for preset in PRESETS]


def test_a_missing_package_is_named_with_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tyro", None)
    monkeypatch.delitem(sys.modules, "ncode_lab.cli.report", raising=False)
    assert main(["report"]) == 2
    assert "`ncode report` needs the package tyro: pip install ncode-lab\n" in capsys.readouterr().err


def test_a_missing_extra_is_named_with_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert main(["sweep", "reflection", "--grid", "hidden=4", "--cluster", "local", "--out", str(tmp_path)]) == 2
    assert "`ncode sweep` needs the package submitit: pip install 'ncode-lab[sweep]'\n" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_line_starts_the_same_program():
    run = subprocess.run([sys.executable, "-m", "ncode_lab.cli", "list"], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.startswith("reflection")


@pytest.mark.slow
def test_a_closed_pipe_ends_the_command_without_a_message():
    command_line = [sys.executable, "-m", "ncode_lab.cli", "list"]
    with subprocess.Popen(command_line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.close()
        assert command.stderr.read() == ""
    assert command.returncode == 141


class Foreseen(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "status", "sentence"),
    [
        (MemoryError(), 1, "there is not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 1 EiB\nand more"), 1, "there is not enough memory"),
        (OSError(28, "No space left on device", "/disk/file"), 1, "/disk/file: No space left on device. Everything"),
        (PermissionError(13, "Permission denied"), 1, "Permission denied"),
        (RecursionError("too deep"), 1, "unexpected RecursionError: too deep"),
        (Foreseen("not\nquite"), 1, "unexpected Foreseen: not"),
    ],
)
def test_any_error_of_a_command_becomes_a_sentence(error, status, sentence, monkeypatch, capsys, tmp_path):
    def fail(arguments):
        raise error

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("ncode_lab.cli.run.list_experiments", fail)
    assert main(["list"]) == status
    printed = capsys.readouterr().err
    assert printed.startswith(f"ncode: {sentence}")
    assert "Traceback" not in printed
    files = list(tmp_path.iterdir())
    assert ("unexpected" in printed) == bool(files)
    for file in files:
        assert str(file) in printed
        assert "in fail" in file.read_text()


def test_an_unexpected_error_is_told_even_if_its_traceback_cannot_be_kept(monkeypatch, capsys, tmp_path):
    def fail(arguments):
        raise Foreseen("odd")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    monkeypatch.setattr("ncode_lab.cli.run.list_experiments", fail)
    assert main(["list"]) == 1
    assert "unexpected Foreseen: odd\nThe traceback could not be written" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_output_to_a_full_disk_ends_with_a_sentence():
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "ncode_lab.cli", "list"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("ncode: No space left on device")
    assert len(done.stderr.splitlines()) == 1


def test_the_command_is_there_before_torch_is_so_that_ctrl_c_while_it_loads_ends_with_a_sentence(monkeypatch, capsys):
    code = "import sys, ncode_lab.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

    class Press:
        def find_spec(self, name, path=None, target=None):
            if name == "ncode_lab.cli.dispatch":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "ncode_lab.cli.dispatch")
    monkeypatch.setattr(sys, "meta_path", [Press(), *sys.meta_path])
    assert main(["list"]) == 130
    assert capsys.readouterr().err.startswith("ncode: stopped. ")
