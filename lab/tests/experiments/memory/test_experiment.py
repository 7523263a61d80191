"""The memory experiment: its trials, when it says that a task is learned, and a run of it."""

import json
from dataclasses import replace

import pytest
import torch
from ncode_lab.experiments import run
from ncode_lab.experiments.memory.experiment import Memory, Remember, episodes_to_learn
from ncode_lab.report import gather
from ncode_lab.training import Result, RunOptions, Trial

from ncode import InputError

SETTING = {"n": 40, "patterns": 2, "degradation": 0.5}


def test_models_are_compared_where_the_first_part_of_bits_is_lost_and_ncode_runs_everywhere():
    memory = Memory(patterns=(2, 5), degradation=(0.5, 0.9))
    settings = {
        model: {
            (t.about["n"], t.about["patterns"], t.about["degradation"]) for t in memory.trials([0]) if t.model == model
        }
        for model in memory.models
    }
    assert len(settings["ncode"]) == 8
    assert settings["ode-rnn"] == settings["data-control"] == {(n, p, 0.5) for n in (100, 1000) for p in (2, 5)}
    assert settings["lstm"] == settings["lstm-miconi"] == {(100, 2, 0.5), (1000, 2, 0.5)}


def test_every_trial_has_a_folder_of_its_own():
    names = [trial.name for trial in Memory().trials(range(3))]
    assert len(set(names)) == len(names)


def test_what_is_learned_and_lost_again_is_not_learned():
    steps = list(range(1, 101))
    errors = [0.3] * 20 + [0.0] * 40 + [0.3] * 5 + [0.0] * 35
    when = episodes_to_learn(steps, errors, batch=10)
    assert when is not None
    assert 650 < when <= 750 + 10
    assert episodes_to_learn(steps, [0.02] * 100, batch=10) is None
    assert episodes_to_learn(steps, [0.0] * 100, batch=10) == 10


def test_a_batch_depends_on_its_generator_alone():
    task = Remember(Memory(batch=3), Trial("ncode", "", 0, SETTING))
    first, again, other = (task.batch(7, torch.Generator().manual_seed(seed)) for seed in (5, 5, 6))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


def test_all_models_of_a_seed_are_judged_by_the_same_fresh_episodes():
    memory, seen = Memory(evaluation=6, units=40, n=(40,)), []

    class Spy(torch.nn.Module):
        def forward(self, stimuli, query):
            seen.append(query)
            return query

    errors = [
        Remember(memory, Trial(model, "", seed, SETTING)).evaluate(Spy())["error"]
        for model, seed in (("ncode", 0), ("lstm", 0), ("ncode", 1))
    ]
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[0], seen[2])
    # Spy knows the bits that are given, and says nothing about the others.
    assert errors == [0.5, 0.5, 0.5]


def test_models_beyond_the_paper_run_everywhere():
    memory = Memory.preset("full")
    trials = memory.trials([0])
    for model in ("delta", "hebb-held", "oja-held", "delta-held", "nearest"):
        assert sum(trial.model == model for trial in trials) == 24
    assert not {"delta-held", "nearest"} & set(Memory.preset("paper").models)


def test_nearest_pattern_is_right_where_half_of_the_bits_are_given():
    task = Remember(Memory(evaluation=20), Trial("nearest", "", 0, SETTING))
    assert task.evaluate(task.model) == {"error": 0.0, "nfe": 0}


def falling(model, errors):
    about = {"experiment": "memory", "preset": "paper", "settings": {}, "parameters": 1, "seconds": 1.0, "device": ""}
    about |= {"versions": {}, "commit": "", "command": "", "metrics": {}, "seed": 0, "dataset": "n=40"}
    return Result(model=model, curves={"train error": errors}, **about)


@pytest.mark.parametrize(
    ("model", "errors", "remark"),
    [
        ("ode-rnn", [0.5, 0.45, 0.4, 0.35, 0.3], "not trained to the end"),
        ("ode-rnn", [0.5, 0.4, 0.3, 0.3, 0.3], ""),
        ("ncode", [0.5, 0.45, 0.4, 0.35, 0.3], ""),
        ("lstm", [], ""),
    ],
)
def test_models_whose_error_still_falls_are_said_not_to_be_trained_to_the_end(model, errors, remark):
    assert Memory.remark([falling(model, errors)]) == remark


