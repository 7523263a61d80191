import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, flags=re.DOTALL | re.MULTILINE)
DOCS = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", *DOCS]
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


def test_readme_shows_code_and_is_short():
    assert BLOCKS
    assert len(README.splitlines()) < 120


@pytest.mark.parametrize("block", BLOCKS)
def test_readme_code_runs(block):
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    path = ROOT / page
    for link in re.findall(r"\]\(([^)#]+)", path.read_text(encoding="utf-8")):
        assert "://" in link or (path.parent / link).exists(), link


@pytest.mark.parametrize("folder", ["src/ncode", "lab/src/ncode_lab"])
def test_the_architecture_page_lists_every_file(folder):
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.py")}
    unlisted = {path for path in files if path.endswith(("/__init__.py", "/__main__.py"))}
    assert {path for path in listed_files() if path.startswith(folder)} == files - unlisted


def listed_files() -> set[str]:
    """The files in the trees of the architecture page, in which a folder may list its files on its own line."""
    files, folders = set(), {}
    for indent, name, about in re.findall(
        r"^ {4}( *)([\w./]+(?:/|\.py))(?: +(.*))?$", ARCHITECTURE, flags=re.MULTILINE
    ):
        parent = folders[len(indent) - 2] if indent else ""
        if name.endswith("/"):
            folders[len(indent)] = parent + name
            files |= {parent + name + file for file in re.findall(r"\w+\.py", about)}
        else:
            files.add(parent + name)
    return files
