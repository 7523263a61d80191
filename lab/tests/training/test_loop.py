import json
import math

import pytest
import torch
from ncode_lab.training import Loss, RunError, Task
from ncode_lab.training.checkpoint import Checkpoints
from ncode_lab.training.progress import MetricsLog
from torch import nn

from ncode import InputError, solve

from .tiny import Tiny, context_at, same, train


class Changed(Tiny):
    """A tiny task with a loss of one's own."""

    def __init__(self, loss, **task):
        super().__init__(**task)
        self._own = loss

    def loss(self, model, batch):
        return self._own(model, batch, len(self.seen))


def test_runs_with_the_same_seed_are_the_same(tmp_path):
    assert same(train(tmp_path / "first"), train(tmp_path / "second"))


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_step(tmp_path):
    def loss(model, batch, step):
        return Loss(model(batch["x"]).mean() * (math.nan if step == 4 else 1.0), {})

    context = context_at(tmp_path)
    with pytest.raises(RunError, match="the loss is not finite at step 4: try a smaller learning rate"):
        context.fit(Changed(loss))
    # The last checkpoint is from before.
    assert (tmp_path / "checkpoints" / "model" / "step-000002").is_dir()


def test_weights_that_are_not_finite_are_never_saved(tmp_path):
    class Explodes(Tiny):
        def optimiser(self, parameters):
            return torch.optim.SGD(parameters, lr=math.inf)

        def schedule(self, optimiser):
            return None

    with pytest.raises(RunError, match="not finite"):
        context_at(tmp_path, save_every=1).fit(Explodes(noisy=False))
    assert not (tmp_path / "checkpoints").exists()


def test_a_loss_may_call_any_method_of_the_model(tmp_path):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 1)

        def odd(self, x):
            return self.inner(x)

    task = Changed(lambda model, batch, step: Loss(model.odd(batch["x"]).square().mean(), {}))
    task.model = Model()
    task.evaluate = lambda model: {"error": float(model.odd(torch.ones(1, 2)).abs())}
    assert context_at(tmp_path).fit(task) is task.model


def test_evaluations_come_when_asked_and_at_the_end_without_gradients_in_evaluation_mode(tmp_path):
    modes = []

    class Watched(Tiny):
        evaluate_every = 4

        def evaluate(self, model):
            modes.append((len(self.seen), model.training, torch.is_grad_enabled()))
            return super().evaluate(model)

    context = context_at(tmp_path)
    context.fit(Watched(steps=10))
    assert modes == [(4, False, False), (8, False, False), (10, False, False)]
    assert context.curves()["evaluation step"] == [4, 8, 10]
    assert context.final == {"error": context.curves()["evaluation error"][-1]}


def test_an_evaluation_does_not_change_the_training(tmp_path):
    class Often(Tiny):
        evaluate_every = 1

    assert same(context_at(tmp_path / "often").fit(Often()).state_dict(), train(tmp_path / "seldom"))


def test_several_fits_of_a_trial_keep_apart(tmp_path):
    context = context_at(tmp_path)
    context.fit(Tiny(), "encoder")
    context.fit(Tiny(), "decoder")
    curves = context.curves()
    assert curves["encoder train step"] == curves["decoder train step"] == [1, 2, 3, 4, 5, 6]
    with pytest.raises(InputError, match="has already fitted 'decoder'"):
        context.fit(Tiny(), "decoder")


def test_the_last_step_is_always_logged_and_curves_are_thinned(tmp_path):
    class Long(Tiny):
        evaluate_every = 0

    context = context_at(tmp_path, save_every=500)
    context.fit(Long(steps=450, noisy=False))
    curves = context.curves(max_points=50)
    assert len(curves["train step"]) == len(curves["train loss"]) == 50
    assert curves["train step"][0] == 1
    assert curves["train step"][-1] == 450


def test_a_curve_has_nan_where_a_line_has_no_number(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.write(1, "train", "model", {"loss": math.nan})
    log.write(2, "train", "model", {"loss": 1.0, "nfe": 3})
    curves = log.curves()
    assert math.isnan(curves["train loss"][0])
    assert math.isnan(curves["train nfe"][0])
    assert curves["train nfe"][1] == 3
    json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0], parse_constant=pytest.fail)


def test_the_log_is_on_the_disk_before_each_checkpoint(tmp_path, monkeypatch):
    order, write = [], Checkpoints.write
    monkeypatch.setattr(MetricsLog, "sync", lambda log: order.append("log"))
    monkeypatch.setattr(Checkpoints, "write", lambda *given: order.append("checkpoint") or write(*given))
    context_at(tmp_path, save_every=2).fit(Tiny())
    assert order[:2] == ["log", "checkpoint"]
    assert order.count("log") == order.count("checkpoint") == len(order) // 2


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda model, batch, step: Loss(model(batch["x"]), {}), r"a loss must be a scalar; given shape \(8, 1\)"),
        (lambda model, batch, step: Loss(model(batch["x"]).mean(), {"a": batch["x"]}), "'a' has shape"),
        (lambda model, batch, step: Loss(model(batch["x"]).mean(), {"step": 1}), "may not use the names"),
    ],
)
def test_a_wrong_loss_gets_a_sentence(tmp_path, loss, message):
    with pytest.raises(InputError, match=message) as error:
        context_at(tmp_path).fit(Changed(loss))
    assert error