@pytest.mark.slow
def test_a_run_of_the_rules_is_tested_with_other_numbers_of_patterns_and_drawn(tmp_path):
    tiny = {**Memory.presets["smoke"], "patterns": (2, 3), "capacity": (2, 6)}
    memory = Memory(**{**tiny, "models": ("nearest", "delta", "oja-held")})
    folder = run(memory, "smoke", RunOptions(out=tmp_path, device="cpu", quiet=True, seeds=2))
    results = [json.loads(path.read_text()) for path in folder.glob("trials/*/result.json")]
    for result in results:
        tested = {"error at 2", "error at 6"} & result["metrics"].keys()
        assert bool(tested) == (result["about"]["patterns"] == 3)
    assert {result["parameters"] for result in results} == {0, 6}
    assert (folder / "figures" / "capacity.png").exists()


@pytest.mark.slow
def test_a_few_hundred_episodes_teach_plastic_weights_to_remember(tmp_path):
    memory = Memory(models=("ncode",), n=(60,), patterns=(2,), degradation=(0.5,), episodes=400)
    folder = run(memory, "quick", RunOptions(out=tmp_path, device="cpu", quiet=True))
    (result,) = [json.loads(path.read_text()) for path in folder.glob("trials/*/result.json")]
    assert result["metrics"]["error"] < 0.01
    assert result["metrics"]["episodes"] < 400
    assert result["parameters"] == 2 * 60**2


@pytest.mark.slow
def test_a_smoke_run_draws_an_episode_and_the_curves_of_all_models(tmp_path):
    memory = replace(Memory.preset("smoke"), patterns=(2, 3))
    folder = run(memory, "smoke", RunOptions(out=tmp_path, device="cpu", quiet=True, seeds=2))
    assert {path.name for path in (folder / "figures").glob("*.png")} == {"episode.png", "error.png", "settings.png"}
    lines = [json.loads(line) for line in next(folder.glob("trials/ode-rnn-*/metrics.jsonl")).read_text().splitlines()]
    assert all(0 <= line["error"] <= 1 for line in lines)
    assert {line["kind"] for line in lines} == {"train", "evaluation"}


@pytest.mark.slow
def test_curves_of_several_runs_are_drawn_together_from_their_result_files_alone(tmp_path):
    tiny = replace(Memory.preset("smoke"), models=("ncode", "ode-rnn", "delta"), capacity=(2,))
    for patterns, batch in (((2,), 4), ((3,), 2)):
        options = RunOptions(out=tmp_path, device="cpu", quiet=True)
        run(replace(tiny, patterns=patterns, batch=batch), "smoke", options)
    results = [result for one in gather([tmp_path]) for result in one.results]
    pictures = {picture.name: picture.figure for picture in Memory.redraw(results)}
    assert list(pictures) == ["error", "settings", "capacity"]
    both = pictures["error"].axes
    assert [panel.get_title() for panel in both] == [f"n = 20, {p} patterns,\n50 % lost" for p in (2, 3)]
    assert [[line.get_label() for line in panel.lines[:2]] for panel in both] == [["plastic N-CODE", "ODE-RNN"]] * 2
    (legend,) = pictures["error"].legends
    assert [text.get_text() for text in legend.get_texts()] == ["plastic N-CODE", "ODE-RNN", "query copied", "1 %"]
    # Episodes are steps times the batch of the run that a curve comes from.
    assert [max(panel.lines[0].get_xdata()) for panel in both] == [16, 16]
    (only,) = pictures["settings"].axes
    assert [line.get_label() for line in only.lines[:2]] == ["2 patterns", "3 patterns"]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"models": ("lstmm",)}, "lstm"),
        ({"n": ()}, "at least one value"),
        ({"patterns": (2, 2)}, "each once"),
        ({"degradation": (1.0,)}, "below 1"),
        ({"batch": 0}, "batch must be above 0"),
        ({"units": 10, "models": ("lstm-miconi",)}, "a unit for each bit"),
        ({"query_time": 0.0}, "query_time must be above 0"),
    ],
)
def test_wrong_settings_get_a_sentence(wrong, sentence):
    with pytest.raises(InputError, match=sentence):
        Memory(**wrong)
