import copy
import math
import pickle

import pytest
import torch

import ncode
from ncode import PID, SolveError, Status
from ncode.ode import METHODS

from .systems import ADAPTIVE, DOUBLE, GRADIENTS, Counted, close, decay, double, explode

every_gradient = pytest.mark.parametrize("gradient", GRADIENTS)


def wobble(t, x, theta):
    """Rough enough for steps to be refused."""
    return 20 * (30 * t).sin()[:, None].sign() * x.cos()


@pytest.mark.parametrize("method", ADAPTIVE)
@pytest.mark.parametrize("extra", [{}, {"save_at": [0.5, 1.0]}, {"dense": True}], ids=["end", "saved", "dense"])
def test_nfe_is_the_number_of_calls_of_an_adaptive_solve(method, extra):
    field = Counted(wobble)
    sol = ncode.solve(field, double(0.5), 0.0, 1.0, method=method, rtol=1e-2, atol=1e-2, **extra)
    assert sol.stats.nfe.item() == field.calls
    assert sol.stats.rejected.item() > 0, "a test without rejections"


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("extra", [{}, {"save_at": [0.5, 1.0]}, {"dense": True}], ids=["end", "saved", "dense"])
@every_gradient
def test_nfe_is_the_number_of_calls_with_fixed_steps(method, extra, gradient):
    field = Counted(wobble)
    sol = ncode.solve(field, double(0.5), 0.0, 1.0, method=method, dt=0.1, gradient=gradient, **extra)
    assert sol.stats.nfe.item() == field.calls
    assert sol.stats.steps.item() == 10
    assert sol.stats.rejected.item() == 0


@pytest.mark.slow
@every_gradient
@pytest.mark.parametrize("method", ["heun", "bosh3", "dopri5", "dopri8"])
@pytest.mark.parametrize("saved", [False, True])
def test_nfe_is_the_number_of_calls_whatever_the_gradient(gradient, method, saved):
    field = Counted(wobble)
    x0 = double(0.5).requires_grad_()
    save_at = [0.5, 1.0] if saved else None
    sol = ncode.solve(field, x0, 0.0, 1.0, method=method, rtol=1e-2, atol=1e-2, gradient=gradient, save_at=save_at)
    assert sol.stats.nfe.item() == field.calls


@pytest.mark.slow
@pytest.mark.parametrize(("gradient", "every"), [("discrete", 1), ("discrete", 3), ("adjoint", 1)])
@pytest.mark.parametrize(("method", "dt"), [("heun", None), ("dopri5", None), ("dopri8", None), ("rk4", 0.1)])
@pytest.mark.parametrize("saved", [None, [0.25, 0.5], [0.0, 1.0]])
def test_nfe_backward_is_the_number_of_calls_of_backward(gradient, method, dt, saved, every):
    field = Counted(lambda t, x, theta: wobble(t, x, theta) + theta)
    x0, theta, t1 = double(0.5).requires_grad_(), double(0.1).requires_grad_(), torch.ones(1).requires_grad_()
    sol = ncode.solve(
        field,
        x0,
        0.0,
        t1,
        theta=theta,
        method=method,
        dt=dt,
        rtol=1e-3,
        atol=1e-3,
        gradient=gradient,
        save_at=saved,
        checkpoint_every=every,
    )
    assert sol.stats.nfe_backward is None
    field.rows.clear()
    loss = sol.x.sum() if saved is None else sol.x.sum() + sol.xs.sum()
    loss.backward()
    assert sol.stats.nfe_backward.item() == field.calls > 0


@pytest.mark.parametrize(("method", "stages"), [("heun", 2), ("bosh3", 3), ("dopri5", 6), ("tsit5", 6), ("dopri8", 12)])
def test_the_last_slope_of_a_step_is_the_first_of_the_next(method, stages):
    """And a refused step keeps its first slope: every attempt costs as many evaluations as the method advances with."""
    stats = ncode.solve(wobble, double(0.5), 0.0, 1.0, method=method, rtol=1e-2, atol=1e-2).stats
    begin = 2  # one to look at the start, one to choose the first step
    assert stats.nfe.item() == begin + stages * (stats.steps + stats.rejected).item()


