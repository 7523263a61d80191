"""Two processes on the CPU, through gloo, are one run."""

import json
import os
import subprocess

import torch
from safetensors.torch import load_file

from .tiny import script, train


def launch(folder, quiet=True, **task):
    setting = {"folder": str(folder), "options": {"devices": 2, "quiet": quiet}, "noisy": False, **task}
    return subprocess.run(**script("tiny", json.dumps(setting)), capture_output=True, timeout=300)


def test_two_processes_stopped_and_resumed_give_the_result_of_one(tmp_path):
    first = launch(tmp_path / "two", stop_at=2)
    assert first.returncode == 130, first.stderr
    assert [line.split(";")[0] for line in first.stderr.splitlines()] == ["stopped after step 3 of 6"]
    second = launch(tmp_path / "two", quiet=False)
    assert second.returncode == 0, second.stderr
    # One process speaks.
    assert second.stderr.count("step 6/6  loss") == 1
    told = [json.loads(line) for line in second.stdout.splitlines()]
    assert sorted(each["rank"] for each in told) == [0, 1]
    assert {**told[0], "rank": 0} == {**told[1], "rank": 0}
    assert told[0]["final"] == told[0]["result"]
    assert os.listdir(tmp_path / "two" / "runs") == [told[0]["run"]] == [told[0]["found"]]
    two = load_file(tmp_path / "two" / "kept" / "weights.safetensors")
    one = train(tmp_path / "one", noisy=False)
    assert two.keys() == one.keys()
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=1e-5, atol=1e-6)
    metrics = [json.loads(line) for line in (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()]
    assert [each["step"] for each in metrics if each["kind"] == "train"] == [1, 2, 3, 4, 5, 6]
