import pytest
from ncode_lab.cli import main
from ncode_lab.experiments import find
from ncode_lab.experiments.reflection.experiment import Reflection
from ncode_lab.experiments.sweep import read_grid

FAST = ["--smoke", "--device", "cpu"]


def sweep(*words):
    return main(["sweep", "reflection", *FAST, *words])


def rows(text):
    return [line.split() for line in text.splitlines()[1:] if line.strip() and not line.startswith("/")]


@pytest.mark.slow
def test_a_sweep_ranks_every_point_of_its_grid(tmp_path, capsys):
    assert sweep("--grid", "models=node", "lr=0.1,0.001", "hidden=4,8", "--out", str(tmp_path)) == 0
    table = rows(capsys.readouterr().out)
    assert {tuple(row[1:3]) for row in table} == {("0.1", "4"), ("0.1", "8"), ("0.001", "4"), ("0.001", "8")}
    values = [float(row[-1]) for row in table]
    assert values == sorted(values)


@pytest.mark.slow
def test_a_sweep_said_again_runs_nothing_twice(tmp_path, capsys):
    words = ("--grid", "models=node", "hidden=4,8", "--out", str(tmp_path))
    sweep(*words)
    first = capsys.readouterr().out
    runs = sorted(tmp_path.rglob("run.json"))
    sweep(*words)
    assert capsys.readouterr().out == first
    assert sorted(tmp_path.rglob("run.json")) == runs


@pytest.mark.slow
def test_a_point_that_crashes_does_not_end_the_sweep_and_is_tried_again(tmp_path, capsys, monkeypatch):
    words = ("--grid", "models=node", "hidden=4,5,6", "--out", str(tmp_path))
    whole = Reflection.run

    def crash(self, trial, context):
        if self.hidden == 5:
            raise RuntimeError("out of luck")
        return whole(self, trial, context)

    monkeypatch.setattr(Reflection, "run", crash)
    assert sweep(*words) == 0
    out = capsys.readouterr().out
    assert "failed: models=node hidden=5: RuntimeError: out of luck" in out
    assert sum("failed" in line for line in out.splitlines()[1:]) == 1
    monkeypatch.setattr(Reflection, "run", whole)
    assert sweep(*words) == 0
    assert "failed" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_sweep_runs_as_jobs_of_submitit_too(tmp_path, capsys):
    words = ("--grid", "models=node", "hidden=4,8", "--out", str(tmp_path), "--cluster", "local", "--workers", "2")
    assert sweep(*words) == 0
    assert len([row for row in rows(capsys.readouterr().out) if row[-1] != "failed"]) == 2


@pytest.mark.parametrize(
    ("grid", "sentence"),
    [
        (["hiden=4"], 'did you mean "hidden"'),
        (["hidden"], "SETTING=VALUE,VALUE"),
        (["hidden=four"], "hidden takes int values; given 'four'"),
        (["models=nodes"], 'did you mean "node"'),
        ([], "say which settings"),
    ],
)
def test_a_grid_that_makes_no_sense_gets_a_sentence(grid, sentence, tmp_path, capsys):
    assert sweep(*(["--grid", *grid] if grid else []), "--out", str(tmp_path)) == 2
    assert sentence in capsys.readouterr().err


def test_values_of_a_grid_have_the_types_of_their_settings():
    grid = read_grid(find("reflection"), ["steps=1,2", "lr=1e-3", "models=node+open-loop"])
    assert grid == {"steps": (1, 2), "lr": (0.001,), "models": (("node", "open-loop"),)}


def test_a_metric_that_the_experiment_has_not_is_named(tmp_path, capsys):
    assert sweep("--grid", "models=node", "--metric", "eror", "--out", str(tmp_path)) == 0
    assert 'did you mean "error"' in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("other", [("--metric", "nfe"), ("--seed", "1"), ("--seeds", "2")])
def test_a_number_of_another_question_is_not_taken_for_an_answer(other, tmp_path, capsys):
    words = ("--grid", "models=node", "hidden=4", "--out", str(tmp_path))
    sweep(*words)
    (first,) = rows(capsys.readouterr().out)
    sweep(*words, *other)
    (second,) = rows(capsys.readouterr().out)
    sweep(*words)
    assert second[-1] != first[-1]
    assert rows(capsys.readouterr().out) == [first]


def test_a_run_that_another_grid_left_unfinished_is_not_gone_on_with(tmp_path, capsys, monkeypatch):
    def crash(self, trial, context):
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(Reflection, "run", crash)
        sweep("--grid", "models=node", "hidden=4", "--out", str(tmp_path))
    sweep("--grid", "models=node", "hidden=8", "--out", str(tmp_path))
    hidden = {run.read_text().split('"hidden": ')[1][0] for run in tmp_path.rglob("run.json")}
    assert hidden == {"4", "8"}


def test_a_file_in_the_place_of_the_folder_gets_a_sentence(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert sweep("--grid", "hidden=4", "--out", str(tmp_path / "file")) == 1
    assert "a file is in its way" in capsys.readouterr().err
