import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ncode_lab.figures.curves import Quantity, align_seeds, draw_curves

LOSS = Quantity("train", "loss", "loss")


def seed(steps, values, kind="train", name="loss"):
    return {f"{kind} step": list(steps), f"{kind} {name}": list(values)}


@given(
    st.lists(
        st.lists(st.floats(-10, 10), min_size=4, max_size=4),
        min_size=1,
        max_size=5,
    )
)
def test_the_line_is_the_mean_of_seeds_and_the_band_their_range(rows):
    figure = draw_curves({"node": [seed(range(4), row) for row in rows]}, [LOSS])
    values, (panel,) = torch.tensor(rows, dtype=torch.float64), figure.axes
    assert panel.lines[0].get_ydata().tolist() == pytest.approx(values.mean(0).tolist(), abs=1e-9)
    assert len(panel.collections) == (len(rows) > 1)
    for band in panel.collections:
        (path,) = band.get_paths()
        for step in range(4):
            edges = path.vertices[path.vertices[:, 0] == step, 1]
            assert {*edges.tolist()} == {float(values[:, step].amin()), float(values[:, step].amax())}


def test_seeds_that_were_read_at_other_steps_are_compared_at_the_same_ones():
    straight = [seed([0, 10], [0.0, 10.0]), seed([0, 3, 6, 10], [0.0, 3.0, 6.0, 10.0])]
    steps, values = align_seeds(straight[::-1], LOSS)
    assert steps.tolist() == [0, 3, 6, 10]
    torch.testing.assert_close(values.amin(0), values.amax(0))


def test_a_seed_that_stopped_early_ends_the_mean():
    steps, _ = align_seeds([seed([1, 2, 3], [1, 2, 3]), seed([1, 2], [1, 2])], LOSS)
    assert steps.tolist() == [1, 2]


def test_readings_without_a_number_are_left_out():
    _, values = align_seeds([seed([1, 2, 3], [1.0, math.nan, 3.0])], LOSS)
    assert values.tolist() == [[1.0, 3.0]]


def test_nothing_logged_is_nothing_drawn():
    assert align_seeds([{}], LOSS) is None
    assert align_seeds([seed([], [])], LOSS) is None
    figure = draw_curves({"node": [{}]}, [LOSS])
    assert not figure.axes[0].lines


def test_numbers_are_scaled_to_their_unit():
    quantity = Quantity("evaluation", "accuracy", "accuracy, %", scale=100)
    _, values = align_seeds([seed([1, 2], [0.5, 1.0], "evaluation", "accuracy")], quantity)
    assert values.tolist() == [[50.0, 100.0]]


def test_each_model_has_one_line_and_one_entry_in_the_legend():
    seen = [seed([1, 2], [1.0, 0.5]), seed([1, 2], [2.0, 0.1])]
    figure = draw_curves({"node": seen, "open-loop": seen[:1]}, [LOSS, LOSS])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["NODE", "N-CODE open loop"]
    first = figure.axes[0]
    assert len(first.lines) == 2
    assert len(first.collections) == 1  # a band for the model with two seeds only
    assert first.lines[0].get_ydata().tolist() == pytest.approx([1.5, 0.3])
