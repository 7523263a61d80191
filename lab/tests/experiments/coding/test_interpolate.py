import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from ncode_lab.experiments import run
from ncode_lab.experiments.coding.interpolate import Interpolate, arc, line, square
from ncode_lab.training import RunOptions

import ncode


def test_lines_arcs_and_squares_between_codes_are_drawn(options, source, results):
    settings = {**Interpolate.presets["smoke"], "source": str(source), "models": ("auton-code", "vae")}
    folder = run(Interpolate(**settings), "smoke", options)
    assert {path.stem for path in (folder / "figures").glob("*.png")} == {"lines", "arcs", "squares"}
    metrics = results(folder)["vae"]["metrics"]
    assert set(metrics) == {"error", "distance half-way", "distance half-way, arcs", "distance floor"}


@given(seed=st.integers(0, 10_000), m=st.integers(2, 6), steps=st.integers(2, 6), scale=st.floats(0.01, 100.0))
def test_an_arc_has_both_ends_equal_angles_and_norms_in_equal_steps(seed, m, steps, scale):
    first, second = torch.randn(2, 3, m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    second = scale * second
    assume(bool((torch.cosine_similarity(first, second).abs() < 0.99).all()))
    found = arc(first, second, steps)
    torch.testing.assert_close(found[:, 0], first)
    torch.testing.assert_close(found[:, -1], second)
    sizes = found.norm(dim=2)
    torch.testing.assert_close(sizes, line(sizes[:, :1], sizes[:, -1:], steps)[..., 0])
    angles = torch.cosine_similarity(found[:, 1:], found[:, :-1], dim=2).acos()
    torch.testing.assert_close(angles, angles[:, :1].expand_as(angles))


@pytest.mark.parametrize("factor", [2.0, -2.0, 0.0])
def test_an_arc_between_codes_of_one_line_or_at_the_mean_is_that_line(factor):
    first = torch.randn(3, 5)
    torch.testing.assert_close(arc(first, factor * first, 4), line(first, factor * first, 4))


def test_fewer_test_images_than_pairs_need_are_refused(tmp_path):
    settings = {**Interpolate.presets["smoke"], "test_images": 11}
    with pytest.raises(ncode.InputError, match="6 pairs need 12 test images; there are 11"):
        run(Interpolate(**settings), "smoke", RunOptions(out=tmp_path, device="cpu", quiet=True))


def test_a_square_has_its_three_codes_in_corners_and_their_sum_in_the_fourth():
    found = square(torch.zeros(1), torch.ones(1), torch.full((1,), 2.0), 2)
    assert found[..., 0].tolist() == [[0.0, 1.0], [2.0, 3.0]]
