from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from ncode_lab.data import Images, ImageSets, draw_digits, load
from ncode_lab.experiments.base import Finished
from ncode_lab.experiments.classification.experiment import Classification
from ncode_lab.experiments.classification.figures import course_of, draw_classification
from ncode_lab.experiments.classification.training import Classify, measure
from ncode_lab.experiments.common import StepClock
from ncode_lab.training import Result, RunOptions, Trial, TrialContext
from ncode_lab.training.devices import start_fabric

from ncode import InputError
from ncode.models import GAMMAS, ImageClassifier

SMOKE = replace(Classification.preset("smoke"), data_dir="no-such-folder")


@pytest.fixture(autouse=True)
def nothing_found(monkeypatch, tmp_path):
    """Data that happen to lie on this machine are not for these tests."""
    monkeypatch.setenv("NCODE_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))


@pytest.fixture(scope="module")
def drawn() -> ImageSets:
    return ImageSets(draw_digits(200, generator=0), draw_digits(40, generator=1, split="test"))


def context_for(trial: Trial, folder: Path, save: bool = False) -> TrialContext:
    options = RunOptions(device="cpu", quiet=True, save=save)
    (folder / trial.name).mkdir()
    return TrialContext(start_fabric(options), folder / trial.name, trial, options)


def task_for(drawn: ImageSets, model: str = "ncode", seed: int = 0, **changes) -> Classify:
    return Classify(replace(SMOKE, images=0, **changes), Trial(model, "drawn", seed), drawn)


def as_set(images: Images) -> set[bytes]:
    return {image.numpy().tobytes() for image in images.images}


@pytest.mark.slow
def test_the_smoke_form_runs_and_draws(tmp_path):
    finished = []
    for trial in SMOKE.trials([0, 1]):
        context = context_for(trial, tmp_path)
        metrics = SMOKE.run(trial, context)
        assert {column.metric for column in SMOKE.columns} <= set(metrics)
        assert 0 <= metrics["accuracy"] <= 1
        about = dict.fromkeys(("device", "commit", "command"), "")
        result = Result(
            *("classification", trial.model, trial.dataset, "smoke", trial.seed, {}, metrics, context.parameters, 1.0),
            versions={},
            curves=context.curves(),
            **about,
        )
        finished.append(Finished(trial, result, context.folder))
    (picture,) = SMOKE.figures(finished)
    picture.figure.savefig(tmp_path / "figure.png")
    assert [text.get_text() for text in picture.figure.legends[0].get_texts()] == ["ANODE", "N-CODE open loop"]


def test_generated_data_are_told_apart():
    assert all("(generated)" in trial.dataset for trial in SMOKE.trials([0]))


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, "cifar10"),
        ({"dataset": "mnist"}, "mnist"),
        ({"regime": "modern"}, "cifar10, modern"),
        ({"gamma": "linear"}, "cifar10, gamma linear"),
        ({"regime": "modern", "dropout": 0.5}, "cifar10, modern, dropout 0.5"),
        ({"control_cost": 1e-5, "kinetic_cost": 0.01}, "cifar10, control cost 1e-05, kinetic cost 0.01"),
        ({"weight_decay": 0.0}, "cifar10"),
        ({"regime": "modern", "weight_decay": 0.0}, "cifar10, modern, weight decay 0"),
        ({"regime": "modern", "weight_decay": 0.01}, "cifar10, modern"),
        ({"zeros": -1, "filters": 32}, "cifar10, filters 32, zeros none"),
        ({"zeros": 10}, "cifar10"),
        ({"zeros": 10, "dataset": "mnist"}, "mnist, zeros 10"),
        ({"regime": "modern", "augment": "no"}, "cifar10, modern, no augmentation"),
        ({"augment": "yes"}, "cifar10, augmentation"),
        ({"regime": "modern", "clip": 1.0, "augment": "yes"}, "cifar10, modern"),
        ({"regime": "modern", "clip": 0.0}, "cifar10, modern, clip 0"),
        ({"solver": "dopri5"}, "cifar10, solver dopri5"),
        ({"readout": "pooled"}, "cifar10, readout pooled"),
        # A longer or a faster run of the same problem has the same name.
        ({"epochs": 3, "steps": 3, "batch": 100}, "cifar10"),
    ],
)
def test_a_label_names_what_differs_from_our_recipe(changes, label):
    (trial,) = Classification(models=("ncode",), **{"solver": "rk4", **changes}).trials([0])
    assert trial.dataset == label