@pytest.mark.parametrize("steps", [0, -1, 2.0])
def test_a_task_has_at_least_one_step(tmp_path, steps):
    with pytest.raises(InputError, match="at least 1 step"):
        context_at(tmp_path).fit(Tiny(steps=steps))


def test_a_model_without_parameters_cannot_be_trained(tmp_path):
    task = Tiny()
    task.model = nn.Tanh()
    with pytest.raises(InputError, match="no parameters to train"):
        context_at(tmp_path).fit(task)


def test_an_error_in_a_step_names_the_step(tmp_path):
    def fails(model, batch, step):
        if step == 3:
            raise ArithmeticError("too stiff")
        return Loss(model(batch["x"]).mean(), {})

    with pytest.raises(ArithmeticError) as error:
        context_at(tmp_path).fit(Changed(fails))
    assert error.value.__notes__ == ["in step 3 of 6"]


def test_what_is_kept_is_read_as_it_was_even_where_memory_is_shared(tmp_path):
    from safetensors.torch import load_file

    x = torch.randn(3, 4)
    context_at(tmp_path).save_tensors("points", x=x, turned=x.T, row=x[1])
    kept = load_file(tmp_path / "kept" / "points.safetensors")
    assert torch.equal(kept["turned"], x.T)
    assert torch.equal(kept["row"], x[1])


def test_unused_parameters_are_left_as_they_are(tmp_path):
    task = Changed(lambda model, batch, step: Loss(model[0](batch["x"]).square().mean(), {}), noisy=False)
    before = task.model[2].weight.clone()
    assert torch.equal(context_at(tmp_path).fit(task).get_submodule("2").weight, before)


def test_a_task_is_abstract():
    with pytest.raises(TypeError):
        Task()


@pytest.mark.parametrize(
    ("precision", "data", "product"), [("bf16", "float32", "bfloat16"), ("64", "float64", "float64")]
)
def test_mixed_precision_rounds_products_and_not_data(precision, data, product, tmp_path):
    seen = []

    def loss(model, batch, step):
        out = model(batch["x"])
        seen.append((batch["x"].dtype, out.dtype))
        return Loss(out.float().mean(), {})

    context_at(tmp_path, precision=precision).fit(Changed(loss, steps=1, noisy=False))
    torch.set_default_dtype(torch.float32)
    assert seen == [(getattr(torch, data), getattr(torch, product))]


@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_a_gradient_that_is_too_long_is_shortened_and_another_is_left(tmp_path, size):
    class Clipped(Changed):
        clip = 0.5

        def optimiser(self, parameters):
            return torch.optim.SGD(parameters, lr=1.0)

        def schedule(self, optimiser):
            return None

    task = Clipped(lambda model, batch, step: Loss(size * model(batch["x"]).mean(), {}), noisy=False, steps=1)
    before = [each.detach().clone() for each in task.model.parameters()]
    model = context_at(tmp_path).fit(task)
    moved = torch.cat([(a - b).detach().flatten() for a, b in zip(before, model.parameters(), strict=True)]).norm()
    assert moved == pytest.approx(0.5, rel=1e-4) if size > 1 else 0 < moved < 0.1


def fail_to_solve():
    solve(lambda t, x, theta: x * x, torch.ones(1, 1), 0.0, 2.0)


def test_a_solve_that_fails_names_its_step_and_what_to_try(tmp_path):
    def loss(model, batch, step):
        if step == 4:
            fail_to_solve()
        return Loss(model(batch["x"]).mean(), {})

    with pytest.raises(RunError, match=r"1 sample could not be solved in step 4 of 6: at t = .*smaller learning rate"):
        context_at(tmp_path).fit(Changed(loss))


def test_a_solve_that_fails_in_an_evaluation_says_so(tmp_path):
    class Failing(Tiny):
        def evaluate(self, model):
            fail_to_solve()

    with pytest.raises(RunError, match=r"1 sample could not be solved in the evaluation after step 3: at t = "):
        context_at(tmp_path).fit(Failing())


def test_weights_that_are_not_finite_are_a_better_reason_than_what_fails_because_of_them(tmp_path):
    def loss(model, batch, step):
        if step == 4:
            with torch.no_grad():
                next(model.parameters()).fill_(math.nan)
            raise ValueError("a consequence")
        return Loss(model(batch["x"]).mean(), {})

    with pytest.raises(RunError, match="weight is not finite after step 3: try a smaller learning rate"):
        context_at(tmp_path).fit(Changed(loss))
