"""`ncode paper`: all experiments, resumed across processes and machines."""

import json
import shutil
from pathlib import Path

import pytest
from ncode_lab.cli import main
from ncode_lab.experiments import EXPERIMENTS, find
from ncode_lab.experiments.paper import NOT_IN_THE_PAPER, SMOKE_STEPS, STEPS, finished_run, run_paper, select
from ncode_lab.training import RunOptions

from ncode import InputError


def paper(out, *more):
    return main(["paper", "--smoke", "--device", "cpu", "--quiet", "--out", str(out), *more])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with reflection and autoencode done."""
    out = tmp_path_factory.mktemp("paper")
    assert paper(out, "--only", "reflection", "autoencode") == 0
    return out


def test_every_experiment_is_a_step_and_its_settings_are_those_of_the_preset(tmp_path, monkeypatch):
    paper = set(EXPERIMENTS) - {*NOT_IN_THE_PAPER}
    assert {step.experiment for step in STEPS} == {step.experiment for step in SMOKE_STEPS} == paper
    for step in STEPS:
        if not step.source:
            settings, preset = step.settings("paper", tmp_path), find(step.experiment).preset("paper")
            differing = {name for name in vars(settings) if getattr(settings, name) != getattr(preset, name)}
            assert differing <= {"dataset", "models"}, step
    names = {step.name for step in STEPS}
    assert len(names) == len(STEPS)
    assert {step.source for step in STEPS} <= names | {""}
    order = [step.name for step in STEPS]
    assert all(order.index(step.source) < order.index(step.name) for step in STEPS if step.source)


def test_steps_are_chosen_by_experiment_or_by_name():
    chosen = [step.name for step in select(STEPS, ["classification", "generate-celeba"])]
    assert chosen == ["classification-mnist", "classification-cifar10", "generate-celeba"]
    with pytest.raises(InputError, match='did you mean "memory"'):
        select(STEPS, ["memmory"])


def test_one_report_has_all_that_was_run(made, capsys):
    capsys.readouterr()
    assert paper(made, "--only", "reflection") == 0
    assert capsys.readouterr().out.split() == [str(made / "report.html")]
    page = (made / "report.html").read_text(encoding="utf-8")
    assert "Reflection" in page
    assert "Autoencode" in page


def test_a_finished_step_is_not_run_again(made):
    before = {path: path.stat().st_mtime_ns for path in made.glob("*/*/trials/*/result.json")}
    assert paper(made, "--only", "reflection", "autoencode") == 0
    after = {path: path.stat().st_mtime_ns for path in made.glob("*/*/trials/*/result.json")}
    assert before == after != {}


def test_an_interrupted_step_is_resumed_on_another_machine(made, tmp_path):
    """The folder is copied, with a step that lacks a trial, and its models are found in their new place."""
    out = tmp_path / "elsewhere"
    shutil.copytree(made, out)
    first = finished_run(out, "reflection", "reflection")
    record = json.loads((first / "run.json").read_text())
    (first / "run.json").write_text(json.dumps({**record, "finished": None}))
    trials = sorted((first / "trials").iterdir())
    kept = (trials[0] / "result.json").stat().st_mtime_ns
    shutil.rmtree(trials[1])
    assert paper(out, "--only", "reflection", "interpolate") == 0
    assert [path.parent for path in (out / "reflection").glob("*/run.json")] == [first]
    assert (trials[0] / "result.json").stat().st_mtime_ns == kept
    assert (trials[1] / "result.json").is_file()
    source = json.loads(next((out / "interpolate").glob("*/run.json")).read_text())["settings"]["source"]
    assert Path(source).is_relative_to(out)


def test_a_step_whose_models_are_not_trained_is_told_and_others_are_run(tmp_path, capsys):
    assert paper(tmp_path, "--only", "generate", "reflection") == 1
    out = capsys.readouterr().out
    assert "generate was not run: it uses the models of autoencode" in out
    assert "--only autoencode" in out
    assert finished_run(tmp_path, "reflection", "reflection")
    assert not (tmp_path / "generate").exists()


def test_a_folder_of_another_seed_is_not_continued(made, capsys):
    assert paper(made, "--only", "reflection", "--seed", "3") == 1
    assert "was begun with other settings (seed)" in capsys.readouterr().out


def test_data_that_are_missing_do_not_stop_other_steps(tmp_path, monkeypatch):
    from ncode_lab.data.datasets import MissingData
    from ncode_lab.experiments.classification.experiment import Classification

    def missing(self):
        raise MissingData("there is no mnist")

    monkeypatch.setattr(Classification, "sets", missing)
    steps = select(SMOKE_STEPS, ["classification", "reflection"])
    options = RunOptions(out=tmp_path, device="cpu", quiet=True)
    found = {outcome.step.name: outcome for outcome in run_paper(steps, "smoke", options)}
    assert found["classification"].refused == "there is no mnist"
    assert found["reflection"].path is not None


@pytest.mark.slow
def test_the_whole_paper_in_seconds(tmp_path):
    assert paper(tmp_path) == 0
    assert {path.parts[-3] for path in tmp_path.glob("*/*/run.json")} == {*EXPERIMENTS} - {*NOT_IN_THE_PAPER}
