import errno
import json
import os

import numpy as np
import pytest
import torch
from ncode_lab.cli import main
from ncode_lab.experiments.reflection.experiment import Reflection
from ncode_lab.training import RunError, RunFolder

from ncode import InputError, solve

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
    assert "| N-CODE open loop |" in (folder / "summary.md").read_text()
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


@pytest.mark.parametrize(
    ("name", "wrong", "right"), [("reflection", "--stepz", "--steps"), ("classification", "--epoch", "--epochs")]
)
def test_a_wrong_option_names_the_nearest_right_one(name, wrong, right, capsys):
    with pytest.raises(SystemExit) as stop:
        run(name, wrong, "3")
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert f"{right} INT" in printed.err + printed.out


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


@pytest.mark.parametrize(("name", "option"), [("vanderpol", "--points"), ("memory", "--n"), ("autoencode", "--epochs")])
def test_a_number_that_torch_cannot_hold_gets_a_sentence(name, option, capsys, tmp_path):
    with pytest.raises(SystemExit) as stop:
        run(name, *FAST, option, str(10**23), "--out", str(tmp_path))
    assert stop.value.code == 2
    assert f"{option[2:]} must be below 2**63" in capsys.readouterr().err
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


def test_resume_of_a_run_in_use_names_the_process(tmp_path, capsys):
    with create(tmp_path, {"preset": "smoke"}) as folder:
        assert run("reflection", "--out", str(tmp_path), "--resume") == 2
    assert f"{folder.path} is in use by process {os.getpid()} on " in capsys.readouterr().err


def test_resume_with_another_preset_is_refused(tmp_path, capsys):
    create(tmp_path, {"preset": "paper", "settings": {"steps": 2}, "options": {"seed": 0, "seeds": 1}}).close()
    assert run("reflection", "--out", str(tmp_path), "--resume", "--smoke") == 2
    assert "was started with --paper, and --smoke has other settings: leave --smoke out" in capsys.readouterr().err


def test_resume_runs_a_trial_with_a_damaged_result_again(tmp_path, capsys):
    words = ("--device", "cpu", "--quiet", "--out", str(tmp_path))
    run("reflection", "--smoke", "--models", "node", *words)
    (path,) = tmp_path.rglob("result.json")
    whole = json.loads(path.read_text())
    path.write_text("{")
    assert run("reflection", "--resume", *words) == 0
    assert "result.json is damaged" in capsys.readouterr().err
    again = json.loads(path.read_text())
    assert again["metrics"] == whole["metrics"]


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


@pytest.mark.parametrize("content", [None, b"", b"\xff" * 30])
def test_damaged_tensors_of_a_figure_are_named_with_how_to_make_them_again(content, tmp_path, capsys):
    words = ("--device", "cpu", "--quiet", "--out", str(tmp_path))
    run("reflection", "--smoke", "--models", "node", *words)
    (path,) = tmp_path.rglob("flow.safetensors")
    path.unlink() if content is None else path.write_bytes(content)
    folder = the_run(tmp_path)
    (folder / "run.json").write_text(json.dumps({**record(folder), "finished": None}))
    assert run("reflection", "--resume", *words) == 2
    assert "flow.safetensors is damaged" in capsys.readouterr().err
    (folder / "trials" / "node-reflection-seed-0" / "result.json").unlink()
    assert run("reflection", "--resume", *words) == 0


