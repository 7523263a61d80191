import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from ncode_lab.experiments.classification.models import ClassifierSettings, build_classifier

ROOT = Path(__file__).parents[2]


def test_the_classifier_of_the_solver_s_benchmark_is_that_of_the_experiment(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.workloads import cifar_epoch

    ours = cifar_epoch.build(8, filters=10, compile=True)
    torch.manual_seed(0)
    theirs = build_classifier("ncode", (3, 8, 8), settings=ClassifierSettings(filters=10, compile=True))
    assert str(ours) == str(theirs)
    for name, value in theirs.state_dict().items():
        assert torch.equal(value, ours.state_dict()[name]), name


@pytest.mark.slow
def test_fits_of_mixtures_are_timed_until_they_converge_and_at_their_longest(tmp_path):
    path = tmp_path / "mixture.json"
    arguments = ["--codes", "200", "--dimensions", "4", "--components", "3", "--device", "cpu", "--json", str(path)]
    subprocess.run(
        [sys.executable, "-m", "benchmarks.lab.mixture", *arguments], cwd=ROOT, check=True, capture_output=True
    )
    record = json.loads(path.read_text())
    short, longest = record["fits"]
    assert (short["components"], longest["iterations"], record["codes"]) == (3, 100, [200, 4])
    assert short["iterations"] < 100
    assert record["command"].startswith("python -m benchmarks.lab.mixture --codes 200")
    assert record["command"].endswith("--json mixture.json")
    assert record["environment"]["versions"]["torch"]


@pytest.mark.slow
def test_a_step_of_an_autoencoder_is_timed_with_its_flow_and_without_data(tmp_path):
    path = tmp_path / "autoencoder.json"
    arguments = ["--device", "cpu", "--models", "auton-code", "ae", "--width", "0.05", "--batch", "4", "--steps", "2"]
    command = [sys.executable, "-m", "benchmarks.lab.autoencoder", *arguments, "--json", str(path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    record = json.loads(path.read_text())
    flowing, plain = record["models"]
    assert [row["model"] for row in record["models"]] == ["auton-code", "ae"]
    assert flowing["ms of the flow"] > 0
    assert "ms of the flow" not in plain
    assert record["command"].startswith("python -m benchmarks.lab.autoencoder --device cpu")


def test_a_short_flow_is_linear_in_its_control_and_a_long_one_is_not(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.lab.linearity import FORMS, explained

    settings = replace(FORMS["the paper's for CIFAR-10"], latent=8)
    short, paper, long = (explained(replace(settings, gain=gain), 2000, seed=0) for gain in (1e-3, 1.0, 4.0))
    assert short > 0.9999
    assert 0.99 > paper > long
