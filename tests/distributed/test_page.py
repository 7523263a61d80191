import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from ncode.distributed import load_checkpoint

PAGE = Path(__file__).parents[2] / "docs/guides/distributed.md"


def blocks():
    page = PAGE.read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)


def test_the_code_of_the_page_runs_and_leaves_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for block in blocks():
        exec(compile(block, PAGE.name, "exec"), names)
    assert names["step"] == 20
    assert load_checkpoint("checkpoints", names["model"], names["optimizer"], sampler=names["sampler"]) == 20


@pytest.mark.slow
@pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo")
def test_the_loop_of_the_page_trains_in_two_processes_that_are_a_group(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(blocks()[0] + "\nprint(sampler.rank, sampler.ranks, step)\n", encoding="utf-8")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, str(script)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "they are not a group" not in run.stderr
    assert sorted(run.stdout.splitlines()) == ["0 2 20", "1 2 20"]
