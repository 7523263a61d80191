import torch
from ncode_lab.experiments.vanderpol.figures import Fit, draw_learning, draw_vanderpol


def a_fit(mu: float, seen: float = 6.0) -> Fit:
    ts = torch.linspace(0, 12, 25)
    return Fit(ts, 2 * ts.cos(), 2 * (1.1 * ts).cos(), ts.sin(), seen, mu)


def test_each_regime_has_a_row_with_both_controls_and_what_they_learnt():
    regimes = {mu: {"constant": a_fit(0.7), "dynamic": a_fit(mu)} for mu in (0.5, 5.0)}
    figure = draw_vanderpol(regimes)
    courses = figure.axes[::2]
    assert [len(panel.lines) for panel in courses] == [3, 3]
    titles = [panel.get_title(loc="left") for panel in courses]
    assert "= 5;" in titles[1]
    assert "dynamic control: 5.000" in titles[1]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["oscillation", "not fitted to", "constant control", "dynamic control"]


def test_the_part_that_was_not_fitted_to_is_marked():
    (course, _) = draw_vanderpol({1.0: {"dynamic": a_fit(1.0)}}).axes
    (ground,) = course.patches
    assert ground.get_x() == 6.0
    (course, _) = draw_vanderpol({1.0: {"dynamic": a_fit(1.0, seen=12.0)}}).axes
    assert not course.patches


def test_every_seed_has_a_line_and_every_regime_its_true_value():
    seed = {"train step": [1, 2, 3], "train mu": [1.0, 2.0, 4.0]}
    figure = draw_learning({2.0: [seed, seed], 5.0: [seed]})
    assert len(figure.axes[0].lines) == 2 + 3
    assert len(figure.legends[0].get_texts()) == 2