def test_resume_with_another_setting_is_refused(tmp_path, capsys):
    run("reflection", *FAST, "--out", str(tmp_path), "--steps", "4", "--models", "node")
    unfinish(the_run(tmp_path), "node-reflection-seed-0")
    assert run("reflection", "--out", str(tmp_path), "--resume", "--steps", "5") == 2
    assert "steps was 4 when" in capsys.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        {"settings": None},
        {"settings": []},
        {"settings": {"steps": "four"}},
        {"settings": {"steps": 4.5}},
        {"settings": {"models": "node"}},
        {"settings": {"models": [["node"]]}},
        {"settings": {"lr": None}},
        {"preset": None},
        {"preset": ["smoke"]},
        {"options": None},
        {"options": {"seed": 0}},
        {"options": {"seed": "0", "seeds": 1}},
        {"options": {"seed": 0, "seeds": 1, "deterministic": "yes"}},
    ],
)
def test_a_record_without_what_a_run_needs_is_refused_with_a_sentence(change, tmp_path, capsys):
    create(tmp_path, {"preset": "smoke", "settings": {}, "options": {"seed": 0, "seeds": 1}, **change}).close()
    assert run("reflection", "--out", str(tmp_path), "--resume") == 2
    assert "cannot be resumed: " in capsys.readouterr().err


def test_a_record_with_odd_extras_is_resumed(tmp_path, monkeypatch):
    settings = {"models": ["node"], "steps": 2}
    record = {"preset": "smoke", "settings": settings, "options": {"seed": 0, "seeds": 1}}
    odd = {"trials": 5, "versions": "2.13", "columns": {"a": 1}, "title": "\ud800", "sequence": "first"}
    create(tmp_path, {**record, **odd}).close()
    assert run("reflection", "--device", "cpu", "--quiet", "--out", str(tmp_path), "--resume") == 0


def create(out, record):
    return RunFolder.create(out, "reflection", record)


@pytest.mark.parametrize(
    ("name", "model"), [("vanderpol", "dynamic"), ("memory", "lstm"), ("autoencode", "auton-code")]
)
def test_a_learning_rate_that_is_far_too_large_ends_with_a_sentence(name, model, tmp_path, capsys):
    assert run(name, *FAST, "--out", str(tmp_path), "--lr", "1e30", "--models", model) == 1
    printed = capsys.readouterr().err
    assert "ry a smaller learning rate" in printed
    assert "Traceback" not in printed
    assert "unexpected" not in printed


def test_a_solve_that_fails_after_training_ends_with_a_sentence(tmp_path, capsys, monkeypatch):
    def fail(*_):
        solve(lambda t, x, theta: x * x, torch.ones(1, 1), 0.0, 2.0)

    monkeypatch.setattr("ncode_lab.experiments.reflection.experiment._flow", fail)
    assert run("reflection", *FAST, "--out", str(tmp_path), "--models", "node") == 1
    assert "ncode: 1 sample could not be solved after training: at t = " in capsys.readouterr().err


@pytest.mark.parametrize("argument", ["runs\udcff", "runs\0"])
@pytest.mark.parametrize("command", ["run", "sweep", "report", "collect", "demo"])
def test_an_argument_that_no_file_can_hold_is_refused(argument, command, tmp_path, capsys):
    assert main([command, "--out", str(tmp_path / argument)]) == 2
    assert "ncode: the argument " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["svg", "png"])
def test_a_full_disk_while_figures_are_drawn_ends_with_a_sentence_and_the_run_is_resumed(
    kind, tmp_path, capsys, monkeypatch
):
    real = os.replace

    def full(source, target):
        if str(target).endswith(kind):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(source, target)

    words = ("--device", "cpu", "--quiet", "--out", str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert run("reflection", "--smoke", "--models", "node", *words) == 1
    assert f"trajectories.{kind} could not be written: No space left on device" in capsys.readouterr().err
    results = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert run("reflection", "--resume", *words) == 0
    assert results == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("result.json")}
    assert record(the_run(tmp_path))["finished"]
    assert not list(tmp_path.rglob(".*.tmp"))


def test_a_run_that_cannot_go_on_ends_with_its_sentence(tmp_path, capsys, monkeypatch):
    def fail(self, trial, context):
        raise RunError("the loss is not finite at step 4")

    monkeypatch.setattr(Reflection, "run", fail)
    assert run("reflection", *FAST, "--out", str(tmp_path)) == 1
    assert "ncode: the loss is not finite at step 4" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["classification", "autoencode", "generate", "cluster", "interpolate"])
