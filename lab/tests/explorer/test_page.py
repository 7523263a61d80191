"""The explorer as a page: its file, and what a browser makes of it."""

import json
import re
from pathlib import Path

import ncode_lab.explorer
import pytest
from ncode_lab.cli import main
from ncode_lab.explorer import render_explorer

from ..browser import DARK, brightness, dump, needs_browser, probe

FOLDER = Path(ncode_lab.explorer.__file__).parent
# Wait until the page has nothing more to do.
REST = """
const rest = async () => {
  do await new Promise((done) => setTimeout(done, 20)); while (requested);
};
const press = (id, key, shiftKey = false) =>
  $(id).dispatchEvent(new KeyboardEvent("keydown", {key, shiftKey, bubbles: true, cancelable: true}));
await rest();
"""
TIME = "--virtual-time-budget=20000"


def test_the_command_writes_one_small_page_that_loads_nothing(tmp_path, capsys):
    assert main(["explorer", "--out", str(tmp_path / "new" / "page.html")]) == 0
    page = Path(capsys.readouterr().out.strip())
    text = page.read_text(encoding="utf-8")
    assert page.stat().st_size < 500_000
    assert not re.search(r"https?://|\bsrc=|@import|\beval\b|new Function|fetch\(|XMLHttpRequest", text)


def test_a_place_that_cannot_be_written_is_told_in_a_sentence(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["explorer", "--out", str(tmp_path / "file" / "page.html")]) == 2
    assert "the explorer cannot be written to" in capsys.readouterr().err


def test_every_model_of_every_task_is_shipped_with_weights():
    shipped = json.loads((FOLDER / "pretrained.json").read_text())
    tasks = ("line", "mirror", "annuli", "spirals", "own")
    assert list(shipped) == [f"{t}/{m}" for t in tasks for m in ("node", "anode", "open-loop", "closed-loop")]


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*.js")), ids=lambda file: file.name)
def test_a_source_file_is_short_and_has_no_long_lines(file):
    lines = file.read_text(encoding="utf-8").splitlines()
    assert 60 <= len(lines) <= 400
    assert max(map(len, lines)) <= 120


@needs_browser
def test_the_page_runs_under_its_own_policy_and_a_changed_script_does_not(tmp_path):
    page = render_explorer()
    assert "error 0.361 · 400 steps" in dump(page, tmp_path, TIME)
    assert "400 steps" not in dump(page.replace("const ORDER = 5;", "const ORDER = 4;"), tmp_path, TIME)


@needs_browser
def test_before_any_click_the_open_loop_succeeds_where_the_node_fails(tmp_path):
    script = "return MODELS.map((name) => [followed(name).loss, followed(name).right]);"
    losses = [loss for loss, _ in probe(render_explorer(), script, tmp_path)]
    assert losses[0] > 0.3
    assert max(losses[1:]) < 1e-4
    right = [share for _, share in probe(render_explorer(), script, tmp_path, address="#task=annuli")]
    assert right[1:] == pytest.approx([1, 1, 1])


@needs_browser
def test_keys_move_the_sample_and_edit_points(tmp_path):
    script = """
    const seen = {start: state.sample};
    press("input", "ArrowRight"); press("input", "ArrowUp", true); await rest();
    seen.moved = state.sample; seen.address = location.hash; seen.status = $("status").textContent;
    press("flow", "PageDown"); seen.first = state.sample;
    press("input", "1"); seen.more = task.data.x.length;
    press("input", "Delete"); press("input", "Delete"); seen.fewer = task.data.x.length;
    return seen;"""
    seen = probe(render_explorer(), REST + script, tmp_path, TIME, address="#task=own&x=0.5,0.5")
    assert (seen["start"], seen["moved"]) == ([0.5, 0.5], [0.55, 0.51])
    assert "x=0.55,0.51" in seen["address"]
    assert "The sample at (0.55, 0.51) ends at" in seen["status"]
    assert (seen["more"], seen["fewer"]) == (33, 31)


