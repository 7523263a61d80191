import json
import os
import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from ncode_lab.report import write_report
from ncode_lab.report.pictures import LARGEST_SVG
from ncode_lab.training import Reported

from ncode import InputError

from .runs import draw, result, write_run

NASTY = '"><script>alert(1)</script><img src=x onerror=alert(1)>'


class Page(HTMLParser):
    """What a page is made of."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def all(self, *names):
        return [attributes for tag, attributes in self.tags if tag in names]


@pytest.fixture
def page(tmp_path):
    seeds = [result(model, seed=seed) for model in ("node", "anode") for seed in (0, 1)]
    several = [result("node", dataset) for dataset in ("n=100", "n=1000")]
    figures = [("flow", "The flow."), ("curves", "Training curves.")]
    write_run(tmp_path / "a", seeds, figures, paper=[Reported("node", "annuli", "error", 0.3, "As printed.")])
    write_run(tmp_path / "b", several, figures[:1], title="Memory")
    return Page(write_report([tmp_path / "a", tmp_path / "b"], tmp_path / "page.html").read_text())


def test_a_page_is_well_formed_and_holds_every_figure_and_table(page):
    assert page.open == []
    assert len(page.all("img")) == 3
    assert len(page.all("table")) == 4
    assert {"Two annuli", "Memory", "Can it?", "The flow.", "n=1000"} <= set(page.texts)
    assert any(text.startswith("30.0") for text in page.texts)


def test_a_page_asks_for_nothing_from_outside(page):
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe", "object", "embed", "base", "form")
        assert attributes.get("src", "data:image/").startswith("data:image/")
        assert attributes.get("href", "#").startswith("#")
    style = "".join(page.texts)
    assert "url(" not in style
    assert "@import" not in style
    assert any("default-src 'none'" in a.get("content", "") for a in page.all("meta"))


def test_headings_come_in_order(page):
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_markup_says_what_things_are(page):
    assert len(page.all("caption")) == len(page.all("table"))
    assert all("scope" in attributes for attributes in page.all("th"))
    assert [a["alt"] for a in page.all("img")] == ["The flow.", "Training curves.", "The flow."]
    assert page.all("html")[0]["lang"] == "en"
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    links = {a["href"] for a in page.all("a")} - {"#"}
    assert links == {f"#{key}" for key in ids}


def test_text_stays_text_wherever_it_comes_from(tmp_path):
    one = result(NASTY, NASTY, settings={NASTY: NASTY}, metrics={NASTY: 1.0}, command=NASTY, device=NASTY)
    everywhere = dict.fromkeys(("title", "question", "preset", "command", "commit", "experiment", "started"), NASTY)
    everywhere |= {"settings": {NASTY: [NASTY]}, "options": {NASTY: {NASTY: 1}}, "versions": {NASTY: NASTY}}
    everywhere |= {"columns": [[NASTY, NASTY]], "paper": [[NASTY, NASTY, NASTY, 1.0, NASTY]], "trials": [NASTY]}
    folder = write_run(tmp_path / "run", [], [("flow", NASTY)], **everywhere)
    (folder / "trials" / "one").mkdir(parents=True)
    (folder / "trials" / "one" / "result.json").write_text(json.dumps(one.as_json()))
    page = Page(write_report([folder], tmp_path / "page.html").read_text())
    assert page.all("script") == []
    assert [a["alt"] for a in page.all("img")] == [NASTY]
    assert page.texts.count(NASTY) > 10


def test_half_a_character_does_not_stop_a_report(tmp_path):
    folder = write_run(tmp_path / "run", [result()], title="\ud800")
    assert write_report([folder], tmp_path).name == "report.html"


def test_numbers_of_another_preset_than_the_papers_say_so(tmp_path):
    paper = [Reported("node", "annuli", "error", 0.3)]
    for preset, said in [("quick", True), ("paper", False)]:
        folder = write_run(tmp_path / preset, [result()], paper=paper, preset=preset)
        text = write_report([folder], tmp_path / "page.html").read_text()
        assert ("not for the quick preset" in text) == said


def test_a_figure_whose_svg_is_large_is_shown_as_png(tmp_path):
    folder = write_run(tmp_path / "run", [result()], [("flow", "The flow.")])
    kind = r'<img src="data:image/([^;]+);base64'
    assert re.findall(kind, write_report([folder], tmp_path / "page.html").read_text()) == ["svg+xml"]
    svg = folder / "figures" / "flow.svg"
    svg.write_text(svg.read_text() + " " * LARGEST_SVG)
    assert re.findall(kind, write_report([folder], tmp_path / "page.html").read_text()) == ["png"]


def test_a_png_is_shown_at_the_size_it_was_drawn_for(tmp_path):
    folder = write_run(tmp_path / "run", [result()])
    draw(folder / "figures", "flow")
    sizes = []
    for _ in range(2):
        image = Page(write_report([folder], tmp_path / "page.html").read_text()).all("img")[0]
        sizes.append((image["width"], image["height"]))
        (folder / "figures" / "flow.svg").unlink(missing_ok=True)
    assert sizes == [("384", "288")] * 2


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_half_a_figure_is_not_shown(tmp_path, ending):
    folder = write_run(tmp_path / "run", [result()])
    draw(folder / "figures", "flow")
    for path in (folder / "figures").iterdir():
        if path.suffix == f".{ending}":
            path.write_bytes(path.read_bytes()[:2000])
        else:
            path.unlink()
    text = write_report([folder], tmp_path / "page.html").read_text()
    assert "<img" not in text
    assert f"The figure flow is left out: flow.{ending} cannot be shown" in text


PNG_START, PNG_END = b"\x89PNG\r\n\x1a\n", b"IEND\xaeB`\x82"
ODD_FIGURES = {
    "short.png": PNG_START + b"1234" + PNG_END,
    "headless.png": PNG_START + bytes(30) + PNG_END,
    "cut.png": PNG_START + bytes(4) + b"IHDR" + PNG_END,
    "numbers.svg": b'<svg width="1.2.3" height="4"></svg>',
    "endless.svg": b'<svg width="' + b"9" * 400 + b'" height="4"></svg>',
    "empty.svg": b"",
}


@pytest.mark.parametrize("name", ODD_FIGURES)
def test_a_figure_of_odd_bytes_is_not_shown(tmp_path, name):
    folder = write_run(tmp_path / "run", [result()])
    (folder / "figures" / name).write_bytes(ODD_FIGURES[name])
    text = write_report([folder], tmp_path / "page.html").read_text()
    assert "<img" not in text
    assert f"{name} cannot be shown" in text


def test_a_figure_that_is_no_file_is_not_read(tmp_path):
    folder = write_run(tmp_path / "run", [result()])
    os.mkfifo(folder / "figures" / "pipe.png")  # reading it would wait for ever
    (folder / "figures" / "folder.png").mkdir()
    (folder / "figures" / "nowhere.svg").symlink_to(tmp_path / "nowhere")
    assert "<img" not in write_report([folder], tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    "columns",
    [
        [["error", "error", 10**9]],
        [["error", "error", -1]],
        [["error", "error", 2, 10**400]],
        [["error", "error", 2, 1e308]],
    ],
)
@pytest.mark.parametrize("errors", [(1e308, 1e308), (1e308, -1e308), (0.5, 0.25)])
def test_no_column_and_no_number_stops_a_report(tmp_path, columns, errors):
    seeds = [result(seed=seed, error=error) for seed, error in enumerate(errors)]
    folder = write_run(tmp_path / "run", seeds, columns=columns, paper=[["node", "annuli", "error", 10**400]])
    assert "Two annuli" in write_report([folder], tmp_path / "page.html").read_text()


def test_a_run_without_results_says_so(tmp_path):
    folder = write_run(tmp_path / "run", [], finished=None)
    assert "There are no results yet." in write_report([folder], tmp_path / "page.html").read_text()


def test_a_page_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    folder, out = write_run(tmp_path / "run", [result()]), tmp_path / "pages" / "page.html"
    before = write_report([folder], out).read_text()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ncode_lab.training.files.os.replace", full)
    with pytest.raises(InputError, match=r"cannot be written to .*No space left"):
        write_report([folder], out)
    assert out.read_text() == before
    assert list(out.parent.iterdir()) == [out]


def test_runs_of_one_experiment_are_told_apart_by_their_data_and_time(tmp_path):
    for name, time in (("cats", "2025-06-01T10:00:00+00:00"), ("dogs", "2025-06-01T11:30:05+00:00")):
        data = {"name": f"{name} (own data)"}
        write_run(tmp_path / name, [result(dataset=data["name"])], data=data, started=time)
    text = write_report([tmp_path], tmp_path / "page.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    contents = text.partition("</nav>")[0]
    assert "cats (own data) · " in contents
    assert "dogs (own data) · " in contents
    assert "2025-06-01 10:00:00" in contents
    assert "2025-06-01 11:30:05" in contents