@pytest.mark.parametrize(
    ("changes", "shifted"),
    [
        ({}, False),
        ({"regime": "modern"}, True),
        ({"regime": "modern", "augment": "no"}, False),
        ({"augment": "yes"}, True),
    ],
)
def test_training_images_are_shifted_where_told_and_in_the_modern_regime(drawn, changes, shifted):
    images, labels = task_for(drawn, **changes).batch(0, torch.Generator().manual_seed(0))
    plain, same = task_for(drawn).batch(0, torch.Generator())
    assert torch.equal(labels[: len(same)], same[: len(labels)])
    assert torch.equal(images[:8], plain[:8]) == (not shifted)


CHANGES = {
    "gamma": "linear",
    "hidden": 300,
    "dropout": 0.5,
    "scale": 0.3,
    "control_cost": 0.1,
    "kinetic_cost": 0.1,
    "weight_decay": 0.1,
    "label_smoothing": 0.1,
    "filters": 7,
    "zeros": 3,
    "readout": "pooled",
}


@pytest.mark.slow
def test_a_label_names_just_what_changes_a_model_or_its_loss(drawn):
    batch = tuple(part[:4] for part in task_for(drawn).batch(0, torch.Generator()))
    models = ("node", "anode", "anode-wide", "data-control", "ncode", "late-fusion", "gamma-channels")
    models += ("ncode-net", "static-net")
    usual = Classification(models=models)
    plain = {trial.model: trial.dataset for trial in usual.trials([0])}
    changed = {
        (name, trial.model)
        for name, value in CHANGES.items()
        for trial in replace(usual, **{name: value}).trials([0])
        if trial.dataset != plain[trial.model]
    }
    for model in models:
        built, _ = fingerprint(drawn, model, batch)
        for name, value in CHANGES.items():
            found, decay = fingerprint(drawn, model, batch, **{name: value})
            assert ((name, model) in changed) == (found != built or decay == value), (name, model)


def fingerprint(drawn: ImageSets, model: str, batch, **changes) -> tuple[tuple[int, list[float]], float]:
    """How large a model is and how it would be changed by a step, and the weight decay."""
    settings = {"filters": 4, "shrink": 4, **changes}
    torch.manual_seed(0)
    task = task_for(drawn, model, **settings)
    task.loss(task.model, batch).value.backward()
    slopes = [float(p.grad.double().abs().sum()) for p in task.model.parameters()]
    return (len(slopes), slopes), task.recipe.weight_decay


def test_the_paper_s_numbers_stand_beside_trials_of_the_same_name():
    values = ("mnist", "cifar10"), GAMMAS, (0, 10), (-1, 1), ("rk4", "dopri5")
    forms = [
        Classification(dataset=name, gamma=kind, zeros=zeros, clip=clip, solver=solver)
        for name, kind, zeros, clip, solver in product(*values)
    ]
    trials = {(trial.model, trial.dataset) for form in forms for trial in form.trials([0])}
    reported = {(number.model, number.dataset): number.value for number in Classification.paper}
    assert set(reported) <= trials
    assert reported["ncode", "cifar10, gamma linear"] == reported["ncode", "cifar10"] == 0.741
    for preset in ("full", "paper"):
        trials = replace(Classification.preset(preset), dataset="mnist").trials([0])
        found = [reported.get((trial.model, trial.dataset)) for trial in trials]
        assert [each for each in found if each] == [0.982, 0.985, 0.992], preset


def test_held_out_images_are_the_same_for_all_and_never_trained_on(drawn):
    one, other = task_for(drawn, "ncode", 0), task_for(drawn, "anode", 1)
    assert torch.equal(one.held_out.images, other.held_out.images)
    assert not as_set(one.held_out) & as_set(one.train)
    assert as_set(one.held_out) | as_set(one.train) == as_set(drawn.train)


def test_all_models_see_the_same_batches_and_seeds_other_ones(drawn):
    tasks = [task_for(drawn, "ncode", 0), task_for(drawn, "anode", 0), task_for(drawn, "ncode", 1)]
    first, same, other = (task.batch(3, torch.Generator().manual_seed(0))[0] for task in tasks)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_only_the_modern_regime_changes_images(drawn):
    plain, modern = task_for(drawn), task_for(drawn, regime="modern")
    known = as_set(plain.train)
    images, _ = plain.batch(0, torch.Generator().manual_seed(0))
    moved, _ = modern.batch(0, torch.Generator().manual_seed(0))
    assert all(image.numpy().tobytes() in known for image in images)
    assert any(image.numpy().tobytes() not in known for image in moved)