@pytest.mark.parametrize("speed", [1e-6, 1e-3, 1e3, 1e6])
@pytest.mark.parametrize("method", ["bosh3", "dopri5", "dopri8"])
def test_the_first_step_follows_the_speed_of_the_system(speed, method):
    """The same flow in other units of time takes about the same steps."""

    def run(speed):
        x0 = double(1.0, 30.0)
        return ncode.solve(lambda t, x, theta: -speed * x, x0, 0.0, 5 / speed, method=method).stats

    # The rule knows no unit of time, but steps grow tenfold until they fit: a few are lost.
    assert run(speed).steps.tolist() == pytest.approx(run(1.0).steps.tolist(), abs=6)
    assert run(speed).rejected.max() <= 3


def test_counts_of_a_sample_in_a_batch_are_those_of_its_own_solve():
    def run(rows):
        theta = double(1.0, 60.0, 5.0)[rows]
        sol = ncode.solve(lambda t, x, theta: theta * x.cos(), torch.zeros_like(theta), 0.0, 1.0, theta=theta)
        return torch.stack([sol.stats.nfe, sol.stats.steps, sol.stats.rejected])

    together = run(torch.arange(3))
    assert torch.equal(together, torch.cat([run(torch.tensor([i])) for i in range(3)], 1))


def test_a_sample_that_has_nowhere_to_go_costs_nothing():
    sol = ncode.solve(decay, double(1.0, 1.0), 0.0, torch.tensor([0.0, 1.0]))
    assert sol.stats.steps[0].item() == sol.stats.nfe[0].item() == 0


def test_rejected_steps_continue_at_the_same_place():
    """Every evaluation lies within the step that is tried, and the steps join without a gap."""
    times = []

    def field(t, x, theta):
        times.append(t.item())
        return wobble(t, x, theta)

    sol = ncode.solve(field, double(0.5), 0.0, 1.0, rtol=1e-2, atol=1e-2, dense=True)
    assert sol.stats.rejected.item() > 0
    begins, ends = sol.dense.begins[0], sol.dense.ends[0]
    assert begins[0].item() == 0.0
    assert ends[-1].item() == 1.0
    assert torch.equal(begins[1:], ends[:-1])
    assert int((begins != ends).sum()) == sol.stats.steps.item()
    states = sol.dense.states[0][:, 0]
    refused = (begins == ends).nonzero().flatten()
    assert len(refused) == sol.stats.rejected.item()
    assert torch.equal(states[refused + 1], states[refused]), "the state of a refused step is the one before it"
    assert min(times) >= 0.0
    assert max(times) <= 1.0


@pytest.mark.parametrize("pid", [PID(p=0.3, i=0.7), PID(p=0.2, i=0.4, d=0.05), PID(safety=0.5)])
def test_any_controller_of_steps_reaches_the_tolerance(pid):
    sol = ncode.solve(decay, double(1.0), 0.0, 3.0, step_rule=pid, rtol=1e-7, atol=1e-7)
    close(sol.x.item(), math.exp(-3), rtol=1e-5)


def test_the_controller_of_steps_is_heeded():
    careful, bold = (
        ncode.solve(decay, double(1.0), 0.0, 10.0, step_rule=PID(safety=safety), rtol=1e-6).stats.steps.item()
        for safety in (0.5, 0.95)
    )
    assert careful > 1.3 * bold


@pytest.mark.parametrize(
    "bad", [{"safety": 1.0}, {"safety": 0.0}, {"smallest": 1.5}, {"largest": 1.0}, {"smallest": 0.0}, {"i": 0.0}]
)
def test_a_controller_that_could_not_work_is_refused(bad):
    with pytest.raises(ncode.InputError, match="PID needs"):
        PID(**bad)


# Failures


def test_too_many_steps_end_a_sample():
    sol = ncode.solve(decay, double(1.0, 1.0), 0.0, torch.tensor([100.0, 0.01]), max_steps=5, throw=False)
    assert sol.status == (Status.MAX_STEPS, Status.OK)
    assert sol.stats.steps[0] + sol.stats.rejected[0] == 5


