"""The explorer in a real browser: keys, mouse, finger, links, small and dark screens."""

import json
import re

import pytest
from ncode_lab.explorer import render_explorer

from ..browser import DARK, brightness, dump, needs_browser, probe

pytestmark = [needs_browser, pytest.mark.slow]
# Frames are drawn by the test itself: in a browser without a screen they come when they like.
REST = """
let clock = performance.now();
const rest = () => { do frame(clock += 16); while (requested); };
const press = (id, key, shiftKey = false) =>
  $(id).dispatchEvent(new KeyboardEvent("keydown", {key, shiftKey, bubbles: true, cancelable: true}));
rest();
"""


def test_the_page_runs_under_its_own_policy_and_a_changed_script_does_not(tmp_path):
    page = render_explorer()
    assert "error 0.361" in dump(page, tmp_path)
    assert "error 0.361" not in dump(page.replace("const ORDER = 5;", "const ORDER = 4;"), tmp_path)


def test_before_any_click_the_open_loop_succeeds_where_the_node_fails(tmp_path):
    script = "return MODELS.map((name) => [followed(name).loss, followed(name).right]);"
    losses = [loss for loss, _ in probe(render_explorer(), script, tmp_path)]
    assert losses[0] > 0.3
    assert max(losses[1:]) < 1e-4
    right = [share for _, share in probe(render_explorer(), script, tmp_path, address="#task=annuli")]
    assert right[1:] == pytest.approx([1, 1, 1])


def test_shipped_weights_were_trained_by_this_program(tmp_path):
    script = """return Object.entries(SHIPPED).map(([name, {curve}]) => {
      const [task, kind] = name.split("/");
      state = readAddress(`#task=${task}`);
      const run = new Run(kind, makeTask(task), 0);
      while (run.steps <= curve[1][0]) run.train(1e-3, 0.005);
      const fits = shippedWeights(kind, 0).weights.length === run.model.parameters;
      return {name, fits, shipped: curve[1][1], again: Number(run.curve.at(-1)[1].toPrecision(3))};
    });"""
    for seen in probe(render_explorer(), script, tmp_path):
        assert seen["fits"], seen
        assert seen["shipped"] == seen["again"], f"{seen}: run lab/scripts/pretrain_explorer.mjs"


def test_keys_move_the_sample_and_edit_points(tmp_path):
    script = """
    const seen = {start: state.sample};
    press("input", "ArrowRight"); press("input", "ArrowUp", true); rest();
    seen.moved = state.sample; seen.address = location.hash; seen.status = $("status").textContent;
    press("flow", "PageDown"); seen.first = state.sample;
    press("input", "1"); seen.more = task.data.x.length;
    press("input", "Delete"); press("input", "Delete"); seen.fewer = task.data.x.length;
    return seen;"""
    seen = probe(render_explorer(), REST + script, tmp_path, address="#task=own&x=0.5,0.5")
    assert (seen["start"], seen["moved"]) == ([0.5, 0.5], [0.55, 0.51])
    assert "x=0.55,0.51" in seen["address"]
    assert "The sample at (0.55, 0.51) ends at" in seen["status"]
    assert (seen["more"], seen["fewer"]) == (33, 31)


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
    mouse, finger, elsewhere = probe(render_explorer(), REST + script, tmp_path)
    assert (mouse, finger) == (pytest.approx(-0.5, abs=0.01), pytest.approx(0.25, abs=0.01))
    assert elsewhere == finger  # a finger that starts elsewhere scrolls the page


def test_points_are_drawn_by_dragging(tmp_path):
    script = """
    $("input").setPointerCapture = () => {};
    $("clear").click(); document.querySelector("[name=tool][value='1']").click(); rest();
    const box = $("input").getBoundingClientRect();
    const act = (name, x, y) => $("input").dispatchEvent(new PointerEvent(name, {pointerId: 1, pointerType: "touch",
      clientX: box.left + surfaces.input.px(x), clientY: box.top + surfaces.input.py(y)}));
    act("pointerdown", 0, 0); act("pointermove", 0.01, 0); act("pointermove", 0.5, 0.2); act("pointerup", 0.5, 0.2);
    act("pointermove", 1, 1); rest();
    return {x: task.data.x, y: task.data.y, address: location.hash};"""
    seen = probe(render_explorer(), REST + script, tmp_path, address="#task=own")
    assert seen["y"] == [1, 1]
    assert seen["x"] == [pytest.approx([0, 0], abs=0.01), pytest.approx([0.5, 0.2], abs=0.01)]
    assert "points=" in seen["address"]


