import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)
LINKS = re.findall(r"\]\(([^)#]+)\)", README)


def test_readme_shows_code():
    assert BLOCKS


@pytest.mark.parametrize("block", BLOCKS)
def test_readme_code_runs(block):
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


@pytest.mark.parametrize("link", [link for link in LINKS if "://" not in link])
def test_readme_links_lead_somewhere(link):
    assert (ROOT / link).exists()
