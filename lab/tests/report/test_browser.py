"""The page in a real browser: what a parser cannot see."""

import re
import subprocess

import pytest
from ncode_lab.report import write_report
from ncode_lab.training import Reported
from PIL import Image

from ..browser import BROWSER, DARK, FLAGS, brightness, needs_browser, probe
from .runs import result, write_run

pytestmark = needs_browser

PROBE = """
  const box = (e) => { const r = e.getBoundingClientRect(); return [r.left, r.right, r.width, r.height]; };
  const all = (s) => [...document.querySelectorAll(s)];
  return {
    inner: innerWidth, scroll: document.documentElement.scrollWidth,
    images: all("img").map((e) => ({loaded: e.complete && e.naturalWidth > 0, box: box(e)})),
    tables: all("section > .box table").map((e) => ({rows: e.querySelectorAll("tbody tr").length, box: box(e)})),
    boxes: all(".box, .card, pre").map(box),
    folded: all("details").map((e) => e.open),
    page: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color,
    cards: all(".card").map((e) => getComputedStyle(e).backgroundColor),
  };"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    long = "n=1000 patterns=10 degradation=0.9"
    results = [
        result(model, dataset, seed, metrics={"error": 0.1 * seed, "nfe": 14.0})
        for dataset in ("n=100", long)
        for model in ("node", "AutoN-CODE + t-SNE + GMM")
        for seed in (0, 1)
    ]
    figures = [("flow", "The flow, " * 30), ("curves", "x" * 200)]
    write_run(folder / "a", results, figures, paper=[Reported("node", long, "error", 0.3, "y" * 200)])
    write_run(folder / "b", [result()], figures, command="ncode run " + "z" * 300, title="w" * 100, commit="v" * 200)
    return write_report([folder], folder / "page.html")


def look(page, folder, *flags, unfold=False):
    text = page.read_text(encoding="utf-8")
    return probe(text.replace("<details", "<details open") if unfold else text, PROBE, folder, *flags)


def test_figures_and_tables_are_rendered(page, tmp_path):
    seen = look(page, tmp_path, "--window-size=1200,900")
    assert len(seen["images"]) == 4
    assert all(image["loaded"] and min(image["box"][2:]) > 100 for image in seen["images"])
    assert [table["rows"] for table in seen["tables"]] == [6, 1]
    assert all(min(table["box"][2:]) > 40 for table in seen["tables"])
    assert seen["folded"]
    assert not any(seen["folded"])
    assert brightness(seen["page"]) > brightness(seen["ink"])


def test_a_phone_scrolls_tables_and_never_the_page(page, tmp_path):
    seen = look(page, tmp_path, "--window-size=360,740", unfold=True)
    assert seen["inner"] < 576
    assert seen["scroll"] <= seen["inner"]
    assert any(table["box"][2] > seen["inner"] for table in seen["tables"])
    for left, right, *_ in seen["boxes"]:
        assert left >= 0
        assert right <= seen["inner"]


def test_in_the_dark_the_page_is_dark_and_figures_stay_on_white(page, tmp_path):
    seen = look(page, tmp_path, "--window-size=1200,900", DARK)
    assert brightness(seen["page"]) < brightness(seen["ink"])
    assert set(seen["cards"]) == {"rgb(255, 255, 255)"}


# Again on a resize: the window of a screenshot gets its size after the page is loaded.
END = (
    '<script>onload = onresize = () => document.querySelectorAll(".box").forEach((e) => e.scrollTo(9999, 0));</script>'
)


@pytest.mark.parametrize(("scrolled", "shaded"), [(False, True), (True, False)])
def test_a_table_that_goes_on_has_a_shadow_at_its_edge_until_its_end(scrolled, shaded, page, tmp_path):
    text = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text(encoding="utf-8"))
    copy, picture = tmp_path / "copy.html", tmp_path / "page.png"
    copy.write_text(text.replace("</body>", f"{END * scrolled}</body>"), encoding="utf-8")
    flags = [flag for flag in FLAGS if flag != "--dump-dom"]
    place = [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=400,1600", f"--screenshot={picture}"]
    subprocess.run([BROWSER, *flags, *place, copy.as_uri()], capture_output=True, timeout=120, check=True)
    pixels = Image.open(picture).convert("L")
    # Just inside the right margin of 16 pixels: a shadow is a long run of grey, text and lines are short ones.
    grey = "".join("#" if pixels.getpixel((400 - 16 - 3, y)) < 245 else " " for y in range(1600))
    assert (max(map(len, grey.split()), default=0) > 60) == shaded
