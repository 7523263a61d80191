import itertools
import json

import pytest
from ncode_lab.cli import main
from ncode_lab.experiments import find
from ncode_lab.experiments import sweep as sweep_module
from ncode_lab.experiments.reflection.experiment import Reflection
from ncode_lab.experiments.sweep import read_grid
from ncode_lab.training import RunOptions
from ncode_lab.training.lock import FolderLock

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
        (["lr=0.01", "lr=0.02"], "the grid has lr twice: give all of its values at once, lr=VALUE,VALUE"),
        (["lr=0.01,0.010"], "the values of lr must differ; given 0.01,0.010"),
        (["hidden=4", "--grid", "lr=0.01"], "--grid was given more than once"),
        (["hidden=4", "--grid=lr=0.01"], "--grid was given more than once"),
    ],
)
def test_a_grid_that_makes_no_sense_gets_a_sentence(grid, sentence, tmp_path, capsys):
    assert sweep(*(["--grid", *grid] if grid else []), "--out", str(tmp_path)) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--workers", "0", "workers must be at least 1; given 0"),
        ("--workers", "-1", "workers must be at least 1; given -1"),
        ("--minutes", "0", "minutes must be at least 1; given 0"),
        ("--name", "../escaped", "cannot be the name of a folder"),
    ],
)
@pytest.mark.parametrize("cluster", ["none", "local"])
def test_options_of_a_sweep_that_make_no_sense_get_a_sentence(option, value, sentence, cluster, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        sweep("--grid", "hidden=4", option, value, "--cluster", cluster, "--out", str(tmp_path / "sweeps"))
    assert stop.value.code == 2
    assert sentence in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_whose_every_point_failed_ends_with_an_error(tmp_path, capsys, monkeypatch):
    def crash(self, trial, context):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(Reflection, "run", crash)
    assert sweep("--grid", "hidden=4,5", "--out", str(tmp_path)) == 1
    assert capsys.readouterr().out.count("RuntimeError: out of luck") == 2


def test_a_damaged_run_of_a_point_does_not_end_the_sweep(tmp_path, capsys):
    words = ("--grid", "models=node", "hidden=4", "--out", str(tmp_path))
    sweep(*words)
    expected = capsys.readouterr().out
    (journal,) = tmp_path.rglob("values.json")
    for content in ("{", "{}", '{"finished": null}', '{"finished": null, "settings": 3, "options": []}'):
        journal.unlink()
        newest = max(tmp_path.rglob("run.json"))
        newest.write_text(content)
        assert sweep(*words) == 0
        assert capsys.readouterr().out == expected


def test_values_of_a_grid_have_the_types_of_their_settings():
    grid = read_grid(find("reflection"), ["steps=1,2", "lr=1e-3", "models=node+open-loop"])
    assert grid == {"steps": (1, 2), "lr": (0.001,), "models": (("node", "open-loop"),)}


def test_a_metric_that_the_experiment_has_not_is_refused_before_any_training(tmp_path, capsys):
    assert sweep("--grid", "models=node", "--metric", "eror", "--out", str(tmp_path)) == 2
    assert 'did you mean "error"' in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


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


@pytest.fixture
def points_run(monkeypatch):
    """Replaces training by a formula, and lists the points that ran."""
    ran = []

    def value_of(plan, number, point):
        ran.append(point["hidden"])
        return 1 / (3 * point["hidden"])

    monkeypatch.setattr(sweep_module, "run_point", value_of)
    return ran


def test_a_journal_cut_anywhere_loses_at_most_its_last_entry(tmp_path, capsys, points_run):
    words = ("--grid", "hidden=4,5,6", "--out", str(tmp_path))
    sweep(*words)
    table = capsys.readouterr().out
    (journal,) = tmp_path.rglob("values.json")
    whole = journal.read_bytes()
    ends = list(itertools.accumulate(map(len, whole.splitlines(keepends=True))))[1:]
    for cut in {*range(0, len(whole), 29), *range(len(whole) - 30, len(whole))}:
        journal.write_bytes(whole[:cut])
        points_run.clear()
        assert sweep(*words) == 0
        assert capsys.readouterr().out.endswith(table), cut
        # The last whole line may be missing too: without what follows it, nobody knows whether it is whole.
        kept = max(sum(end <= cut for end in ends[:3]) - 1, 0)
        assert set(points_run) <= set([4, 5, 6][kept:]), cut
        assert json.loads(journal.read_text()) == json.loads(whole)


@pytest.mark.parametrize("damage", [b"\0" * 40, b"\xff\xfe", b"[" * 100_000, b'"x": "text"', b'"x": 1' + b"0" * 400])
def test_a_damaged_line_of_a_journal_costs_only_its_own_point(damage, tmp_path, capsys, points_run):
    words = ("--grid", "hidden=4,5,6", "--out", str(tmp_path))
    sweep(*words)
    (journal,) = tmp_path.rglob("values.json")
    lines = journal.read_bytes().splitlines()
    lines[2] = b" " + damage + b","
    journal.write_bytes(b"\n".join(lines) + b"\n")
    points_run.clear()
    assert sweep(*words) == 0
    assert points_run == [5]
    assert "1 damaged line left out" in capsys.readouterr().out
    assert len(json.loads(journal.read_text())) == 3


def test_a_journal_of_an_earlier_version_with_null_is_read(tmp_path, capsys, points_run):
    words = ("--grid", "hidden=4,5", "--out", str(tmp_path))
    sweep(*words)
    (journal,) = tmp_path.rglob("values.json")
    first, second = json.loads(journal.read_text())
    journal.write_text("{\n" + f" {json.dumps(first)}: null,\n {json.dumps(second)}: 0.5\n" + "}\n")
    points_run.clear()
    assert sweep(*words) == 0
    assert points_run == [4]


def test_two_processes_do_not_run_the_same_sweep(tmp_path, capsys, points_run):
    words = ("--grid", "hidden=4", "--out", str(tmp_path))
    sweep(*words)
    (journal,) = tmp_path.rglob("values.json")
    lock = FolderLock.acquire(journal.parent)
    assert sweep(*words) == 2
    assert "is in use by process" in capsys.readouterr().err
    lock.release()
    assert sweep(*words) == 0


def test_a_cluster_without_slurm_gets_a_sentence_before_a_folder_is_made(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    words = ["sweep", "reflection", "--grid", "hidden=4", "--cluster", "slurm", "--out", str(tmp_path)]
    assert main(words) == 2
    assert "--cluster slurm needs Slurm, and its command srun was not found" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_help_shows_the_options_of_a_sweep_without_an_experiment(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["sweep", "--help"])
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("ncode sweep NAME", "--grid", "--cluster", "reflection, annuli"))


def test_a_folder_is_named_by_the_numbers_of_values_and_one_of_an_earlier_version_is_kept(tmp_path):
    kind = find("reflection")
    grid = read_grid(kind, ["lr=0.1,0.2", "hidden=4,8,16"])
    options = RunOptions(out=tmp_path)
    plan = sweep_module.Sweep(base=kind.preset("smoke"), preset="smoke", grid=grid, options=options)
    assert plan.folder.name == "reflection-smoke-lr-x2-hidden-x3"
    (tmp_path / "reflection-smoke-lr=2-hidden=3").mkdir()
    assert plan.folder.name == "reflection-smoke-lr=2-hidden=3"
