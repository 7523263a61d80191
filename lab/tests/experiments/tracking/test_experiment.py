"""The tracking experiment: its trials, its training, the scores of long words, and a run of it."""

import json
from dataclasses import replace

import pytest
import torch
from ncode_lab.data import words
from ncode_lab.experiments import run
from ncode_lab.experiments.tracking import experiment
from ncode_lab.experiments.tracking.experiment import Track, Tracking, score, spread
from ncode_lab.experiments.tracking.models import Tracker
from ncode_lab.training import RunOptions, Trial

from ncode import InputError

A5 = Trial("skew", "a5", 0, {"group": "a5"})


class Oracle(Tracker):
    """Counts swaps, and forgets after a number of letters."""

    def __init__(self, memory):
        super().__init__()
        self.memory, self.read_out = memory, lambda x: torch.stack([1 - x, x], -1)

    def states(self, letters, before=None):
        sums, read = (0, 0) if before is None else before
        count = letters.cumsum(1) + sums
        places = torch.arange(letters.shape[1]) + read
        return (count % 2) * (places < self.memory), (count[:, -1:], read + letters.shape[1])


def test_words_are_scored_after_each_letter_whatever_the_parts(monkeypatch):
    long = words("parity", 40, 30, generator=0)
    whole = score(Oracle(30), long)
    assert torch.equal(whole, torch.ones(30, dtype=torch.float64))
    for tokens in (40, 280, 10**6):
        monkeypatch.setattr(experiment, "TOKENS_AT_ONCE", tokens)
        right = score(Oracle(10), long)
        assert bool((right[:10] == 1).all())
        # What it says from then on is 0.
        torch.testing.assert_close(right[10:], (long.elements[:, 10:] == 0).double().mean(0))


def test_the_spread_is_the_share_of_variance_within_elements():
    elements = torch.tensor([[0, 1, 1], [2, 0, 2]])
    places = torch.randn(3, 4)
    assert spread(places[elements], elements, 5).item() == pytest.approx(0, abs=1e-12)
    noise = torch.randn(2, 3, 4)
    assert 0 < spread(places[elements] + noise, elements, 5) < 1
    assert spread(noise, torch.zeros(2, 3, dtype=torch.long), 5).item() == pytest.approx(1)


def test_words_grow_during_training():
    task = Track(Tracking(steps=100), A5)
    lengths = [task.batch(step, torch.Generator().manual_seed(0)).letters.shape[1] for step in (0, 9, 10, 19, 20, 99)]
    assert lengths == [4, 4, 8, 8, 16, 16]


def test_settings_are_judged_by_words_that_no_step_has_drawn_from_the_same_seed():
    task = Track(Tracking(), A5)
    assert task.held_out.letters.shape == (512, 16)
    again, other = Track(Tracking(), A5), Track(Tracking(), replace(A5, seed=1))
    assert torch.equal(task.held_out.letters, again.held_out.letters)
    assert not torch.equal(task.held_out.letters, other.held_out.letters)


def test_every_trial_has_a_name_of_its_own_and_another_spread_another_name():
    names = [trial.name for settings in (Tracking(), Tracking(spread=0)) for trial in settings.trials(range(2))]
    assert len(set(names)) == len(names)


@pytest.mark.slow
def test_a_skew_control_learns_a5_and_keeps_it_for_a_thousand_letters(tmp_path):
    settings = Tracking(groups=("a5",), models=("skew",), steps=1200, lengths=(100, 1000), words=50)
    folder = run(settings, "quick", RunOptions(out=tmp_path, device="cpu", quiet=True))
    (result,) = [json.loads(path.read_text()) for path in folder.glob("trials/*/result.json")]
    assert result["metrics"]["accuracy 1000"] > 0.95
    assert result["metrics"]["spread"] < 1e-2


@pytest.mark.slow
def test_a_smoke_run_scores_all_models_and_draws_them(tmp_path):
    folder = run(Tracking.preset("smoke"), "smoke", RunOptions(out=tmp_path, device="cpu", quiet=True, seeds=2))
    assert {path.name for path in (folder / "figures").glob("*.png")} == {"lengths.png"}
    results = [json.loads(path.read_text()) for path in folder.glob("trials/*/result.json")]
    assert len(results) == 16
    wanted = {"accuracy 16", "accuracy 20", "accuracy 100", "all letters", "loss", "spread"}
    assert all(set(result["metrics"]) == wanted for result in results)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"models": ("skw",)}, 'did you mean "skew"'),
        ({"groups": ("a6",)}, "a5"),
        ({"lengths": (100, 20)}, "go up"),
        ({"lengths": ()}, "at least one length"),
        ({"states": 25}, "a multiple of its blocks"),
        ({"block": 1}, "of at least 2"),
        ({"spread": -1.0}, "spread must be at least 0"),
        ({"rival_steps": 0}, "rival_steps must be above 0"),
    ],
)
def test_wrong_settings_get_a_sentence(wrong, sentence):
    with pytest.raises(InputError, match=sentence):
        Tracking(**wrong)
