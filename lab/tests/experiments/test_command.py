"""The command under "How to run it again"."""

import html
import json
import re
import shlex
from dataclasses import replace

import pytest
from ncode_lab.cli import main
from ncode_lab.cli.run import chosen_preset, parse
from ncode_lab.experiments import EXPERIMENTS, PRESETS, find
from ncode_lab.experiments.command import repeat_command
from ncode_lab.training import RunOptions

# Values that a command line may misread: negative numbers, empty and nested tuples, flags that are turned off.
CHANGES = {
    "memory": {"degradation": (0.25, 0.125), "models": ("ncode",)},
    "classification": {"clip": -2.0, "zeros": -1, "fallback": False, "data_dir": "my data's folder", "compile": True},
    "autoencode": {"shift": -1, "flips": True, "fallback": False, "lr": 1e-20},
    "generate": {"components": (3,), "widths": (), "code_noise": -1.0},
    "cluster": {"models": (), "pixels": True, "standardise": False},
}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_command_that_repeats_a_run_means_the_same_settings(name, preset):
    settings = replace(find(name).preset(preset), **CHANGES.get(name, {}))
    options = RunOptions(seed=3, seeds=2, device="cpu", precision="bf16", deterministic=True, save=True)
    words = shlex.split(repeat_command(settings, preset, options))
    assert words[:3] == ["ncode", "run", name]
    assert chosen_preset(words) == preset
    given = parse(find(name).preset(preset), RunOptions(), words[3:])
    assert (given.settings, given.run) == (settings, options)


def test_folders_of_this_machine_are_left_out_or_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = replace(find("classification").preset("smoke"), data_dir="/mnt/data")
    assert repeat_command(settings, "smoke", RunOptions(out=tmp_path)) == "ncode run classification --smoke"
    settings = replace(settings, data_dir=str(tmp_path / "data"))
    assert repeat_command(settings, "smoke", RunOptions()) == "ncode run classification --smoke --data-dir data"


def test_the_command_in_a_report_works_as_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["run", "reflection", "--smoke", "--quiet", "--models", "node", "--out", str(tmp_path / "a b"), "--seed", "4"])
    main(["report", "a b", "--out", "report.html"])
    (printed,) = re.findall("<pre[^>]*><code>(.*?)</code>", (tmp_path / "report.html").read_text(), re.DOTALL)
    program, *words = shlex.split(html.unescape(printed))
    assert program == "ncode"
    assert main(words) == 0
    files = [next(tmp_path.glob(f"{out}/*/trials/*/result.json")) for out in ("a b", "runs")]
    first, second = (json.loads(file.read_text()) for file in files)
    assert first["metrics"] == second["metrics"]
    assert first["command"] == second["command"]
