import json
import math
import shutil
from dataclasses import replace

import pytest
import torch
from ncode_lab.data import ImageSets, draw_digits
from ncode_lab.experiments import Finished, run
from ncode_lab.experiments.coding.autoencode import Autoencode
from ncode_lab.experiments.coding.generate import Generate, neighbours_of
from ncode_lab.experiments.coding.scoring import Judge
from ncode_lab.training import Result, RunOptions, Trial

import ncode


def smoke(**changes):
    return Generate(**{**Generate.presets["smoke"], **changes})


@pytest.fixture(scope="module")
def finished(options, source):
    return run(smoke(source=str(source), models=("vae", "auton-code", "ae")), "smoke", options)


@pytest.mark.slow
def test_every_density_is_scored_under_both_protocols_beside_the_floor(finished, results):
    metrics = results(finished)["vae"]["metrics"]
    wanted = {f"distance {protocol} {which}" for protocol in ("paper", "honest") for which in (2, 8, "width 0.1")}
    assert wanted | {"distance floor", "distance prior", "kernel distance paper 8", "nearer paper 8"} <= set(metrics)
    assert all(math.isfinite(value) for value in metrics.values())


def test_as_many_images_are_drawn_as_there_are_test_images_whatever_number_of_codes_is_fitted(
    source, tmp_path, monkeypatch
):
    sizes = []
    judged = Judge.__call__
    monkeypatch.setattr(Judge, "__call__", lambda self, images: sizes.append(len(images)) or judged(self, images))
    options = RunOptions(out=tmp_path, device="cpu", quiet=True)
    about = {"components": (2,), "widths": (), "protocols": ("honest",), "models": ("vae",), "codes": 30}
    run(smoke(source=str(source), **about), "smoke", options)
    assert sizes == [60, 60, 60]  # the floor, a mixture, the prior


def test_only_a_vae_is_sampled_from_its_prior(finished, results):
    assert "distance prior" not in results(finished)["auton-code"]["metrics"]


def test_a_run_draws_samples_scores_and_neighbours(finished):
    drawn = {path.stem for path in (finished / "figures").glob("*.png")}
    assert drawn == {"samples-paper", "samples-honest", "components", "widths", "neighbours"}


def test_pictures_need_what_the_first_seed_has_kept_and_no_more(finished, source, tmp_path):
    done = []
    for path in sorted(finished.glob("trials/*/result.json")):
        result = Result(**json.loads(path.read_text()))
        done.append(Finished(Trial(result.model, result.dataset, 0), result, path.parent))
        done.append(Finished(Trial(result.model, result.dataset, 1), replace(result, seed=1), tmp_path / "not there"))
    drawn = smoke(source=str(source), models=("vae", "auton-code")).figures(done)
    assert {picture.name for picture in drawn} == {
        "samples-paper",
        "samples-honest",
        "components",
        "widths",
        "neighbours",
    }


def test_scores_are_drawn_of_results_alone_of_each_data_set_with_the_papers_beside_them():
    metrics = {"fid floor": 30.0, "fid paper 100": 60.0, "fid honest 100": 70.0, "fid paper width 0.5": 90.0}
    about = {"metrics": metrics, "parameters": 1, "seconds": 1.0, "device": "", "versions": {}, "commit": ""}
    results = [
        Result("generate", model, dataset, "paper", seed, {}, command="", **about)
        for model in ("ae", "auton-code")
        for dataset in ("cifar10", "celeba (first 10k)")
        for seed in (0, 1)
    ]
    drawn = {picture.name: picture.figure for picture in Generate.redraw(results)}
    assert set(drawn) == {
        f"{what}-{where}" for what in ("components", "widths") for where in ("cifar10", "celeba-first-10k")
    }
    stars = [line for line in drawn["components-cifar10"].axes[0].lines if line.get_marker() == "*"]
    assert sorted(value for line in stars for value in line.get_ydata()) == [24.19, 34.90, 55.55, 73.24]


