import re
from pathlib import Path

from ncode.distributed import load_checkpoint

PAGE = Path(__file__).parents[2] / "docs/guides/distributed.md"


def test_the_code_of_the_page_runs_and_leaves_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    page = PAGE.read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE):
        exec(compile(block, PAGE.name, "exec"), names)
    assert names["step"] == 20
    assert load_checkpoint("checkpoints", names["model"], names["optimizer"], sampler=names["sampler"]) == 20
