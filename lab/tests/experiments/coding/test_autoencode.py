import json
import math
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from ncode_lab.data import Images, draw_digits
from ncode_lab.experiments import PRESETS
from ncode_lab.experiments.coding.autoencode import Autoencode, orbit, principal_error
from ncode_lab.experiments.coding.cluster import Cluster
from ncode_lab.experiments.coding.codes import decode, encode, to_bytes, to_floats
from ncode_lab.experiments.coding.generate import Generate
from ncode_lab.experiments.coding.interpolate import Interpolate
from ncode_lab.experiments.coding.models import KINDS, build_autoencoder
from ncode_lab.experiments.coding.training import Code, errors
from ncode_lab.experiments.runner import run
from ncode_lab.metrics import Inception
from ncode_lab.training import Result, RunOptions, Trial
from ncode_lab.training.schedules import HalveOnPlateau
from safetensors.torch import save_file
from torch.nn.functional import mse_loss

import ncode


def smoke(**changes):
    return Autoencode(**{**Autoencode.presets["smoke"], **changes})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    options = RunOptions(out=tmp_path_factory.mktemp("runs"), device="cpu", quiet=True)
    return run(smoke(models=("auton-code", "ae-wide")), "smoke", options)


@pytest.fixture(scope="module")
def result(finished):
    return json.loads(next(finished.glob("trials/auton-code*/result.json")).read_text())


@pytest.mark.slow
def test_a_run_leaves_figures_and_errors_beside_those_of_principal_components(finished, result):
    assert {path.stem for path in (finished / "figures").glob("*.png")} == {"reconstructions", "orbit", "training"}
    metrics = result["metrics"]
    assert {"error", "train error", "held-out error", "pca error", "distance", "kernel distance"} <= set(metrics)
    assert all(math.isfinite(value) for value in metrics.values())


def test_what_random_features_measure_is_not_called_fid(finished, result):
    assert not any("fid" in name for name in result["metrics"])
    columns = json.loads((finished / "run.json").read_text())["columns"]
    assert not any("FID" in column["title"] for column in columns)
    assert any("random features" in column["title"] for column in columns)


def test_generated_images_have_a_name_of_their_own_in_tables(tmp_path, monkeypatch):
    monkeypatch.delenv("NCODE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert {trial.dataset for trial in smoke(data_dir=str(tmp_path)).trials([0])} == {"mnist (generated)"}


def test_with_a_data_set_that_is_not_there_the_files_to_get_are_named(tmp_path, monkeypatch):
    monkeypatch.delenv("NCODE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ncode.InputError, match="CelebA was not found"):
        smoke(dataset="celeba", fallback=False, data_dir=str(tmp_path)).trials([0])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"models": ("auton",)}, 'did you mean "auton-code"'),
        ({"norm": "l1"}, "norm"),
        ({"latent": -3}, "latent must be at least 0; given -3"),
        ({"latent": 4, "nonzeros": 5}, "4 places, as the code has dimensions; 5 non-zeros do not fit"),
        ({"epochs": -1}, "epochs must be at least 0"),
        ({"gain": -1.0}, "gain must be at least 0"),
        ({"gain": 9.0}, r"gain must be at most 8: the code may grow by exp\(10 gain\)"),
        ({"shift": -2}, "shift must be at least 0, or -1; given -2"),
        ({"still": 1.5}, "still must lie between 0 and 1; given 1.5"),
        ({"source": "somewhere"}, "no run.json"),
        ({"score": "fit"}, 'did you mean "fid"'),
        ({"score": "fid", "fid_weights": "nowhere.safetensors"}, "there is no file nowhere.safetensors"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_a_sentence(changes, sentence):
    with pytest.raises(ncode.InputError, match=sentence):
        smoke(**changes)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [({"batch": 1}, "batches of one image cannot be normalised"), ({"images": 2}, "at least 4 images, .* given 2")],
)
def test_too_few_images_are_refused_before_training(changes, sentence, tmp_path):
    options = RunOptions(out=tmp_path, device="cpu", quiet=True)
    with pytest.raises(ncode.InputError, match=sentence):
        run(smoke(models=("ae",), **changes), "smoke", options)