def test_a_line_of_scores_and_its_floor_are_of_the_same_seeds_all_along():
    few = {"fid floor": 10.0, "fid paper width 0.5": 20.0}
    all_of_them = {"fid floor": 30.0, "fid paper width 0.5": 40.0, "fid paper width 0.1": 50.0}
    about = {"parameters": 1, "seconds": 1.0, "device": "", "versions": {}, "commit": "", "command": ""}
    results = [
        Result("generate", "ae", "cifar10", "paper", seed, {}, metrics=metrics, **about)
        for seed, metrics in enumerate((few, all_of_them, few))
    ]
    (picture,) = Generate.redraw(results)
    drawn = [line.get_ydata() for line in picture.figure.axes[0].lines]
    assert [list(values) for values in drawn] == [[50.0, 40.0], [30.0, 30.0]]


def test_models_of_a_source_are_used_as_they_were_trained(finished, source, results):
    record = json.loads((finished / "run.json").read_text())
    assert record["settings"]["latent"] == 9
    assert set(results(finished)) == {"auton-code", "vae"}  # the source has no ae
    theirs = json.loads(next(source.glob("trials/vae*/result.json")).read_text())
    assert results(finished)["vae"]["metrics"]["distance floor"] == pytest.approx(
        theirs["metrics"]["distance"], rel=1e-4
    )
    assert not list(finished.glob("trials/*/checkpoints"))


def test_a_source_without_the_models_asked_for_is_refused(source):
    with pytest.raises(ncode.InputError, match="has trained auton-code, vae, and none of the requested models, ae"):
        smoke(source=str(source), models=("ae",))


def test_a_source_without_the_seed_asked_for_is_refused(source, tmp_path):
    options = RunOptions(seed=3, out=tmp_path, device="cpu", quiet=True)
    with pytest.raises(ncode.InputError, match="has not trained vae with seed 3"):
        run(smoke(source=str(source), models=("vae",)), "smoke", options)


def test_the_only_run_in_a_folder_is_taken_as_source_and_one_of_several_is_not_guessed(source, tmp_path, results):
    shutil.copytree(source, tmp_path / "out" / "one")
    found = results(
        run(
            smoke(source=str(tmp_path / "out"), models=("vae",), components=(2,), widths=(), protocols=("paper",)),
            "smoke",
            RunOptions(out=tmp_path / "runs", device="cpu", quiet=True),
        )
    )
    assert set(found) == {"vae"}
    shutil.copytree(source, tmp_path / "out" / "two")
    with pytest.raises(ncode.InputError, match="holds 2 runs, one, two: name one of them as source"):
        smoke(source=str(tmp_path / "out"))


def test_a_source_of_another_experiment_is_refused(finished):
    with pytest.raises(ncode.InputError, match="is a run of generate: source must be one of autoencode"):
        smoke(source=str(finished))


