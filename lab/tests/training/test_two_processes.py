"""Two processes on the CPU, through gloo, are one run."""

import json
import os
import subprocess

import pytest
import torch
from safetensors.torch import load_file

from .tiny import logged, script, train


def launch(folder, quiet=True, **task):
    setting = {"folder": str(folder), "options": {"devices": 2, "quiet": quiet}, "noisy": False, **task}
    return subprocess.run(**script("tiny", json.dumps(setting)), capture_output=True, timeout=300)


@pytest.mark.slow
def test_two_processes_stopped_and_resumed_give_the_result_of_one(tmp_path):
    # The best weights are those after step 3.
    scores = (0.9, 0.5)
    first = launch(tmp_path / "two", stop_at=1, scores=scores)
    assert first.returncode == 130, first.stderr
    assert [line.split(";")[0] for line in first.stderr.splitlines()] == ["stopped after step 2 of 6"]
    second = launch(tmp_path / "two", quiet=False, scores=scores)
    assert second.returncode == 0, second.stderr
    # One process speaks.
    assert second.stderr.count("step 6/6  loss") == 1
    told = [json.loads(line) for line in second.stdout.splitlines()]
    assert sorted(each["rank"] for each in told) == [0, 1]
    assert {**told[0], "rank": 0} == {**told[1], "rank": 0}
    assert told[0]["final"] == told[0]["result"]
    assert os.listdir(tmp_path / "two" / "runs") == [told[0]["run"]] == [told[0]["found"]]
    two = load_file(tmp_path / "two" / "kept" / "weights.safetensors")
    one = train(tmp_path / "one", noisy=False, scores=scores)
    assert two.keys() == one.keys()
    for name in one.keys() - {"mean"}:
        torch.testing.assert_close(two[name], one[name], rtol=1e-5, atol=1e-6)
    assert told[0]["final"]["best step"] == 3
    metrics = logged(tmp_path / "two")
    assert [each["step"] for each in metrics if each["kind"] == "train"] == [1, 2, 3, 4, 5, 6]
    # What the weights gave that were not kept.
    assert metrics[-1]["error"] == pytest.approx(logged(tmp_path / "one")[-1]["error"], rel=1e-4)
