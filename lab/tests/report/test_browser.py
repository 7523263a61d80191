"""The page in a real browser: what a parser cannot see."""

import html
import json
import re
import shutil
import subprocess

import pytest
from ncode_lab.report import write_report
from ncode_lab.training import Reported

from .runs import result, write_run

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="neither chromium nor google-chrome is installed")

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--dump-dom"),
)
# Runs in a copy of the page, and writes what it finds where --dump-dom shows it.
PROBE = """<script>addEventListener("load", () => {
  const box = (e) => { const r = e.getBoundingClientRect(); return [r.left, r.right, r.width, r.height]; };
  const all = (s) => [...document.querySelectorAll(s)];
  const seen = {
    inner: innerWidth, scroll: document.documentElement.scrollWidth,
    images: all("img").map((e) => ({loaded: e.complete && e.naturalWidth > 0, box: box(e)})),
    tables: all("section > .box table").map((e) => ({rows: e.querySelectorAll("tbody tr").length, box: box(e)})),
    boxes: all(".box, .card, pre").map(box),
    folded: all("details").map((e) => e.open),
    page: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color,
    cards: all(".card").map((e) => getComputedStyle(e).backgroundColor),
  };
  document.body.dataset.seen = JSON.stringify(seen);
});</script>"""


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
    # The page forbids all scripts, the probe too.
    text = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    if unfold:
        text = text.replace("<details", "<details open")
    copy = folder / "copy.html"
    copy.write_text(text.replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags, copy.as_uri()]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search('data-seen="([^"]*)"', run.stdout)
    assert found, f"the browser did not run the page: {run.stderr[-2000:]}"
    return json.loads(html.unescape(found[1]))


def brightness(colour):
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3]))


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
    seen = look(page, tmp_path, "--window-size=1200,900", "--blink-settings=preferredColorScheme=0")
    assert brightness(seen["page"]) < brightness(seen["ink"])
    assert set(seen["cards"]) == {"rgb(255, 255, 255)"}
