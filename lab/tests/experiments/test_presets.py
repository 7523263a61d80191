"""Presets, and settings of earlier versions."""

import json
import runpy
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from ncode_lab.experiments import EXPERIMENTS, PRESETS, find

from ncode import InputError

LAB = Path(__file__).parents[2]
OWN = ("classification", "memory")  # whose preset "full" is a recipe of ours
CODING = ("autoencode", "generate", "cluster", "interpolate")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_every_preset(name):
    presets = {preset: find(name).preset(preset) for preset in PRESETS}
    assert (presets["full"] == presets["paper"]) == (name not in (*OWN, *CODING))


def test_an_unknown_preset_gets_the_nearest():
    with pytest.raises(InputError, match='did you mean "paper"'):
        find("annuli").preset("papre")


def test_the_papers_classifier_has_a_linear_gamma_ten_zero_channels_and_its_solver():
    settings = find("classification").preset("paper")
    assert (settings.gamma, settings.hidden, settings.zeros, settings.solver) == ("linear", 10, 10, "dopri5")
    assert settings.solver_options()["rtol"] == 1e-3
    assert not settings.recipe.augment
    assert (settings.control_cost, settings.kinetic_cost, settings.dropout, settings.recipe.clip) == (0, 0, 0, 0)


@pytest.mark.parametrize("name", CODING)
@pytest.mark.parametrize(("dataset", "nonzeros", "batch"), [("mnist", 1, 64), ("cifar10", 2, 64), ("celeba", 10, 16)])
def test_the_papers_autoencoders_are_trained_without_our_additions(name, dataset, nonzeros, batch):
    kind = find(name)
    settings = kind(**{**kind.presets["paper"], "dataset": dataset})
    assert settings.architecture.nonzeros == nonzeros
    assert settings.flow == ("l2", 1.0, "stored")
    assert (settings.planned_batch("auton-code"), settings.planned_lr("auton-code")) == (batch, 1e-3)
    assert (settings.schedule, settings.flips, settings.planned_shift) == ("plateau", False, 0)
    assert (settings.texture, settings.noise_of("ae"), settings.standardise) == (0, 0, False)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_run_of_an_earlier_version_is_resumed_with_the_values_it_had(name):
    kind = find(name)
    now = asdict(kind())
    before = json.loads(json.dumps({**now, **kind.retired}))
    settings, preset = kind.from_record({"settings": before, "preset": "paper"})
    assert settings == kind()
    assert preset == ("full" if name in (*OWN, *CODING) else "paper")
    assert kind.from_record({"settings": json.loads(json.dumps(now)), "preset": "paper"})[1] == "paper"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_run_with_a_setting_that_is_gone_and_another_value_is_refused(name):
    kind = find(name)
    for setting in kind.retired:
        with pytest.raises(InputError, match=f"{name} has no setting {setting}, which was 'other'"):
            kind.from_record({"settings": {setting: "other"}, "preset": "quick"})


def test_models_trained_with_a_setting_that_is_gone_are_refused(source, tmp_path):
    shutil.copytree(source, tmp_path / "old")
    path = tmp_path / "old" / "run.json"
    record = json.loads(path.read_text())
    smoke = {**find("generate").presets["smoke"], "models": ("vae",)}
    record["settings"]["horizon"] = 10.0
    path.write_text(json.dumps(record))
    assert find("generate")(**smoke, source=str(path.parent)).latent == 9
    record["settings"]["horizon"] = 4.0
    path.write_text(json.dumps(record))
    with pytest.raises(InputError, match=r"has no setting horizon, which was 4.0"):
        find("generate")(**smoke, source=str(path.parent))


def test_results_of_our_former_paper_preset_are_relabelled_once_and_others_left_alone(tmp_path, monkeypatch, capsys):
    def write(name, experiment, settings):
        about = {"command": f"ncode run {experiment} --paper --regime paper", "experiment": experiment}
        (tmp_path / name).write_text(json.dumps({**about, "preset": "paper", "settings": settings}, indent=1))

    write("paper-ncode-seed-0.json", "classification", {"tf32": True, "regime": "paper"})
    write("paper-ncode-new-seed-0.json", "classification", {"regime": "paper"})
    write("paper-node-seed-0.json", "annuli", {"tolerance": 0.001})
    monkeypatch.setattr("sys.argv", ["relabel_results.py", str(tmp_path)])
    for _ in range(2):
        runpy.run_path(str(LAB / "scripts" / "relabel_results.py"), run_name="__main__")
    assert capsys.readouterr().out == "1 of 3 files relabelled\n0 of 3 files relabelled\n"
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"full-ncode-seed-0.json", "paper-ncode-new-seed-0.json", "paper-node-seed-0.json"}
    result = json.loads((tmp_path / "full-ncode-seed-0.json").read_text())
    assert (result["preset"], result["command"]) == ("full", "ncode run classification --full --regime paper")
    assert result["settings"] == {"tf32": True, "regime": "paper"}


def test_a_setting_with_another_name_than_before_keeps_its_value():
    before = {**asdict(find("cluster").preset("smoke")), "beside": 17}
    del before["map_images"]
    settings, _ = find("cluster").from_record({"settings": json.loads(json.dumps(before)), "preset": "smoke"})
    assert settings.map_images == 17
