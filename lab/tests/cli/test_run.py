import json

import pytest
from ncode_lab.cli import main
from ncode_lab.experiments.reflection.experiment import Reflection
from ncode_lab.training import RunError

FAST = ["--smoke", "--device", "cpu", "--quiet"]


def run(*words):
    return main(["run", *words])


def the_run(out):
    (folder,) = out.iterdir()
    return folder


def record(folder):
    return json.loads((folder / "run.json").read_text())


@pytest.mark.slow
def test_a_run_leaves_settings_results_figures_and_a_summary(tmp_path, capsys):
    assert run("reflection", *FAST, "--out", str(tmp_path), "--steps", "4", "--models", "node", "open-loop") == 0
    assert capsys.readouterr().out == ""
    folder = the_run(tmp_path)
    about = record(folder)
    assert about["settings"]["steps"] == 4
    assert about["preset"] == "smoke"
    assert about["finished"]
    assert sorted(file.name for file in (folder / "figures").iterdir()) == ["trajectories.png", "trajectories.svg"]
    assert "| open-loop |" in (folder / "summary.md").read_text()
    trials = sorted(file.name for file in (folder / "trials").iterdir())
    assert trials == ["node-reflection-seed-0", "open-loop-reflection-seed-0"]
    result = json.loads((folder / "trials" / trials[1] / "result.json").read_text())
    assert {"experiment", "model", "dataset", "preset", "seed", "settings", "metrics", "parameters"} <= set(result)
    assert {"seconds", "device", "versions", "commit", "command"} <= set(result)


def test_no_path_of_this_machine_is_written_down(tmp_path):
    run("reflection", *FAST, "--out", str(tmp_path), "--models", "node")
    folder = the_run(tmp_path)
    texts = [file.read_text() for file in folder.rglob("*") if file.suffix in (".json", ".jsonl", ".md")]
    assert not any(str(tmp_path) in text for text in texts)


def test_seeds_are_counted_from_the_first(tmp_path):
    run("reflection", *FAST, "--out", str(tmp_path), "--models", "node", "--seed", "5", "--seeds", "2")
    names = {file.name for file in (the_run(tmp_path) / "trials").iterdir()}
    assert names == {"node-reflection-seed-5", "node-reflection-seed-6"}


@pytest.mark.slow
def test_two_runs_never_share_a_folder(tmp_path):
    for _ in range(2):
        run("reflection", *FAST, "--out", str(tmp_path), "--models", "node")
    assert len(list(tmp_path.iterdir())) == 2


def test_the_path_is_printed_at_the_end(tmp_path, capsys):
    run("reflection", "--smoke", "--device", "cpu", "--out", str(tmp_path), "--models", "node")
    assert capsys.readouterr().out.splitlines()[-1] == str(the_run(tmp_path))


def test_a_misspelt_experiment_gets_the_nearest_right_one(capsys):
    assert run("reflexion") == 2
    assert 'did you mean "reflection"?' in capsys.readouterr().err


def test_no_experiment_gets_the_list(capsys):
    assert run("--steps", "3") == 2
    assert "name an experiment" in capsys.readouterr().err


def test_a_wrong_option_names_the_nearest_right_one(capsys):
    with pytest.raises(SystemExit) as stop:
        run("reflection", "--stepz", "3")
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert "--steps" in printed.err + printed.out


def test_a_wrong_value_lists_the_valid_ones(capsys):
    with pytest.raises(SystemExit) as stop:
        run("reflection", "--models", "nodes")
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert all(name in printed.err + printed.out for name in ("node", "open-loop", "closed-loop"))


def test_a_value_out_of_range_gets_a_sentence(capsys, tmp_path):
    with pytest.raises(SystemExit) as stop:
        run("reflection", "--steps", "0", "--out", str(tmp_path))
    assert stop.value.code == 2
    assert "steps must be above 0; given 0" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_two_presets_are_one_too_many(capsys):
    assert run("reflection", "--smoke", "--paper") == 2
    assert "choose one preset; given --smoke and --paper" in capsys.readouterr().err


def test_help_shows_the_settings_of_the_preset(capsys):
    with pytest.raises(SystemExit):
        run("reflection", "--smoke", "--help")
    smoke = capsys.readouterr().out
    with pytest.raises(SystemExit):
        run("reflection", "--paper", "--help")
    paper = capsys.readouterr().out
    assert "(default: 3)" in smoke
    assert "(default: 1000)" in paper


def test_resume_without_anything_to_go_on_with_says_so(tmp_path, capsys):
    assert run("reflection", *FAST, "--out", str(tmp_path), "--resume") == 2
    assert "no unfinished run of reflection in" in capsys.readouterr().err


def unfinish(folder, trial):
    """As if the process had been killed before this trial was done."""
    about = record(folder)
    about["finished"] = None
    (folder / "run.json").write_text(json.dumps(about))
    (folder / "trials" / trial / "result.json").unlink()


@pytest.mark.slow
def test_resume_takes_the_settings_of_the_run_and_does_only_what_is_left(tmp_path):
    run("reflection", *FAST, "--out", str(tmp_path), "--steps", "4", "--models", "node", "open-loop")
    folder = the_run(tmp_path)
    unfinish(folder, "open-loop-reflection-seed-0")
    untouched = (folder / "trials" / "node-reflection-seed-0" / "result.json").stat().st_mtime_ns
    assert run("reflection", "--quiet", "--device", "cpu", "--out", str(tmp_path), "--resume") == 0
    assert the_run(tmp_path) == folder
    assert record(folder)["finished"]
    assert (folder / "trials" / "node-reflection-seed-0" / "result.json").stat().st_mtime_ns == untouched
    assert (folder / "trials" / "open-loop-reflection-seed-0" / "result.json").is_file()


def test_resume_with_another_setting_is_refused(tmp_path, capsys):
    run("reflection", *FAST, "--out", str(tmp_path), "--steps", "4", "--models", "node")
    unfinish(the_run(tmp_path), "node-reflection-seed-0")
    assert run("reflection", "--out", str(tmp_path), "--resume", "--steps", "5") == 2
    assert "steps was 4 when" in capsys.readouterr().err


def test_a_run_that_cannot_go_on_ends_with_its_sentence(tmp_path, capsys, monkeypatch):
    def fail(self, trial, context):
        raise RunError("the loss is not finite at step 4")

    monkeypatch.setattr(Reflection, "run", fail)
    assert run("reflection", *FAST, "--out", str(tmp_path)) == 1
    assert "ncode: the loss is not finite at step 4" in capsys.readouterr().err
