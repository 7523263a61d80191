import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ncode_lab.data import oscillation
from ncode_lab.experiments.base import Finished
from ncode_lab.experiments.vanderpol.experiment import FitOscillation, Oscillator, VanDerPol, record, score
from ncode_lab.training import Result, RunOptions, Trial, TrialContext
from ncode_lab.training.devices import start_fabric

from ncode import InputError

SMOKE = VanDerPol.preset("smoke")


def finish(experiment: VanDerPol, trial: Trial, folder: Path) -> Finished:
    options = RunOptions(device="cpu", quiet=True)
    (folder / trial.name).mkdir()
    context = TrialContext(start_fabric(options), folder / trial.name, trial, options)
    metrics = experiment.run(trial, context)
    about = dict.fromkeys(("device", "commit", "command"), "")
    numbers = ("smoke", trial.seed, {}, metrics, context.parameters, 1.0)
    result = Result("vanderpol", trial.model, trial.dataset, *numbers, versions={}, curves=context.curves(), **about)
    return Finished(trial, result, context.folder)


def train(task: FitOscillation) -> None:
    optimiser = task.optimiser(task.model.parameters())
    schedule = task.schedule(optimiser)
    for step in range(task.steps):
        optimiser.zero_grad()
        task.loss(task.model, task.batch(step, torch.Generator())).value.backward()
        optimiser.step()
        schedule.step()


def test_the_smoke_form_runs_and_draws(tmp_path):
    finished = [finish(SMOKE, trial, tmp_path) for trial in SMOKE.trials([0])]
    for done in finished:
        assert {column.metric for column in SMOKE.columns} <= set(done.result.metrics)
        assert all(math.isfinite(value) for value in done.result.metrics.values())
    pictures = SMOKE.figures(finished)
    assert [picture.name for picture in pictures] == ["oscillations", "learning"]
    for picture in pictures:
        picture.figure.savefig(tmp_path / f"{picture.name}.png", dpi=40)