@pytest.mark.parametrize("gradient", GRADIENTS)
def test_too_many_fixed_steps_end_the_samples_that_need_them(gradient):
    t1 = torch.tensor([1.0, 0.3], dtype=DOUBLE)
    for end in (t1, 1.0):
        sol = ncode.solve(
            decay, double(1.0, 1.0), 0.0, end, dt=0.1, max_steps=3, throw=False, save_at=[0.25, 0.3], gradient=gradient
        )
        assert sol.status == (Status.MAX_STEPS, Status.OK if end is t1 else Status.MAX_STEPS)
        assert sol.stats.steps.tolist() == [3, 3]
        assert sol.t[0].item() == pytest.approx(0.3)
        close(sol.xs[:, 0, 0], torch.full((2,), math.exp(-0.25), dtype=DOUBLE), rtol=1e-5)


def test_a_solution_that_blows_up_ends_a_sample_near_the_place():
    sol = ncode.solve(explode, double(2.0, 0.5), 0.0, 1.0, throw=False)
    assert sol.status == (Status.STEP_TOO_SMALL, Status.OK)
    assert sol.t.tolist() == pytest.approx([0.5, 1.0], abs=1e-3)


@pytest.mark.parametrize("dt", [None, 0.1])
@every_gradient
def test_a_value_that_is_not_finite_ends_a_sample(dt, gradient):
    def field(t, x, theta):
        return torch.where((t[:, None] > 0.5) & (x > 1), torch.nan, 0 * x + 1)

    sol = ncode.solve(
        field, double(2.0, -2.0), 0.0, 1.0, dt=dt, method="dopri5", throw=False, save_at=[0.2, 1.0], gradient=gradient
    )
    assert sol.status == (Status.NOT_FINITE, Status.OK)
    assert 0.3 <= sol.t[0].item() <= 0.5 + 1e-6
    assert sol.x.isnan().tolist() == [[True], [False]]
    assert sol.xs[..., 0].isnan().tolist() == [[False, True], [False, False]]
    close(sol.x[1].item(), -1.0)


def test_a_value_that_is_not_finite_at_the_start_ends_a_sample():
    sol = ncode.solve(lambda t, x, theta: 1 / x, double(0.0, 1.0), 0.0, 1.0, throw=False, dense=True)
    assert sol.status == (Status.NOT_FINITE, Status.OK)
    assert sol.t.tolist() == [0.0, 1.0]
    assert sol.x.isnan().tolist() == [[True], [False]]
    close(sol.x[1].item(), math.sqrt(3), rtol=1e-3)


def test_a_state_that_overflows_ends_a_sample():
    sol = ncode.solve(explode, torch.tensor([[1e30], [0.1]]), 0.0, 1.0, throw=False)
    assert sol.status[0] in (Status.NOT_FINITE, Status.STEP_TOO_SMALL)
    assert sol.status[1] is Status.OK


def test_a_failed_sample_is_nan_in_all_that_it_did_not_reach():
    theta = torch.ones(2, 3, dtype=DOUBLE)
    sol = ncode.solve(
        explode,
        double(2.0, 0.5),
        0.0,
        1.0,
        theta=theta,
        feedback=lambda t, x, theta: -theta,
        cost=lambda t, x, theta: x[:, 0],
        save_at=[0.0, 0.25, 0.75],
        dense=True,
        throw=False,
    )
    assert sol.x[0].isnan().all()
    assert sol.theta[0].isnan().all()
    assert sol.cost[0].isnan()
    assert sol.xs[0, :, 0].isnan().tolist() == [False, False, True]
    assert sol.thetas[0, :, 0].isnan().tolist() == [False, False, True]
    assert sol(torch.tensor([0.25, 0.75]))[0, :, 0].isnan().tolist() == [False, True]
    assert sol.ok.tolist() == [False, True]
    for value in (sol.x, sol.theta, sol.cost, sol.xs, sol.thetas, sol(0.9)):
        assert value[1].isfinite().all()


