"""The weights of the best evaluation are kept, where a task asks for it."""

import json
import math
import os
import signal

import pytest
import torch
from ncode_lab.training import Stopped
from ncode_lab.training.checkpoint import WEIGHTS
from safetensors.torch import load_file

from ncode import InputError

from .tiny import Tiny, context_at, same, train


class Watched(Tiny):
    """Remembers the weights of each evaluation."""

    def __init__(self, keep_best="score", **task):
        super().__init__(**{"steps": 9, **task})
        self.keep_best = keep_best
        self.evaluated = {}

    def evaluate(self, model):
        self.evaluated[self.seen[-1] + 1] = {name: each.clone() for name, each in model.state_dict().items()}
        return super().evaluate(model)


@pytest.mark.parametrize(
    ("keep_best", "scores", "step"),
    [
        ("score", (0.1, 0.9, 0.5), 6),
        ("-score", (0.1, 0.9, 0.5), 3),
        ("score", (0.1, 0.2, 0.3), 9),
        ("score", (0.5, 0.5, 0.5), 3),
        ("score", (math.nan, 0.1, math.nan), 6),
        ("-score", (0.1, math.nan, -math.inf), 9),
    ],
)
def test_the_best_evaluation_and_its_weights_are_what_is_left(tmp_path, keep_best, scores, step):
    context, task = context_at(tmp_path), Watched(keep_best, scores=scores)
    model = context.fit(task)
    assert same(model.state_dict(), task.evaluated[step])
    assert context.final["best step"] == step
    assert context.final["score"] == scores[step // 3 - 1]
    # Curves are those of the training as it was.
    assert context.curves()["evaluation step"] == [3, 6, 9]
    # Whoever takes the weights of the last checkpoint has the best ones.
    assert same(load_file(tmp_path / "checkpoints" / "model" / "step-000009" / WEIGHTS), model.state_dict())


def test_where_no_evaluation_gives_a_number_the_last_weights_stay(tmp_path):
    context, task = context_at(tmp_path), Watched(scores=(math.nan,) * 3)
    assert same(context.fit(task).state_dict(), task.evaluated[9])
    assert math.isnan(context.final["best step"])
    assert context.final["error"] > 0


def test_keeping_the_best_does_not_change_the_training(tmp_path):
    train(tmp_path / "last", steps=9)
    train(tmp_path / "best", steps=9, scores=(0.9, 0.1, 0.1))
    first, second = ((tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("last", "best"))
    for one, other in zip(map(json.loads, first), map(json.loads, second), strict=True):
        other.pop("score", None)
        assert one == other


@pytest.mark.parametrize("stop", [1, 2, 3, 5, 6, 8])
def test_a_stopped_run_ends_with_the_same_best_weights(tmp_path, stop):
    scores = (0.9, 0.1, 0.5)
    whole = train(tmp_path / "whole", steps=9, scores=scores)
    with pytest.raises(Stopped):
        train(tmp_path / "cut", steps=9, scores=scores, at_step={stop: lambda: os.kill(os.getpid(), signal.SIGTERM)})
    finals = []
    # Gone on with, and then only loaded.
    for _ in range(2):
        context = context_at(tmp_path / "cut")
        assert same(context.fit(Tiny(steps=9, scores=scores)).state_dict(), whole)
        finals.append(context.final)
    assert finals[0] == finals[1]
    assert finals[0]["best step"] == 3


def test_a_damaged_last_checkpoint_costs_no_best_weights(tmp_path, capsys):
    whole = train(tmp_path, scores=(0.9, 0.5))
    (tmp_path / "checkpoints" / "model" / "step-000006" / WEIGHTS).write_bytes(b"damaged")
    assert same(train(tmp_path, scores=(0.9, 0.5)), whole)
    assert "step-000006 is damaged" in capsys.readouterr().err


def test_weights_are_put_back_in_place(tmp_path):
    """Recorded graphs know them by their addresses."""
    places = []

    class Placed(Watched):
        def evaluate(self, model):
            places.append([each.data_ptr() for each in model.state_dict().values()])
            return super().evaluate(model)

    model = context_at(tmp_path).fit(Placed(scores=(0.9, 0.5, 0.1)))
    places.append([each.data_ptr() for each in model.state_dict().values()])
    assert all(each == places[0] for each in places)


def test_a_checkpoint_has_no_best_weights_unless_asked_for(tmp_path):
    train(tmp_path)
    state = torch.load(tmp_path / "checkpoints" / "model" / "step-000004" / "state.pt", weights_only=True)
    assert "best" not in state


@pytest.mark.parametrize(("name", "hint"), [("scores", '; did you mean "score"\\?'), ("-accuracy", "")])
def test_a_name_that_evaluate_does_not_return_is_told_so(tmp_path, name, hint):
    metric = name.removeprefix("-")
    with pytest.raises(InputError, match=rf"unknown metric in keep_best '{metric}'{hint} \(known: error, score\)"):
        context_at(tmp_path).fit(Watched(name, scores=(0.1, 0.2, 0.3)))


def test_there_must_be_evaluations_to_choose_from(tmp_path):
    class Never(Tiny):
        evaluate_every = 0

    with pytest.raises(InputError, match="set evaluate_every"):
        context_at(tmp_path).fit(Never(scores=(0.5,)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("graph", [False, True])
def test_the_best_weights_are_kept_on_cuda(tmp_path, graph):
    task = Watched(scores=(0.1, 0.9, 0.5, 0.2), steps=12)
    model = context_at(tmp_path, device="cuda", graph=graph).fit(task)
    assert same(model.state_dict(), task.evaluated[6])
