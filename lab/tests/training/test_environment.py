import json
import subprocess
from pathlib import Path

import torch
from ncode_lab.training import environment


def test_a_run_is_described_in_plain_values():
    told = environment.describe_environment(torch.device("cpu"))
    assert json.loads(json.dumps(told)) == told
    assert {"python", "torch", "ncode", "lightning"} <= told["versions"].keys()
    assert "thread" in told["device"]


def test_the_commit_is_that_of_this_source_tree(monkeypatch):
    monkeypatch.delenv("NCODE_COMMIT", raising=False)
    here = Path(__file__).parent
    done = subprocess.run(["git", "-C", here, "describe", "--always", "--dirty"], capture_output=True, text=True)
    tracked = environment._git(Path(environment.__file__).parent, "ls-files", "--error-unmatch", "environment.py")
    assert environment.commit() == (done.stdout.strip() if tracked else "unknown")


def test_a_copy_outside_of_its_repository_can_be_told_its_commit(monkeypatch):
    monkeypatch.setenv("NCODE_COMMIT", "abc1234")
    assert environment.commit() == "abc1234"


def test_where_there_is_no_git_the_commit_is_unknown(monkeypatch):
    monkeypatch.delenv("NCODE_COMMIT", raising=False)
    monkeypatch.setenv("PATH", "")
    assert environment.commit() == "unknown"
