"""The pages in docs/: their code runs, their guides are short, and the checks of the built site find what is wrong."""

import importlib
import re
from pathlib import Path
from typing import NamedTuple

import pytest

DOCS = Path(__file__).parents[1] / "docs"
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
PAGES = [path.relative_to(DOCS).as_posix() for path in sorted(DOCS.rglob("*.md"))]
SLOW = ("faq.md", "start.md", "guides/deployment.md")
GUIDES = [page for page in PAGES if page.startswith("guides/")]
TOPICS = {
    *("controllers", "closed-loops", "series", "events", "stiff", "flows", "memory", "speed", "precision", "own-data"),
    *("distributed", "deployment", "debugging", "extending"),
}


class Block(NamedTuple):
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page.

    Python blocks run in order, in one namespace. One that is marked `raises` must raise the message in the block behind
    it, in which ... stands for any text. One that is marked `skip` is other libraries' code, or takes long.
    """
    return [Block(info.strip(), text) for info, text in FENCE.findall((DOCS / page).read_text(encoding="utf-8"))]


def has_code(page: str) -> bool:
    return any(block.language in ("python", "python raises") for block in blocks(page))


def matches(expected: str, message: str) -> bool:
    words = (re.escape(" ".join(part.split())) for part in expected.split("..."))
    return re.fullmatch(".*".join(words).replace(r"\ ", " ").strip(), " ".join(message.split())) is not None


@pytest.fixture
def own_figures():
    """Pages draw without a display, and leave no open figure."""
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("agg")
    yield
    plt.close("all")


@pytest.mark.usefixtures("own_figures")
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * (page in SLOW)) for page in PAGES if has_code(page)]
)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, found = {"__name__": "page"}, blocks(page)
    for block, after in zip(found, [*found[1:], Block("", "")], strict=True):
        code = compile(block.text, page, "exec") if block.language in ("python", "python raises") else None
        if block.language == "python":
            exec(code, names)
        elif block.language == "python raises":
            with pytest.raises((ValueError, RuntimeError), match=r"\w") as raised:
                exec(code, names)
            assert matches(after.text, str(raised.value)), str(raised.value)


def test_there_is_a_guide_for_each_topic():
    assert set(GUIDES) == {f"guides/{topic}.md" for topic in TOPICS}


@pytest.mark.parametrize("page", GUIDES)
def test_a_guide_is_under_600_words_and_shows_code(page):
    prose = FENCE.sub("", (DOCS / page).read_text(encoding="utf-8"))
    assert len(prose.split()) < 600
    assert blocks(page)


def test_every_page_is_in_the_contents():
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    listed = {line.strip() for line in index.splitlines()}
    assert [page for page in PAGES if page != "index.md" and page.removesuffix(".md") not in listed] == []


@pytest.fixture
def site(monkeypatch):
    """The modules that build the site, by name."""
    monkeypatch.syspath_prepend(str(DOCS / "_site"))
    return importlib.import_module


def test_a_broken_link_a_missing_anchor_and_a_foreign_resource_are_found(site, tmp_path):
    (tmp_path / "a.html").write_text('<p id="here"></p><a href="b.html#no">b</a><a href="c.html">c</a>')
    (tmp_path / "b.html").write_text('<a href="a.html#here">a</a><script src="https://example.org/x.js"></script>')
    assert site("links").check_site(tmp_path) == [
        "a.html: links to b.html#no, but that page has no such anchor",
        "a.html: links to c.html, which does not exist",
        "b.html: loads https://example.org/x.js from a network",
    ]


def test_the_speed_table_shows_rows_that_we_lose(site):
    table = site("speed").table(DOCS.parent / "results")
    rows = [
        [cell.strip() for cell in line.split("|")[2:-1]]
        for line in table.splitlines()
        if re.search(r"\d \|$|\*\* \|$|– \|$", line)
    ]
    assert rows
    assert any(not row[0].startswith("**") for row in rows)
    assert all(sum(cell.startswith("**") for cell in row) >= 1 for row in rows)


def test_the_reference_has_one_page_per_public_name(site):
    names = [it.name for it in site("api").public_names()]
    assert {"ncode.solve", "ncode.OpenLoop", "ncode.control.Feedback", "ncode.compat.torchdiffeq.odeint"} <= set(names)
    assert "ncode.control.OpenLoop" not in names  # the same as ncode.OpenLoop
    assert len(names) == len(set(names))


def test_links_to_files_elsewhere_lead_to_their_pages_in_the_site(site):
    stage = site("stage")
    assert "](../benchmarks.md)" in stage.adapt(DOCS / "guides/flows.md", "guides/flows.md")
    assert "](experiments/index.md)" in stage.adapt(DOCS / "start.md", "start.md")
    moved = stage.adapt(DOCS.parent / "lab/pages/reflection.md", "experiments/reflection.md")
    assert "](assets/reflection.png)" in moved
    assert "proposition_1" in moved


def test_the_gallery_has_the_scripts_that_begin_with_a_title(site, tmp_path, monkeypatch):
    stage = site("stage")
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples/picture.py").write_text('"""A picture\n===========\n\nText.\n"""\n')
    (tmp_path / "examples/tool.py").write_text('"""A tool."""\n')
    monkeypatch.setattr(stage, "ROOT", tmp_path)
    assert [path.name for path in stage.gallery_scripts()] == ["picture.py"]