def test_training_lowers_the_loss_and_its_link_repeats_it(tmp_path):
    script = """
    $("restart").click(); rest();
    const before = followed(state.model).loss;
    $("train").click();
    while (current().steps < 40) frame(clock += 16);
    $("train").click(); rest();
    const after = followed(state.model).loss;
    const address = writeAddress(state, current());
    load("#task=annuli"); rest();
    load(address); rest();
    return {before, after, again: followed(state.model).loss, address};"""
    seen = probe(render_explorer(), REST + script, tmp_path)
    assert seen["after"] < 0.5 * seen["before"]
    assert seen["again"] == seen["after"]
    assert re.search(r"start=seed&train=\d+,0.005,0.001$", seen["address"])


def test_without_points_there_is_nothing_to_train_or_to_print(tmp_path):
    script = """$("clear").click(); rest();
      const off = ["train", "step", "python"].map((id) => $(id).disabled);
      return {off, caption: $("caption").textContent, failed: current().failed};"""
    seen = probe(render_explorer(), REST + script, tmp_path, address="#task=own")
    assert seen == {"off": [True] * 3, "caption": "Add points of both classes, then train.", "failed": False}


def test_a_wrong_address_gives_the_defaults(tmp_path):
    addresses = ["", "#task=x&model=y&seed=-3&tolerance=7&lr=a&t=9&x=1,2,3&train=a,b;1e9,1,1", "#x=NaN", "#x=99", "#%"]
    script = f"return {json.dumps(addresses)}.map(readAddress);"
    seen = probe(render_explorer(), script, tmp_path)
    assert all(each == seen[0] for each in seen)
    assert seen[0]["history"] == []


@pytest.mark.parametrize("address", ["#task=line", "#task=own"])
def test_a_phone_never_scrolls_sideways(tmp_path, address):
    script = """return {inner: innerWidth, scroll: document.documentElement.scrollWidth,
      small: [...document.querySelectorAll("button, select")].filter((e) => e.offsetWidth)
        .map((e) => e.offsetHeight).filter((height) => height < 36)};"""
    seen = probe(render_explorer(), REST + script, tmp_path, "--window-size=400,800", address=address)
    assert seen["scroll"] <= seen["inner"] <= 500
    assert seen["small"] == []


def test_every_control_has_a_name(tmp_path):
    script = """return [...document.querySelectorAll("button, select, input, canvas:not([aria-hidden])")].filter((e) =>
      !(e.textContent.trim() || e.labels?.length || e.getAttribute("aria-label") || e.getAttribute("aria-labelledby")))
      .map((e) => e.outerHTML);"""
    assert probe(render_explorer(), script, tmp_path) == []


def test_in_the_dark_page_and_figures_are_dark(tmp_path):
    script = """const style = getComputedStyle(document.body);
      return [style.backgroundColor, style.color, css(palette.paper), css(palette.ink)];"""
    paper, ink, drawn, pen = map(brightness, probe(render_explorer(), script, tmp_path, DARK))
    assert paper < ink
    assert drawn < pen


def test_reduced_motion_moves_time_in_jumps(tmp_path):
    script = """
    const seen = new Set();
    $("play").click();
    while (playing) { frame(clock += 16); seen.add(state.t); }
    return [...seen];"""
    seen = probe(render_explorer(), REST + script, tmp_path, "--force-prefers-reduced-motion")
    assert 5 < len(seen) <= 12
    assert all(round(10 * t) == pytest.approx(10 * t) for t in seen)


def test_the_axis_of_the_loss_ends_at_the_last_step(tmp_path):
    script = """const texts = [], ends = [];
    const surface = {begin() {}, frame(x) { ends.push(x[1]); }, line() {}, text(text) { texts.push(text); },
      px: () => 0, py: () => 0, width: 1, height: 1};
    drawLoss(surface, palette, [[0, 1], [392, 0.1]], 400);
    return [ends[0], texts.at(-1)];"""
    assert probe(render_explorer(), script, tmp_path) == [400, "400 steps"]