def test_the_others_equal_a_solve_without_the_one_that_fails():
    options = {"save_at": [0.5, 1.0], "cost": lambda t, x, theta: x[:, 0], "throw": False}
    both = ncode.solve(explode, double(0.5, 2.0, 0.1), 0.0, 1.0, **options)
    without = ncode.solve(explode, double(0.5, 0.1), 0.0, 1.0, **options)
    close((both.x[[0, 2]], both.xs[[0, 2]], both.cost[[0, 2]]), (without.x, without.xs, without.cost))
    for name in ("nfe", "steps", "rejected"):
        assert torch.equal(getattr(both.stats, name)[[0, 2]], getattr(without.stats, name))


@pytest.mark.slow
@every_gradient
def test_the_gradient_of_a_failed_sample_is_zero_and_finite(gradient):
    x0 = double(2.0, 0.5).requires_grad_()
    sol = ncode.solve(explode, x0, 0.0, 1.0, throw=False, gradient=gradient, rtol=1e-7, atol=1e-7)
    (grad,) = torch.autograd.grad(sol.x[1].sum(), x0)
    close(grad, double(0.0, 4.0), rtol=1e-4)


@every_gradient
@pytest.mark.parametrize("dt", [None, 0.1])
def test_what_a_failed_sample_met_on_its_way_does_not_reach_the_gradients_of_others(gradient, dt):
    """The root has an infinite slope at 0, where the sample stays that fails later."""

    def grads(*starts):
        x0 = double(*starts).requires_grad_()
        w = torch.tensor(0.7, dtype=DOUBLE, requires_grad=True)

        def field(t, x, theta):
            return torch.where((x == 0) & (t[:, None] > 0.5), torch.nan, w * x.sqrt())

        sol = ncode.solve(field, x0, 0.0, 1.0, throw=False, gradient=gradient, dt=dt, save_at=[0.3, 1.0])
        good = x0.detach()[:, 0] > 0
        assert sol.ok.tolist() == good.tolist()
        got = torch.autograd.grad(sol.x[good].sum() + sol.xs[good].sum(), [x0, w])
        return got[0][good], got[1]

    close(grads(1.0, 0.0, 2.0), grads(1.0, 2.0))


@every_gradient
@pytest.mark.parametrize("dt", [None, 0.1])
def test_a_batch_that_fails_as_a_whole_has_a_gradient_of_zero(gradient, dt):
    x0 = double(2e200, 5e200).requires_grad_()
    sol = ncode.solve(explode, x0, 0.0, 1.0, throw=False, gradient=gradient, dt=dt)
    assert Status.OK not in sol.status
    (grad,) = torch.autograd.grad(sol.x.sum(), x0)
    close(grad, double(0.0, 0.0))


@every_gradient
@pytest.mark.parametrize("dt", [None, 0.1])
def test_an_error_names_samples_times_and_reasons(gradient, dt):
    t1 = torch.tensor([1.0, 1.0, 1.0, 1.0])
    with pytest.raises(SolveError) as caught:
        ncode.solve(
            lambda t, x, theta: torch.where(x > 5, torch.nan, x),
            double(1.0, 4.0, 0.1, 6.0),
            0.0,
            t1,
            gradient=gradient,
            dt=dt,
        )
    error = caught.value
    assert error.samples == [1, 3]
    assert error.times == pytest.approx([math.log(5 / 4), 0.0], abs=0.1)
    assert error.statuses == [Status.NOT_FINITE, Status.NOT_FINITE]
    assert error.solution.x.isnan()[:, 0].tolist() == [False, True, False, True]
    text = str(error)
    assert "2 of 4 samples" in text
    assert "sample 1 at t = " in text
    assert "sample 3 at t = 0" in text
    assert Status.NOT_FINITE.sentence in text
    assert "throw=False" in text


def test_an_error_about_many_samples_stays_readable():
    with pytest.raises(SolveError) as caught:
        ncode.solve(explode, torch.full((50, 1), 2.0), 0.0, 1.0)
    assert len(caught.value.samples) == 50
    assert str(caught.value).count("sample ") < 12
    assert "more" in str(caught.value)


