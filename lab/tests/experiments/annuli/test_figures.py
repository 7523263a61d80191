import pytest
import torch
from ncode_lab.experiments.annuli.figures import (
    Boundary,
    Flows,
    Paths,
    draw_boundaries,
    draw_fields,
    draw_flows,
    draw_trajectories,
)


def a_boundary(accuracy: float = 1.0) -> Boundary:
    axis = torch.linspace(-2, 2, 21)
    probability = ((axis[:, None] ** 2 + axis**2) > 0.6).float()
    return Boundary(axis, probability, torch.tensor([[0.1, 0.2], [1.2, 0.0]]), torch.tensor([0, 1]), accuracy)


def some_flows(reach: float = 2.0) -> Flows:
    axis = torch.linspace(-reach, reach, 7)
    xs = torch.stack(
        [torch.linspace(0, 1, 11)[:, None].expand(-1, 2), -torch.linspace(0, 1, 11)[:, None].expand(-1, 2)]
    )
    return Flows(torch.linspace(0, 1, 3), axis, torch.ones(2, 3, 7, 7, 2), torch.linspace(0, 1, 11), xs)


@pytest.mark.parametrize(("share", "shown"), [(1.0, "100 %"), (0.99999, "99.9 %"), (0.5, "50.0 %")])
def test_less_than_all_is_never_shown_as_100(share, shown):
    figure = draw_boundaries({"node": a_boundary(share)})
    assert figure.axes[0].get_title().endswith(f"{shown} of held-out points")


def test_each_model_has_a_square_panel_with_points_of_both_classes():
    figure = draw_boundaries({"node": a_boundary(), "open-loop": a_boundary()})
    panels = figure.axes[:2]
    assert all(panel.get_aspect() == 1.0 for panel in panels)
    assert all(sum(len(each.get_offsets()) for each in panel.collections[-2:]) == 2 for panel in panels)


def test_a_model_that_sees_one_class_only_has_no_boundary():
    one = a_boundary()._replace(probability=torch.full((21, 21), 0.9))
    figure = draw_boundaries({"node": one})
    figure.canvas.draw()
    assert len(figure.axes[0].collections) == 2  # the points alone


def test_the_read_out_s_boundary_goes_through_its_points():
    paths = Paths(torch.randn(6, 4, 2), torch.tensor([0, 1] * 3), torch.tensor([1.0, 2.0, -1.0]))
    (panel,) = draw_trajectories({"node": paths}).axes
    (line,) = panel.lines
    for x, y in zip(*line.get_data(), strict=True):
        assert x + 2 * y - 1 == pytest.approx(0, abs=1e-4)


def test_every_trajectory_lies_within_its_panel():
    paths = Paths(10 * torch.randn(6, 4, 2), torch.tensor([0, 1] * 3), torch.zeros(0), zeros=1)
    (panel,) = draw_trajectories({"anode": paths}).axes
    (left, right), (bottom, top) = panel.get_xlim(), panel.get_ylim()
    xs, ys = paths.xs.unbind(-1)
    assert left < xs.min() < xs.max() < right
    assert bottom < ys.min() < ys.max() < top
    assert right - left == pytest.approx(top - bottom)
    assert not panel.lines


def test_a_point_has_gone_as_far_as_the_panel_s_time():
    figure = draw_flows(some_flows(), "closed-loop")
    assert [panel.get_title() for panel in figure.axes[:3]] == ["t = 0.00", "t = 0.50", "t = 1.00"]
    ways = [panel.lines[0].get_xdata()[-1] for panel in figure.axes[:3]]
    assert ways == pytest.approx([0.0, 0.5, 1.0])


def test_fields_of_all_models_stand_side_by_side():
    figure = draw_fields({"node": some_flows(), "open-loop": some_flows(5.0)})
    assert len(figure.axes) == 4
    figure.canvas.draw()