def test_an_epoch_shows_each_image_once(drawn):
    task = task_for(drawn, batch=15)
    seen = [task.batch(step, torch.Generator())[0] for step in range(task.per_epoch)]
    assert len({image.numpy().tobytes() for images in seen for image in images}) == 15 * task.per_epoch
    assert task.steps == 2 * task.per_epoch


def test_regimes_are_those_of_the_brief(drawn):
    paper, modern = Classification(), Classification(regime="modern")
    assert (paper.recipe.epochs, paper.recipe.lr, paper.recipe.batch, paper.recipe.weight_decay) == (50, 1e-3, 256, 0)
    assert replace(paper, dataset="mnist").recipe.epochs == 20
    assert (modern.recipe.epochs, modern.recipe.batch, modern.recipe.weight_decay) == (30, 128, 0.01)
    assert Classification(regime="modern", epochs=3, lr=0.5, weight_decay=0.0).recipe.weight_decay == 0
    task = task_for(drawn, regime="modern")
    optimiser = task.optimiser(task.model.parameters())
    schedule = task.schedule(optimiser)
    rates = []
    for _ in range(task.steps):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()
    assert isinstance(optimiser, torch.optim.AdamW)
    assert rates[0] < max(rates) > rates[-1]
    assert max(rates) <= 4e-3
    assert task_for(drawn).schedule(optimiser) is None


def test_running_costs_add_to_the_loss(drawn):
    batch = task_for(drawn).batch(0, torch.Generator())
    losses = []
    for changes in ({}, {"control_cost": 0.1}, {"kinetic_cost": 0.1}):
        torch.manual_seed(0)
        task = task_for(drawn, **changes)
        losses.append(task.loss(task.model, batch))
    plain, control, kinetic = (float(loss.value.detach()) for loss in losses)
    assert control == pytest.approx(plain + 0.1 * float(losses[0].report["control norm"]) ** 2, rel=0.05)
    assert kinetic > plain


@pytest.mark.slow
def test_a_model_learns_digits_that_are_drawn(tmp_path):
    settings = replace(SMOKE, models=("ncode",), images=1000, epochs=4, lr=5e-3, regime="modern")
    (trial,) = settings.trials([0])
    context = context_for(trial, tmp_path)
    metrics = settings.run(trial, context)
    assert metrics["accuracy"] > 0.3
    assert metrics["loss"] < context.curves()["train loss"][0]


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 7])
def test_kept_weights_give_the_reported_accuracy_of_as_many_test_images_as_asked_for(count, tmp_path):
    settings = replace(SMOKE, models=("ncode",), solver="dopri5", test_images=count)
    (trial,) = settings.trials([0])
    metrics = settings.run(trial, context_for(trial, tmp_path, save=True))
    again = ImageClassifier.from_pretrained(tmp_path / trial.name / "pretrained")
    test = load("mnist", "no-such-folder", fallback=True).test
    test = test.take(slice(0, count or len(test)))
    found = measure(again, test.images, test.labels, settings.batch)
    assert found["accuracy"] == metrics["accuracy"]
    assert found["loss"] == pytest.approx(metrics["loss"], rel=1e-6)


@pytest.mark.parametrize(("changes", "metric"), [({}, "accuracy"), ({"regime": "modern"}, "")])
def test_the_paper_regime_keeps_the_best_epoch_and_the_modern_one_its_last(drawn, changes, metric):
    assert task_for(drawn, **changes).keep_best == metric


def test_the_epoch_is_chosen_by_held_out_images_and_what_is_reported_is_its_own(tmp_path):
    # So large a rate that accuracy goes up and down.
    settings = replace(SMOKE, models=("ncode",), epochs=6, lr=0.03)
    (trial,) = settings.trials([0])
    context = context_for(trial, tmp_path, save=True)
    metrics = settings.run(trial, context)
    seen = context.curves()["evaluation accuracy"]
    assert metrics["held-out accuracy"] == max(seen)
    again = ImageClassifier.from_pretrained(context.folder / "pretrained")
    task = Classify(settings, trial, load("mnist", "no-such-folder", fallback=True))
    found = measure(again, task.held_out.images, task.held_out.labels, settings.batch)
    assert found["accuracy"] == metrics["held-out accuracy"]