def test_an_error_is_a_runtime_error_and_can_be_pickled():
    with pytest.raises(RuntimeError) as caught:
        ncode.solve(explode, double(2.0, 0.5).requires_grad_(), 0.0, 1.0, save_at=[0.25])
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, SolveError)
    assert str(again) == str(caught.value)
    assert (again.samples, again.times, again.statuses) == ([0], caught.value.times, [Status.STEP_TOO_SMALL])
    close(again.solution.xs, caught.value.solution.xs.detach().requires_grad_())


@pytest.mark.parametrize("status", Status)
def test_a_status_can_be_copied_pickled_and_read(status):
    assert pickle.loads(pickle.dumps(status)) is status
    assert copy.deepcopy(status) is status
    assert Status(status.value) is status
    assert status.sentence
    assert "\n" not in status.sentence


def test_the_statuses_are_those_that_scripts_use():
    known = {
        "OK",
        "MAX_STEPS",
        "STEP_TOO_SMALL",
        "NOT_FINITE",
        "MIN_DT",
        "MAX_EVENTS",
        "SINGULAR_MATRIX",
        "NEWTON_FAILED",
        "STIFF",
    }
    assert {status.name for status in Status} == known


def test_a_solution_can_be_pickled():
    sol = ncode.solve(decay, double(1.0), 0.0, 1.0, save_at=[0.5], dense=True)
    again = pickle.loads(pickle.dumps(sol))
    close((again.x, again.xs, again(0.3)), (sol.x, sol.xs, sol(0.3)))
    assert again.status == sol.status


def test_an_error_of_the_dynamics_reaches_the_user_as_it_is():
    class Mine(Exception):
        pass

    def field(t, x, theta):
        if bool((t > 0.5).any()):
            raise Mine("too late")
        return -x

    with pytest.raises(Mine, match="too late"):
        ncode.solve(field, double(1.0), 0.0, 1.0)


@pytest.mark.parametrize("t1", [1.0, torch.tensor([1.0, 0.5])])
def test_a_dt_that_is_too_small_is_told_how_many_steps_it_takes(t1):
    with pytest.raises(SolveError, match=r"interval of 1 takes 1e\+09 steps of dt = 1e-09.*\n.*enlarge dt"):
        ncode.solve(decay, double(1.0, 2.0), 0.0, t1, method="euler", dt=1e-9, max_steps=20)


@pytest.mark.parametrize("dt", [None, 0.1])
def test_a_sample_that_cannot_start_stays_where_it_is(dt):
    """Its first step size is nan, which must not get into its time."""
    sol = ncode.solve(lambda t, x, theta: x.sqrt(), double(-1.0, 1.0), 0.5, 1.5, dt=dt, throw=False)
    assert [status.name for status in sol.status] == ["NOT_FINITE", "OK"]
    assert sol.t.tolist() == [0.5, 1.5]
    assert sol.stats.steps[0] == 0


@pytest.mark.parametrize("options", [{}, {"compile": "kernel"}, {"gradient": "autograd"}], ids=str)
def test_a_slope_that_only_dense_output_needs_is_checked(options):
    def f(t, x, theta):
        return 0 * x + 1 / (1 - t.reshape(-1, 1))

    # No stage of bosh3 is at the end of a step: the slope is infinite there, and the state finite.
    arguments = {"method": "bosh3", "dt": 0.5, "throw": False, **options}
    x0 = double(0.0, 0.0)
    end = ncode.solve(f, x0, 0.0, 1.0, **arguments)
    assert end.ok.all()
    assert end.x.isfinite().all()
    saved = ncode.solve(f, x0, 0.0, 1.0, save_at=[0.25, 0.75], **arguments)
    assert set(saved.status) == {Status.NOT_FINITE}


@pytest.mark.parametrize("gradient", ["discrete", "autograd"])
def test_dense_output_that_is_not_finite_is_a_failure(gradient):
    def f(t, x, theta):
        return 0 * x + 1 / (1 - t.reshape(-1, 1))

    arguments = {"method": "bosh3", "dt": 0.5, "throw": False, "gradient": gradient}
    solution = ncode.solve(f, double(0.0, 0.0), 0.0, 1.0, dense=True, **arguments)
    assert set(solution.status) == {Status.NOT_FINITE}