def test_damaged_weights_of_the_fid_network_are_named_and_nothing_takes_their_place(tmp_path):
    broken = tmp_path / "weights.safetensors"
    broken.write_bytes(b"not weights")
    options = RunOptions(out=tmp_path / "runs", device="cpu", quiet=True)
    with pytest.raises(ncode.InputError, match=r"weights.safetensors is damaged"):
        run(smoke(models=("ae",), score="fid", fid_weights=str(broken)), "smoke", options)
    assert not (tmp_path / "runs").exists()


def test_weights_of_the_right_shapes_that_are_not_the_published_ones_are_refused_before_training(tmp_path):
    other = tmp_path / "weights.safetensors"
    save_file(Inception().state_dict(), other)
    options = RunOptions(out=tmp_path / "runs", device="cpu", quiet=True)
    with pytest.raises(ncode.InputError, match=r"weights.safetensors does not hold the published weights"):
        run(smoke(models=("ae",), score="fid", fid_weights=str(other)), "smoke", options)
    assert not (tmp_path / "runs").exists()


def test_without_weights_of_the_fid_network_another_score_is_taken_and_named(tmp_path, monkeypatch):
    monkeypatch.delenv("NCODE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    experiment = smoke(score="fid")
    assert experiment.weights is None
    assert not any("fid" in column.metric for column in experiment.columns)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_training_makes_the_error_of_every_model_small(kind):
    torch.manual_seed(0)
    settings = smoke(models=(kind,), images=64, width=0.3, lr=5e-3, beta=0.05)
    task = Code(settings, Trial(kind, "mnist"), settings.sets())
    optimiser = task.optimiser(task.model.parameters())
    before = errors(task.model.eval(), task.train)["error"]
    task.model.train()
    for step in range(40):
        loss = task.loss(task.model, task.batch(step, torch.Generator().manual_seed(step)))
        optimiser.zero_grad()
        loss.value.backward()
        optimiser.step()
    assert errors(task.model.eval(), task.train)["error"] < 0.6 * before


def test_held_out_images_are_not_trained_on():
    settings = smoke()
    task = Code(settings, Trial("ae", "mnist"), settings.sets())
    seen = {image.numpy().tobytes() for image in task.train.images}
    assert not seen & {image.numpy().tobytes() for image in task.held_out.images}


def test_the_learning_rate_is_halved_on_plateaus_only_and_goes_on_from_a_saved_state():
    def course(errors, state=None):
        optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        schedule = HalveOnPlateau(optimiser, patience=2, every=1)
        if state:
            schedule.load_state_dict(state)
        for error in errors:
            optimiser.step()
            schedule.observe(error)
            schedule.step()
        return schedule

    assert course([5.0, 4.0, 3.0, 2.0, 1.0]).get_last_lr() == [1.0]
    assert course([1.0, 1.0, 1.0, 1.0]).get_last_lr() == [0.5]
    half = course([1.0, 1.0]).state_dict()
    assert course([1.0, 1.0], half).get_last_lr() == [0.5]


def test_the_error_is_the_mean_square_over_all_test_images():
    settings = smoke()
    model, test = build_autoencoder("ae", settings).eval(), settings.sets().test
    with torch.no_grad():
        expected = mse_loss(model(test.float()), test.float())
    assert errors(model, test, batch=7)["error"] == pytest.approx(float(expected), rel=1e-5)


def test_principal_components_have_the_error_of_a_singular_value_decomposition():
    train, test = draw_digits(200, generator=0), draw_digits(50, generator=1)
    x, y = train.float().flatten(1).double(), test.float().flatten(1).double()
    axes = torch.linalg.svd(x - x.mean(0), full_matrices=False).Vh[:12]
    left = (y - x.mean(0)) - (y - x.mean(0)) @ axes.T @ axes
    assert principal_error(train, test, 12) == pytest.approx(float(left.square().mean()), rel=1e-3)


def test_an_orbit_ends_at_what_comes_back_of_the_image():
    settings = smoke()
    model, images = build_autoencoder("auton-code", settings).eval(), settings.sets().test.images[:3]
    found = orbit(model, images)
    back = to_bytes(model(to_floats(images)).detach())
    assert found["orbit"].shape[:2] == (3, 11)
    assert (found["orbit"][:, -1].int() - back.int()).abs().max() <= 1
    assert torch.equal(found["orbit"][0, 0], found["orbit"][1, 0])


def test_images_are_coded_in_batches_as_they_are_alone():
    settings = smoke()
    model, test = build_autoencoder("auton-code", settings).eval(), settings.sets().test
    torch.testing.assert_close(encode(model, test, batch=7), encode(model, test, batch=60))
    codes = encode(model, test)
    torch.testing.assert_close(decode(model, codes, batch=7).int(), decode(model, codes).int(), rtol=0, atol=1)


def test_images_of_another_size_than_the_coders_are_refused():
    settings = smoke()
    model = build_autoencoder("ae", settings).eval()
    wrong = Images(torch.zeros(2, 1, 32, 32, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), "wrong")
    with pytest.raises(ncode.InputError, match=r"\(batch, 1, 28, 28\); given \(2, 1, 32, 32\)"):
        encode(model, wrong)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("experiment", [Autoencode, Generate, Cluster, Interpolate])
def test_results_of_a_preset_are_named_by_the_data_set_and_the_papers_recipe_is_named_too(
    experiment, preset, monkeypatch
):
    monkeypatch.setattr(experiment, "data_name", lambda self: self.dataset)
    settings = experiment.preset(preset)
    label = f"{settings.dataset}, paper" if preset == "paper" else settings.dataset
    assert {settings.label(model) for model in settings.models} == {label}


@pytest.mark.parametrize(
    ("changes", "model", "label"),
    [
        ({"gain": 3.0, "norm": "l2"}, "auton-code", "cifar10, norm l2, gain 3"),
        ({"gain": 3.0, "norm": "l2"}, "ae", "cifar10"),
        ({"beta": 0.5}, "vae", "cifar10, beta 0.5"),
        ({"beta": 0.5}, "auton-code", "cifar10"),
        ({"texture": 3.0}, "ae", "cifar10, texture 3"),
        ({"flips": not Autoencode.preset("full").flips}, "ae", "cifar10, {}flips"),
        ({"epochs": 7, "images": 500}, "ae", "cifar10, epochs 7, images 500"),
        ({"data_dir": "somewhere", "score": "random"}, "ae", "cifar10"),
    ],
)
def test_settings_that_a_model_looks_at_are_part_of_its_label_where_the_preset_has_others(
    changes, model, label, monkeypatch
):
    monkeypatch.setattr(Autoencode, "data_name", lambda self: self.dataset)
    settings = replace(Autoencode.preset("full"), **changes)
    assert settings.label(model) == label.format("" if settings.flips else "no ")


def test_results_of_other_settings_have_files_of_their_own():
    names = {trial.name for gain in (1.0, 2.0, 2.5) for trial in smoke(gain=gain, models=("auton-code",)).trials([0])}
    assert len(names) == 3


def test_images_to_validate_by_are_training_images_that_nothing_is_trained_on():
    def told(images):
        return {image.numpy().tobytes() for image in images.images}

    plain, chosen = smoke(images=0, test_images=0), smoke(images=0, test_images=0, validate=100)
    train, test = (told(each) for each in plain.sets())
    rest, judged = (told(each) for each in chosen.sets())
    assert (len(judged), len(rest & judged), len(judged & test)) == (100, 0, 0)
    assert rest | judged == train
    task = Code(chosen, Trial("ae", "mnist"), chosen.sets())
    assert not told(task.train) & judged
    assert not told(task.held_out) & judged
    assert "validate 100" in chosen.label("ae")


def test_a_judge_of_test_images_is_not_that_of_images_to_validate_by():
    def real(**changes):
        settings = smoke(**changes)
        return settings.judge(settings.sets().test.images, Mock()).real

    first, other, again = real(test_images=60), real(test_images=60, validate=100), real(test_images=60)
    assert first.shape == other.shape
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_no_more_images_validate_than_there_are():
    with pytest.raises(ncode.InputError, match="nothing would be left to train on"):
        smoke(validate=10**6).trials([0])


def test_digits_are_never_mirrored():
    settings = smoke(flips=True)
    task = Code(settings, Trial("ae", "mnist"), settings.sets())
    shown = {image.numpy().tobytes() for image in task.train.images}
    assert {image.numpy().tobytes() for image in task.batch(0, torch.Generator().manual_seed(0))} <= shown


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("kind", KINDS)
def test_the_training_step_of_every_model_is_recorded_as_a_cuda_graph(kind, tmp_path):
    changes = {"shift": 2, "code_noise": 0.1, "texture": 1.0}
    settings = smoke(models=(kind,), dataset="cifar10", epochs=3, **changes)
    options = RunOptions(out=tmp_path, device="cuda", graph=True, quiet=True)
    result = json.loads(next(run(settings, "smoke", options).glob("trials/*/result.json")).read_text())
    assert math.isfinite(result["metrics"]["error"])


def test_a_shift_of_minus_one_moves_colours_and_no_digits():
    def moved(dataset):
        settings = smoke(dataset=dataset, shift=-1)
        task = Code(settings, Trial("ae", dataset), settings.sets())
        shown = {image.numpy().tobytes() for image in task.train.images}
        return any(image.numpy().tobytes() not in shown for image in task.batch(0, torch.Generator().manual_seed(0)))

    assert [moved(name) for name in ("cifar10", "mnist")] == [True, False]


@pytest.mark.parametrize(("still", "expected"), [(0.0, [1, 1, 1]), (0.5, [1, 0, 0]), (1.0, [0, 0, 0])])
def test_images_stand_still_in_the_last_part_of_training(still, expected):
    settings = smoke(dataset="cifar10", flips=False, shift=1, still=still, epochs=4)
    task = Code(settings, Trial("ae", "cifar10"), settings.sets())
    shown = {image.numpy().tobytes() for image in task.train.images}

    def moved(step):
        images = task.batch(step, torch.Generator().manual_seed(0))
        return any(image.numpy().tobytes() not in shown for image in images)

    assert [moved(step) for step in (0, task.steps // 2, task.steps - 1)] == [bool(each) for each in expected]


def test_the_papers_settings_are_the_defaults():
    paper = Autoencode()
    assert (paper.planned_epochs, paper.planned_batch("auton-code"), paper.planned_lr("ae")) == (50, 64, 1e-3)
    faces = replace(paper, dataset="celeba")
    assert (faces.planned_epochs, faces.planned_batch("auton-code"), faces.planned_batch("ae")) == (40, 16, 64)
    assert (faces.architecture.latent, replace(faces, nonzeros=0).architecture.nonzeros) == (64, 10)


@pytest.mark.parametrize(
    ("changes", "lr"),
    [
        ({"dataset": "cifar10"}, 1e-3),
        ({"dataset": "cifar10", "batch": 128}, 4e-3),
        ({"dataset": "cifar10", "batch": 128, "lr": 5e-4}, 5e-4),
        ({"dataset": "mnist", "batch": 128}, 1e-3),
    ],
)
def test_the_learning_rate_is_the_papers_and_larger_for_larger_batches_of_images_in_colour(changes, lr):
    settings = smoke(models=("ae",), **changes)
    assert settings.planned_lr("ae") == lr
    assert settings.trials([0])[0].about["lr"] == lr


def test_result_files_give_training_curves_of_each_data_set():
    seen = {f"{which} {name}": [1.0, 2.0] for which in ("train", "evaluation") for name in ("step", "error")}
    about = ("cifar10", "full", 0, {}, {"pca error": 0.005}, 1, 1.0, "", {}, "", "", {"dimensions": 128})
    results = [Result("autoencode", model, *about, seen) for model in ("auton-code", "ae")]
    (picture,) = Autoencode.redraw(results)
    assert picture.name == "training-cifar10"
    assert picture.caption.startswith("CIFAR-10: The mean squared error")