def test_networks_of_blocks_have_a_figure_of_their_own(tmp_path):
    seen = {"evaluation step": [1, 2], "train step": [1, 2], "train loss": [2.0, 1.0]}
    seen |= {f"evaluation {name}": [0.5, 0.7] for name in ("accuracy", "loss", "nfe")}
    about = ("paper", 0, {}, {}, 1, 1.0, "", {}, "", "", {}, seen)
    models = [(model, "cifar10") for model in ("ncode", "anode")]
    models += [("ncode", "cifar10, dropout 0.5")]
    models += [(model, "cifar10, networks") for model in ("ncode-net", "static-net")]
    results = [Result("classification", *names, *about) for names in models]
    finished = [Finished(Trial(result.model, result.dataset), result, tmp_path) for result in results]
    assert [picture.name for picture in SMOKE.figures(finished)] == ["training", "training-networks"]
    assert [picture.name for picture in Classification.redraw(results)] == [
        "training-cifar10",
        "training-cifar10-networks",
    ]


def test_a_training_that_diverges_has_logarithmic_losses():
    seen = {"evaluation step": [1, 2], "train step": [1, 2], "train loss": [2.0, 1e6]}
    seen |= {"evaluation accuracy": [0.5, 0.2], "evaluation loss": [1.2, 1e12], "evaluation nfe": [20.0, 60.0]}
    _, losses, nfe = draw_classification({"ncode": [seen]}).axes
    assert (losses.get_yscale(), nfe.get_xscale()) == ("log", "log")


def test_a_clock_counts_no_evaluations():
    clock = StepClock(warm_up=0)
    for step in (0, 1, 2):
        clock.tick(step)
    clock.pause()
    clock.tick(3)
    assert len(clock.seconds) == 2


def test_a_clock_leaves_the_first_steps_out():
    clock = StepClock(warm_up=1)
    for step in range(4):
        clock.tick(step)
    assert len(clock.seconds) == 3
    clock.seconds[0] = 100.0
    assert 0 <= clock.mean < 1


def test_the_training_loss_is_the_mean_between_evaluations():
    seen = {"evaluation step": [2, 4], "train step": [1, 2, 3, 4], "train loss": [4.0, 2.0, 1.0, 0.0]}
    seen |= {f"evaluation {name}": [0.5, 0.7] for name in ("accuracy", "loss", "nfe")}
    longer = {
        **seen,
        "evaluation step": [2, 4, 6],
        **{f"evaluation {n}": [1.0, 1, 1] for n in ("accuracy", "loss", "nfe")},
    }
    course = course_of([seen, longer])
    assert course.train.tolist() == [[3.0, 0.5], [3.0, 0.5]]
    assert course.accuracy.tolist() == [[0.5, 0.7], [1.0, 1.0]]


def test_models_of_one_figure_have_colours_of_their_own():
    seen = {"evaluation step": [1, 2], "train step": [1, 2], "train loss": [2.0, 1.0]}
    seen |= {f"evaluation {name}": [0.5, 0.7] for name in ("accuracy", "loss", "nfe")}
    models = Classification().models
    lines = draw_classification({model: [seen] for model in models}).axes[0].get_lines()
    assert len({line.get_color() for line in lines}) == len(models)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"dataset": "minst"}, "mnist"),
        ({"models": ()}, "at least one"),
        ({"models": ("ncode", "ncode")}, "once each"),
        ({"regime": "new"}, "regime"),
        ({"gamma": "convs"}, "conv"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ({"control_cost": -1.0}, "control_cost must be at least 0"),
        ({"batch": -1}, "batch must be at least 0"),
        ({"test_images": -1}, "test_images must be at least 0"),
        ({"solver": "euler"}, "solver"),
    ],
)
def test_settings_that_make_no_sense_get_a_sentence(changes, sentence):
    with pytest.raises(InputError, match=sentence):
        Classification(**changes)


def test_a_batch_of_which_nothing_could_be_solved_has_no_loss_of_zero(drawn):
    task = task_for(drawn, "anode")
    batch = task.batch(0, torch.Generator())
    assert task.loss(task.model, batch).value.isfinite()
    with torch.no_grad():
        task.model.block.dynamics.dynamics.weights.learned["conv_3x3"].fill_(float("inf"))
    assert not task.loss(task.model, batch).value.isfinite()