@needs_browser
def test_mouse_and_finger_drag_the_sample(tmp_path):
    script = """
    $("flow").setPointerCapture = () => {};
    const box = $("flow").getBoundingClientRect();
    const act = (name, x, y, pointerType) => $("flow").dispatchEvent(new PointerEvent(name,
      {pointerId: 1, pointerType, clientX: box.left + surfaces.flow.px(x), clientY: box.top + surfaces.flow.py(y)}));
    const drag = (from, to, kind) => {
      act("pointerdown", 0, from, kind); act("pointermove", 0, to, kind); act("pointerup", 0, to, kind);
      return state.sample[0];
    };
    return [drag(0.75, -0.5, "mouse"), drag(-0.5, 0.25, "touch"), drag(-1, 0.9, "touch")];"""
    mouse, finger, elsewhere = probe(render_explorer(), REST + script, tmp_path, TIME)
    assert (mouse, finger) == (pytest.approx(-0.5, abs=0.01), pytest.approx(0.25, abs=0.01))
    assert elsewhere == finger  # a finger that starts elsewhere scrolls the page


@needs_browser
def test_training_lowers_the_loss_and_its_link_repeats_it(tmp_path):
    script = """
    $("restart").click(); await rest();
    const before = followed(state.model).loss;
    $("train").click();
    while (current().steps < 40) await new Promise((done) => setTimeout(done, 20));
    $("train").click(); await rest();
    const after = followed(state.model).loss;
    const address = writeAddress(state, current());
    location.hash = "#task=annuli"; await rest();
    location.hash = address; await rest();
    return {before, after, again: followed(state.model).loss, address, facts: cards.get("open-loop").facts.textContent};"""
    seen = probe(render_explorer(), REST + script, tmp_path, TIME)
    assert seen["after"] < 0.5 * seen["before"]
    assert seen["again"] == seen["after"]
    assert re.search(r"start=seed&train=\d+,0.005,0.001$", seen["address"])


@needs_browser
def test_a_wrong_address_gives_the_defaults(tmp_path):
    addresses = ["", "#task=x&model=y&seed=-3&tolerance=7&lr=a&t=9&x=1,2,3&train=a,b;1e9,1,1", "#x=NaN", "#x=99", "#%"]
    script = f"return {json.dumps(addresses)}.map(readAddress);"
    seen = probe(render_explorer(), script, tmp_path)
    assert all(each == seen[0] for each in seen)
    assert seen[0]["history"] == []


@needs_browser
@pytest.mark.parametrize("address", ["#task=line", "#task=own"])
def test_a_phone_never_scrolls_sideways(tmp_path, address):
    script = """return {inner: innerWidth, scroll: document.documentElement.scrollWidth,
      small: [...document.querySelectorAll("button, select")].filter((e) => e.offsetWidth)
        .map((e) => e.offsetHeight).filter((height) => height < 36)};"""
    seen = probe(render_explorer(), REST + script, tmp_path, TIME, "--window-size=400,800", address=address)
    assert seen["scroll"] <= seen["inner"] <= 500
    assert seen["small"] == []


@needs_browser
def test_every_control_has_a_name(tmp_path):
    script = """return [...document.querySelectorAll("button, select, input, canvas:not([aria-hidden])")].filter((e) =>
      !(e.textContent.trim() || e.labels?.length || e.getAttribute("aria-label") || e.getAttribute("aria-labelledby")))
      .map((e) => e.outerHTML);"""
    assert probe(render_explorer(), script, tmp_path) == []


@needs_browser
def test_in_the_dark_page_and_figures_are_dark(tmp_path):
    script = """const style = getComputedStyle(document.body);
      return [style.backgroundColor, style.color, css(palette.paper), css(palette.ink)];"""
    paper, ink, drawn, pen = map(brightness, probe(render_explorer(), script, tmp_path, DARK))
    assert paper < ink
    assert drawn < pen


@needs_browser
def test_reduced_motion_moves_time_in_jumps(tmp_path):
    script = """
    const seen = new Set();
    $("play").click();
    while (playing) { seen.add(state.t); await new Promise((done) => setTimeout(done, 20)); }
    return [...seen];"""
    seen = probe(render_explorer(), REST + script, tmp_path, TIME, "--force-prefers-reduced-motion")
    assert 5 < len(seen) <= 12
    assert all(round(10 * t) == pytest.approx(10 * t) for t in seen)
