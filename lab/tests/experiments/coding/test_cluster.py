from dataclasses import replace

import pytest
import torch
from ncode_lab.data import ImageSets, draw_digits
from ncode_lab.experiments import run
from ncode_lab.experiments.coding.cluster import Cluster, best_mixture, match_labels, most_informative, principal
from safetensors.torch import load_file

import ncode


@pytest.mark.slow
def test_clusters_of_codes_and_of_pixels_are_compared_with_labels(options, source, results):
    folder = run(Cluster(**{**Cluster.presets["smoke"], "source": str(source)}), "smoke", options)
    found = results(folder)
    assert set(found["pixels"]["metrics"]) == {column.metric for column in Cluster.columns}
    assert set(found["auton-code"]["metrics"]) == {column.metric for column in Cluster.columns}
    assert all(0 <= value <= 1 for result in found.values() for value in result["metrics"].values())
    assert {path.stem for path in (folder / "figures").glob("*.png")} == {"maps", "wide-maps"}


def test_pixels_can_be_clustered_without_any_model():
    settings = {**Cluster.presets["smoke"], "models": ()}
    (trial,) = Cluster(**settings).trials([0])
    assert (trial.model, trial.dataset) == ("pixels", Cluster(**{**settings, "models": ("ae",)}).trials([0])[0].dataset)
    with pytest.raises(ncode.InputError, match="models must name at least one"):
        Cluster(**settings, pixels=False)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"latent": 1}, "latent must be at least 2; given 1"),
        ({"threads": 10**6}, "threads must be at most 256"),
        ({"perplexity": 0.5}, "perplexity must be at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes, sentence):
    with pytest.raises(ncode.InputError, match=sentence):
        Cluster(**{**Cluster.presets["smoke"], **changes})


def test_whitened_codes_are_the_same_whatever_linear_map_a_model_put_behind_its_code():
    codes = torch.randn(60, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    skewed = codes @ torch.tensor([[5.0, 1.0, 0.0], [0.0, 0.1, 2.0], [1.0, 0.0, 1.0]], dtype=torch.float64) + 7
    found, others = principal(codes, 3), principal(skewed, 3)
    torch.testing.assert_close(torch.cdist(found, found), torch.cdist(others, others))


def test_principal_components_are_the_widest_directions_and_none_in_which_codes_do_not_differ():
    codes = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 9.0, 0.1])
    flat = torch.cat([codes, codes[:, :1], torch.full((60, 1), 3.0)], 1)
    assert principal(flat, 5).shape == (60, 3)
    widest = principal(codes, 1)[:, 0]
    assert torch.stack([widest, codes[:, 1]]).corrcoef()[0, 1].abs() > 0.99


def test_directions_that_tell_the_most_about_images_are_those_of_images_whatever_a_model_makes_of_them():
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(80, 4, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 9.0, 0.1, 3.0])
    images = images - images.mean(0)
    skewed = images @ torch.randn(4, 4, generator=generator, dtype=torch.float64) + 7
    found, wanted = most_informative(principal(skewed, 4), images, 2), principal(images, 2)
    torch.testing.assert_close(torch.cdist(found, found), torch.cdist(wanted, wanted))


def test_only_the_ways_that_were_asked_for_are_gone(options, source, results):
    settings = {**Cluster.presets["smoke"], "source": str(source), "ways": ("k-means", "mixture")}
    folder = run(Cluster(**settings), "smoke", options)
    wanted = {f"{way} {name}" for way in ("k-means", "mixture") for name in ("accuracy", "nmi")}
    assert all(set(result["metrics"]) == wanted for result in results(folder).values())
    assert not [*folder.glob("figures/*.png"), *folder.glob("trials/*/kept/*")]


@pytest.mark.parametrize(
    ("dataset", "model", "directions", "ridge"),
    [
        ("mnist", "ae", 25, 0.3),
        ("cifar10", "ae", 64, 0.01),
        ("cifar10", "ae-wide", 64, 0.01),
    ],
)
def test_directions_and_ridge_are_those_of_the_data_set(dataset, model, directions, ridge):
    settings = Cluster(**{**Cluster.presets["smoke"], "dataset": dataset})
    assert settings.directions(model) == directions
    assert settings.ridge == ridge


def test_training_images_beside_the_test_images_are_not_counted(options, source):
    settings = {**Cluster.presets["smoke"], "source": str(source), "pixels": False, "map_images": 100}
    folder = run(Cluster(**settings), "smoke", options)
    (kept,) = folder.glob("trials/*/kept/wide-map.safetensors")
    assert {len(each) for each in load_file(kept).values()} == {60}


def test_images_without_classes_are_not_clustered(monkeypatch):
    faces = replace(draw_digits(20, generator=0), classes=())
    monkeypatch.setattr(Cluster, "sets", lambda self: ImageSets(faces, faces))
    with pytest.raises(ncode.InputError, match="celeba has no classes"):
        Cluster(**{**Cluster.presets["smoke"], "dataset": "celeba"}).trials([0])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"perplexity": 0.5}, "perplexity must be at least 1; given 0.5"),
        ({"test_images": 20}, "10 clusters and a perplexity of 8 need at least 25 test images; there are 20"),
        ({"ways": ()}, "ways must name at least one of: mixture"),
        ({"ways": ("mixtures",)}, "mixture"),
        ({"starts": 0}, "starts must be above 0"),
        ({"perplexity": 20.0}, "a perplexity of 20 need at least 61 test images; there are 60"),
    ],
)
def test_clusters_that_do_not_fit_the_images_are_refused_before_anything_is_trained(changes, sentence):
    with pytest.raises(ncode.InputError, match=sentence):
        Cluster(**{**Cluster.presets["smoke"], **changes}).trials([0])


def test_clusters_get_the_labels_that_most_of_their_images_have():
    assert match_labels(torch.tensor([0, 0, 1, 1]), torch.tensor([5, 5, 3, 3])).tolist() == [0, 0, 1, 1]


def test_the_best_of_several_mixtures_tells_groups_that_are_far_apart():
    codes = torch.cat([torch.randn(50, 2), torch.randn(50, 2) + 9])
    assert best_mixture(codes, 2, starts=2, seed=0).predict(codes)[:50].unique().numel() == 1