def test_figures_are_drawn_of_what_is_done(tmp_path):
    assert SMOKE.figures([]) == []
    alone = finish(SMOKE, Trial("constant", "mu=1", 0, {"mu": 1.0}), tmp_path)
    assert [picture.name for picture in SMOKE.figures([alone])] == ["oscillations"]


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.3, 1.0, 5.0])
def test_with_the_true_mu_a_dynamic_control_is_the_oscillator(mu):
    # The paper's equivalence of the second-order equation and the planar system.
    ts = torch.linspace(0, 20, 41)
    seen = oscillation(ts, mu=mu, x0=(2.0, 0.0))
    sol = Oscillator("dynamic", mu).solve(ts, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(sol.xs[0, :, 0].detach(), seen.x[:, 0], atol=2e-3, rtol=0)


@given(mu=st.floats(0.1, 5.0), theta=st.floats(-2.0, 2.0))
@settings(max_examples=15, deadline=None)
def test_whatever_it_learns_a_constant_control_cannot_turn_back(mu, theta):
    model = Oscillator("constant", mu)
    with torch.no_grad():
        model.block.controller.theta["theta"].fill_(theta)
    with torch.no_grad():
        # Further on all stands still, and rounding would have a direction.
        steps = model.solve(torch.linspace(0, 10, 51), rtol=1e-6, atol=1e-8).xs[0, :, 0].diff()
    steps = steps[steps.abs() > 1e-4]
    assert bool((steps > 0).all() or (steps < 0).all())


@pytest.mark.slow
def test_mu_is_found_and_the_oscillation_goes_on_as_it_should():
    form = VanDerPol(fitted=6.0, steps=40, points=20)
    task = FitOscillation(form, Trial("dynamic", "mu=2", 0, {"mu": 2.0}))
    train(task)
    assert float(task.model.mu.detach()) == pytest.approx(2.0, rel=0.05)
    found = score(task.model, task.record)
    assert found["error"] < 0.05
    assert found["ahead"] < 0.05


@pytest.mark.slow
def test_a_stiff_model_with_the_true_mu_is_the_oscillator_in_double_precision():
    ts = torch.linspace(0, 1000, 51, dtype=torch.float64)
    seen = oscillation(ts, mu=1000.0, x0=(2.0, 0.0), dtype=torch.float64)
    with torch.no_grad():
        sol = Oscillator("dynamic", 1000.0, stiff=True).solve(ts, rtol=1e-6, atol=1e-8)
    assert sol.xs.dtype == torch.float64
    assert int(sol.stats.steps) < 1000
    torch.testing.assert_close(sol.xs[0, :, 0], seen.x[:, 0], atol=1e-4, rtol=0)


@pytest.mark.slow
def test_a_stiff_mu_is_nearly_found_before_the_fitted_time_reaches_a_jump(monkeypatch):
    monkeypatch.setattr(VanDerPol, "fitted_time", lambda self, mu: 100.0)  # a quarter of 1.6 mu
    task = FitOscillation(VanDerPol(steps=60), Trial("dynamic", "mu=250", 1, {"mu": 250.0}))
    start = float(task.model.mu.detach())
    assert 125.0 <= start <= 500.0
    assert task.batch(0, torch.Generator())["t"].dtype == torch.float64
    train(task)
    assert abs(float(task.model.mu.detach()) - 250.0) < 0.1 * abs(start - 250.0)


def test_the_fitted_time_of_a_relaxation_oscillation_grows_with_mu():
    form = VanDerPol(fitted=12.0)
    assert [form.fitted_time(mu) for mu in (0.5, 5.0, 50.0, 1000.0)] == [12.0, 12.0, 120.0, 2400.0]


def test_mu_of_both_equations_is_one_parameter():
    assert sum(each.numel() for each in Oscillator("dynamic", 1.0).parameters()) == 1
    assert sum(each.numel() for each in Oscillator("constant", 1.0).parameters()) == 2


def test_the_fitted_time_grows_to_the_whole_and_never_beyond():
    task = FitOscillation(VanDerPol(steps=20), Trial("dynamic", "mu=1", 0, {"mu": 1.0}))
    lasts = [float(task.batch(step, torch.Generator())["t"][-1]) for step in range(20)]
    assert lasts == sorted(lasts)
    assert lasts[0] < 0.3 * task.settings.fitted
    assert lasts[-1] == pytest.approx(task.settings.fitted)
    assert all(len(task.batch(step, torch.Generator())["t"]) == task.settings.points for step in (0, 19))


def test_batches_hold_the_oscillation_at_their_times():
    task = FitOscillation(SMOKE, Trial("dynamic", "mu=1", 0, {"mu": 1.0}))
    batch = task.batch(2, torch.Generator())
    seen = oscillation(batch["t"].double(), mu=1.0, x0=(2.0, 0.0)).x[:, 0]
    torch.testing.assert_close(batch["x"], seen, atol=1e-5, rtol=0)


def test_what_is_held_out_is_as_long_as_what_is_fitted_and_comes_after():
    seen = record(VanDerPol(fitted=4.0), 1.0)
    assert float(seen.t[seen.fitted - 1]) == pytest.approx(4.0)
    assert float(seen.t[-1]) == pytest.approx(8.0)


def test_mu_begins_within_the_guess_and_depends_on_the_seed():
    trials = [Trial("dynamic", "mu=1", seed, {"mu": 1.0}) for seed in range(4)]
    starts = [float(FitOscillation(SMOKE, trial).model.mu.detach()) for trial in trials]
    assert all(0.5 <= start <= 2.0 for start in starts)
    assert len(set(starts)) == 4


def test_trials_of_a_run_have_names_of_their_own():
    names = [trial.name for trial in VanDerPol(mus=(0.5, 5.0)).trials([0, 1])]
    assert len(names) == len(set(names)) == 8


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"models": ("dynamics",)}, "dynamic"),
        ({"mus": ()}, "at least one regime"),
        ({"mus": (1.0, 1.0)}, "once each"),
        ({"mus": (-1.0,)}, "mus must be above 0"),
        ({"lr": 0.0}, "lr must be above 0"),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(changes, sentence):
    with pytest.raises(InputError, match=sentence):
        replace(SMOKE, **changes)
