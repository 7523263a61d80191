import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from ncode_lab.experiments.coding.figures import (
    Map,
    Neighbours,
    draw_lines,
    draw_maps,
    draw_neighbours,
    draw_orbit,
    draw_reconstructions,
    draw_samples,
    draw_scores,
    draw_squares,
    draw_training,
)
from ncode_lab.experiments.coding.models import KINDS
from ncode_lab.figures.style import COLOURS, tile


def pictures(*shape, side=8):
    return torch.randint(256, (*shape, 3, side, side), dtype=torch.uint8)


def texts(figure):
    figure.draw_without_rendering()
    found = [
        text.get_text()
        for axes in figure.axes
        for text in (axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts)
    ]
    legends = [axes.get_legend() for axes in figure.axes if axes.get_legend()] + figure.legends
    return found + [text.get_text() for legend in legends for text in legend.get_texts()]


def test_every_model_has_a_colour_of_its_own():
    assert len({COLOURS[kind] for kind in KINDS}) == len(KINDS)


def test_images_stand_row_by_row_on_white():
    images = pictures(5)
    sheet = torch.from_numpy(tile(images, columns=3, gap=2))
    assert torch.equal(sheet[:8, 10:18].movedim(-1, 0), images[1])
    assert torch.equal(sheet[10:18, :8].movedim(-1, 0), images[3])
    assert (sheet[10:, 20:] == 255).all()


def test_grey_images_are_shown_as_they_are():
    grey = torch.full((1, 1, 4, 4), 7, dtype=torch.uint8)
    assert (tile(grey, 1) == 7).all()


def test_reconstructions_name_their_models_beside_the_test_images():
    assert texts(draw_reconstructions(pictures(4), {"auton-code": pictures(4)}))[2::3] == ["test images", "AutoN-CODE"]


def test_names_of_models_are_whole_when_reconstructions_are_drawn_for_the_first_time():
    figure = draw_reconstructions(pictures(4), {kind: pictures(4) for kind in KINDS})
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    for panel in figure.axes:
        assert panel.yaxis.label.get_window_extent(canvas.get_renderer()).x0 >= 0


def test_the_last_column_of_an_orbit_is_the_truth():
    figure = draw_orbit(pictures(3, 5), pictures(3), torch.linspace(0, 10, 5))
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["0", "2.5", "5", "7.5", "10"]
    assert [tick.get_text() for tick in figure.axes[1].get_xticklabels()] == ["truth"]


def test_training_curves_name_each_model_once():
    seen = {"evaluation step": [1, 2], "evaluation error": [0.2, 0.1], "train step": [1, 2], "train error": [0.3, 0.1]}
    found = texts(draw_training({"ae": [seen, seen]}, {"PCA": 0.05}))
    assert [found.count(name) for name in ("AE", "PCA")] == [1, 1]


def test_errors_have_plain_numbers_as_in_tables():
    seen = {"evaluation step": [1, 2], "evaluation error": [0.08, 0.002], "train step": [], "train error": []}
    figure = draw_training({"ae": [seen]}, {})
    figure.canvas.draw()
    found = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert {"0.002", "0.005", "0.01", "0.02", "0.05"} <= set(found)


def test_scores_show_both_protocols_the_floor_and_the_papers_stars():
    line = {10: 3.0, 100: 2.0}
    figure = draw_scores({"ae": {"paper": line, "honest": line}}, {"ae": 1.0}, "components", "FID", {"ae": line})
    assert len(figure.axes[0].get_lines()) == 4
    assert {"the paper's numbers", "AE", "coded and decoded test images"} <= set(texts(figure))


def test_samples_and_neighbours_have_a_panel_a_density():
    figure = draw_samples({"ae": {"ten": pictures(36)}, "vae": {"ten": pictures(36)}})
    assert [panel.get_title() for panel in figure.axes] == ["ten", ""]
    assert [panel.get_ylabel() for panel in figure.axes] == ["AE", "VAE"]
    some = Neighbours(pictures(3), pictures(3, 4), 0.9)
    assert "10 components\n90 % nearer to test" in texts(draw_neighbours({"10 components": some}))
    three = draw_neighbours({"a": some, "b": some, "c": some})
    assert {"a\n90 % nearer to test", "b\n90 % nearer to test", "c\n90 % nearer to test"} <= set(texts(three))
    assert three.axes[0].get_subplotspec().get_gridspec().nrows == 2


def test_maps_stand_side_by_side_by_mixture_and_by_label():
    labels = torch.arange(30) % 3
    found = texts(draw_maps({"ae": Map(torch.randn(30, 2), labels, labels, 0.5)}, ("a", "b", "c")))
    assert {"mixture: 50.0 % agree with labels", "labels", "a", "b", "c"} <= set(found)


def test_squares_mark_their_three_corners():
    found = texts(draw_squares({"ae": pictures(3, 3)}))
    assert {"A", "B", "C"} <= set(found)
    assert len(draw_lines({"ae": pictures(2, 5), "vae": pictures(2, 5)}).axes) == 2
