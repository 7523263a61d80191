"""The command as a shell runs it: killed, and on two devices."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file

WORDS = ["--models", "open-loop", "--device", "cpu", "--seed", "3"]


def command(*words):
    return [sys.executable, "-m", "ncode_lab.cli", "run", "reflection", *words]


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def run(*words):
    done = subprocess.run(command(*words), env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def the_trial(out):
    (folder,) = out.glob("*/trials/*")
    return folder


def weights(out):
    last = max((the_trial(out) / "checkpoints" / "model").glob("step-*"))
    return load_file(last / "weights.safetensors")


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_with_the_same_bits(tmp_path):
    words = ["--smoke", "--steps", "60", "--save-every", "3", *WORDS]
    run(*words, "--out", str(tmp_path / "whole"), "--quiet")
    out = tmp_path / "killed"
    process = subprocess.Popen(command(*words, "--out", str(out)), env=environment(), stderr=subprocess.DEVNULL)
    while not list(out.glob("*/trials/*/checkpoints/model/step-*")):
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not list(out.glob("*/trials/*/result.json"))
    run("--resume", "--out", str(out), "--quiet")
    expected, found = weights(tmp_path / "whole"), weights(out)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.slow
def test_two_devices_give_the_result_of_one_and_talk_once(tmp_path):
    words = ["--smoke", "--steps", "4", *WORDS]
    run(*words, "--out", str(tmp_path / "one"))
    said = run(*words, "--out", str(tmp_path / "two"), "--devices", "2")
    assert len(said.splitlines()) == 1
    errors = [json.loads((the_trial(tmp_path / name) / "result.json").read_text()) for name in ("one", "two")]
    torch.testing.assert_close(errors[0]["metrics"]["error"], errors[1]["metrics"]["error"], rtol=1e-4, atol=1e-6)
    for name, value in weights(tmp_path / "one").items():
        torch.testing.assert_close(weights(tmp_path / "two")[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_two_devices_resume_the_same_run(tmp_path):
    words = ["--device", "cpu", "--devices", "2", "--out", str(tmp_path), "--quiet"]
    run("--smoke", "--steps", "2", "--models", "node", *words)
    result, record = the_trial(tmp_path) / "result.json", the_trial(tmp_path).parents[1] / "run.json"
    before = json.loads(result.read_text())["metrics"]
    result.unlink()
    record.write_text(json.dumps({**json.loads(record.read_text()), "finished": None}))
    run("--resume", *words)
    assert json.loads(result.read_text())["metrics"] == before
    assert json.loads(record.read_text())["finished"]


def test_the_package_is_the_command():
    done = subprocess.run([sys.executable, "-m", "ncode_lab", "list"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("reflection ")