def test_damaged_weights_of_a_source_are_named_and_left_as_they_are(source, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(source, broken)
    (weights,) = broken.glob("trials/vae*/checkpoints/model/step-*/weights.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    options = RunOptions(out=tmp_path, device="cpu", quiet=True)
    with pytest.raises(ncode.InputError, match=r"is damaged \(the checksum of weights.safetensors is wrong\): train"):
        run(smoke(source=str(broken), models=("vae",)), "smoke", options)
    assert weights.read_bytes() == content


def test_a_mixture_of_more_components_than_codes_is_refused_before_anything_is_trained(tmp_path):
    options = RunOptions(out=tmp_path, device="cpu", quiet=True)
    with pytest.raises(ncode.InputError, match="a mixture of 61 components needs at least as many codes"):
        run(smoke(components=(2, 61)), "smoke", options)
    assert not list(tmp_path.iterdir())


def test_test_images_are_looked_at_once_for_all_models_of_a_run(source, tmp_path, monkeypatch):
    scored = []

    class Counted(Judge):
        def __init__(self, *about):
            scored.append(about)
            super().__init__(*about)

    monkeypatch.setattr("ncode_lab.experiments.coding.scoring.Judge", Counted)
    monkeypatch.setattr("ncode_lab.experiments.coding.scoring._judges", {})
    settings = smoke(source=str(source), components=(2,), widths=(), protocols=("paper",))
    run(replace(settings, models=("auton-code", "vae")), "smoke", RunOptions(out=tmp_path, device="cpu", quiet=True))
    assert len(scored) == 1


@pytest.mark.slow
def test_models_are_taken_from_a_source_whatever_their_results_are_called(options, tmp_path):
    settings = {**Autoencode.presets["smoke"], "models": ("auton-code",), "gain": 2.0, "test_images": 50}
    strong = run(Autoencode(**settings), "smoke", options)
    folder = run(smoke(source=str(strong), components=(2,), widths=(), codes=30), "smoke", options)
    (path,) = folder.glob("trials/*")
    assert path.name.startswith("auton-code-mnist-")
    assert path.name.endswith("-gain-2-test-images-50-codes-30-seed-0")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"components": ()}, "at least one number"),
        ({"components": (0,)}, "components must be above 0"),
        ({"widths": (-1.0,)}, "widths must be above 0"),
        ({"protocols": ("fair",)}, "protocol"),
        ({"codes": -1}, "codes must be at least 0; given -1"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_a_sentence(changes, sentence):
    with pytest.raises(ncode.InputError, match=sentence):
        smoke(**changes)


@pytest.mark.slow
def test_samples_do_not_depend_on_the_units_of_a_models_codes(tmp_path, monkeypatch, results):
    options = RunOptions(out=tmp_path, device="cpu", quiet=True)
    source = run(Autoencode(**{**Autoencode.presets["smoke"], "models": ("ae",)}), "smoke", options)
    settings = smoke(source=str(source), models=("ae",))
    plain = results(run(settings, "smoke", options))["ae"]["metrics"]

    def rescaled(self, trial, context, trained=Generate.trained):
        model, seconds = trained(self, trial, context)
        with torch.no_grad():
            factors, scale = torch.logspace(-3, 2, model.code.out_features), model.decoder.scale
            for each in (model.code.weight.T, model.code.bias, scale.running_mean):
                each.mul_(factors)
            # Batch norm adds eps to a variance, in no units.
            scale.running_var.add_(scale.eps).mul_(factors**2).sub_(scale.eps)
        return model, seconds

    monkeypatch.setattr(Generate, "trained", rescaled)
    scaled = results(run(settings, "smoke", options))["ae"]["metrics"]
    assert set(scaled) == set(plain)
    assert all(math.isclose(scaled[name], plain[name], rel_tol=0.01, abs_tol=0.01) for name in plain)


def test_samples_that_copy_the_test_set_are_found_out():
    sets = ImageSets(draw_digits(60, generator=0), draw_digits(40, generator=1, split="test"))
    near, nearer = neighbours_of(sets.test.images[:10], sets)
    assert torch.equal(near[:, 0], sets.test.images[:10])
    assert nearer == 1.0
    assert neighbours_of(sets.train.images[:10], sets)[1] == 0.0


def test_images_are_scored_better_the_nearer_they_are_to_test_images():
    test = draw_digits(200, generator=0).images
    judge = Judge(test, None)
    same, other, noise = (judge(images) for images in (test, draw_digits(200, generator=1).images, 255 - test))
    assert same["distance"] < 1e-6 < other["distance"] < noise["distance"]
    assert other["kernel distance"] < noise["kernel distance"]


def test_the_papers_numbers_stand_beside_mixtures_of_test_codes():
    found = {(each.model, each.dataset, each.metric): each.value for each in Generate.paper}
    assert found["auton-code", "cifar10", "fid paper 1000"] == 24.19
    assert {column.metric for column in Generate.columns} >= {metric for _, _, metric in found}