def test_missing_data_are_found_before_a_folder_is_made(name, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("ncode_lab.data.datasets.fetch", refuse_download)
    monkeypatch.setenv("NCODE_DATA", str(tmp_path / "data"))
    words = ("--dataset", "cifar10", "--no-fallback", "--out", str(tmp_path / "runs"))
    assert run(name, *FAST, *words) == 2
    assert "CIFAR-10 was not found" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def refuse_download(*_):
    raise InputError("no network here")


def test_ctrl_c_after_training_ends_with_a_sentence(tmp_path, capsys, monkeypatch):
    def press(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("ncode_lab.experiments.runner._draw", press)
    assert run("reflection", *FAST, "--models", "node", "--out", str(tmp_path)) == 130
    assert "a run continues with --resume" in capsys.readouterr().err


def test_settings_that_are_refused_leave_no_folder_for_resume_to_take(tmp_path, capsys):
    images = np.random.default_rng(0).random((40, 8, 8))
    np.savez(tmp_path / "noise.npz", images=images, labels=np.arange(40) % 2)
    words = ["--dataset", str(tmp_path / "noise.npz"), "--device", "cpu", "--out", str(tmp_path / "runs")]
    assert run("classification", "--smoke", "--image-size", "3", *words) == 2
    assert "3 x 3 cannot be shrunk" in capsys.readouterr().err
    assert list((tmp_path / "runs").iterdir()) == []


def test_resume_names_the_run_that_it_takes_and_takes_another_one_by_its_folder(tmp_path, capsys):
    words = [*FAST, "--models", "node", "--out"]
    for _ in range(2):
        assert run("reflection", *words, str(tmp_path)) == 0
    older, newer = sorted(tmp_path.iterdir(), key=lambda path: json.loads((path / "run.json").read_text())["sequence"])
    for path in (older, newer):
        record = json.loads((path / "run.json").read_text())
        (path / "run.json").write_text(json.dumps({**record, "finished": None}))
    capsys.readouterr()
    assert run("annuli", "--resume", "--out", str(older)) == 2
    assert "is a run of reflection" in capsys.readouterr().err
    assert run("reflection", "--device", "cpu", "--resume", "--out", str(tmp_path)) == 0
    err = capsys.readouterr().err
    assert f"resuming {newer}, the latest of 2 unfinished runs" in err
    assert f"--resume --out {older}" in err
    assert run("reflection", "--device", "cpu", "--resume", "--out", str(older)) == 0
    assert json.loads((older / "run.json").read_text())["finished"]


@pytest.mark.parametrize("words", [("--device", "cuda:7"), ("--device=cuda:7",)])
def test_a_gpu_by_its_number_gets_the_way_to_choose_it(words, capsys):
    assert run("reflection", *words) == 2
    assert "CUDA_VISIBLE_DEVICES=7 ncode run" in capsys.readouterr().err


def test_help_breaks_no_number_at_its_comma(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        run("classification", "--help")
    assert "5000 training" in " ".join(capsys.readouterr().out.replace("│", " ").split())


def test_a_classifier_with_fixed_steps_says_which_solver_counts_evaluations(tmp_path, capsys):
    np.savez(tmp_path / "noise.npz", images=np.random.default_rng(0).random((40, 8, 8)), labels=np.arange(40) % 2)
    words = ["--dataset", str(tmp_path / "noise.npz"), "--models", "ncode", "--device", "cpu"]
    assert run("classification", "--smoke", *words, "--out", str(tmp_path / "runs")) == 0
    assert "nfe of ncode: by rk4 in training, by dopri5 in evaluations" in capsys.readouterr().err


def test_a_record_that_names_no_experiment_is_called_damaged(tmp_path, capsys):
    (tmp_path / "run.json").write_text("{}")
    assert run("annuli", "--resume", "--out", str(tmp_path)) == 2
    assert "names no experiment: it is damaged" in capsys.readouterr().err
