"""Bad input gets a sentence: what was given, what was expected, what to do."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import ncode
from ncode import InputError

from .systems import DOUBLE, GRADIENTS, close, decay, double

X0 = double(1.0, 2.0, 3.0)


def refused(*parts, field=decay, x0=X0, t0=0.0, t1=1.0, **options):
    """Assert that solve refuses with a sentence that has these parts, before it has done any work."""
    with pytest.raises(InputError) as caught:
        ncode.solve(field, x0, t0, t1, **options)
    for part in parts:
        assert part in str(caught.value), caught.value
    assert isinstance(caught.value, ValueError)


def untouched(t, x, theta):
    raise AssertionError("the dynamics were evaluated before the input was checked")


# Shapes and dtypes


def test_a_state_without_a_batch_is_refused():
    refused("batch dimension", "()", "x0[None]", x0=torch.tensor(1.0), field=untouched)


@pytest.mark.parametrize("x0", [[1.0, 2.0], 3.0, None, np.ones((2, 1))])
def test_a_state_that_is_no_tensor_is_refused(x0):
    refused("x0 must be a tensor", type(x0).__name__, x0=x0, field=untouched)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool, torch.uint8])
def test_a_state_of_integers_is_refused(dtype):
    refused(str(dtype), "x0.float()", x0=torch.ones(2, 1, dtype=dtype), field=untouched)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_state_in_half_precision_is_refused_with_a_way_out(dtype):
    refused(str(dtype), "torch.autocast", x0=torch.ones(2, 1, dtype=dtype), field=untouched)


def test_a_sample_without_elements_is_refused():
    refused("(2, 0, 3)", x0=torch.ones(2, 0, 3), field=untouched)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_state_that_is_not_finite_is_refused_and_its_samples_named(bad):
    x0 = torch.ones(4, 2)
    x0[1, 0] = x0[3, 1] = bad
    refused("x0 is not finite", "2 of 4", "1, 3", x0=x0, field=untouched)
    refused("x0 is not finite", "1 of 2", "0", x0=torch.tensor([bad, 1.0]), field=untouched)


def test_a_control_that_is_not_finite_is_refused():
    refused("theta is not finite", "sample", theta={"a": X0, "b": torch.tensor([1.0, math.nan, 1.0])}, field=untouched)


def test_a_control_of_another_batch_is_refused():
    refused("(2, 5)", "3 samples", theta=torch.ones(2, 5), field=untouched)
    refused("()", "3 samples", theta=(X0, torch.tensor(1.0)), field=untouched)


@pytest.mark.parametrize("leaf", [1.0, "rate", None, np.ones(3)])
def test_a_control_with_a_leaf_that_is_no_tensor_is_refused(leaf):
    refused("theta must be", type(leaf).__name__, theta={"a": X0, "b": [leaf]}, field=untouched)


def test_a_driven_control_of_another_dtype_is_refused():
    refused("torch.float32", "torch.float64", theta=X0.float(), feedback=lambda t, x, theta: theta, field=untouched)


def test_a_control_on_another_device_is_refused():
    refused("meta", "cpu", theta=torch.ones(3, 1, device="meta"), field=untouched)


def test_feedback_without_a_control_is_refused():
    refused("theta is None", feedback=lambda t, x, theta: theta, field=untouched)


# What functions return


@pytest.mark.parametrize("name", ["dynamics", "feedback", "cost"])
def test_a_function_that_is_none_is_refused(name):
    given = {"field": 3} if name == "dynamics" else {name: 3}
    refused(f"{name} must be a function of (t, x, theta)", "int", theta=X0, **given)


def test_dynamics_that_return_another_shape_are_refused():
    refused("the dynamics returned shape (3,)", "(3, 1)", field=lambda t, x, theta: -x[:, 0])
    refused("the dynamics returned shape (1, 1)", "(3, 1)", field=lambda t, x, theta: x[:1])


def test_dynamics_that_return_another_dtype_are_refused():
    refused("torch.float32", "torch.float64", ".to(x.dtype)", field=lambda t, x, theta: x.float())


def test_dynamics_that_return_a_tensor_elsewhere_are_refused():
    refused("meta", "cpu", field=lambda t, x, theta: torch.empty_like(x, device="meta"))


@pytest.mark.parametrize("returned", [None, 1.0, [1.0]])
def test_dynamics_that_return_no_tensor_are_refused(returned):
    refused("the dynamics must return a tensor", type(returned).__name__, field=lambda t, x, theta: returned)


def test_a_feedback_that_does_not_fit_its_control_is_refused():
    theta = {"a": X0, "b": X0}
    refused("the feedback returned shape (3,)", theta=X0, feedback=lambda t, x, theta: theta[:, 0])
    refused("nested as theta", theta=theta, feedback=lambda t, x, theta: {"a": x})
    refused("nested as theta", theta=theta, feedback=lambda t, x, theta: {"a": x, "c": x})
    refused("nested as theta", theta=theta, feedback=lambda t, x, theta: (x, x))
    refused("nested as theta", theta=theta, feedback=lambda t, x, theta: x)
    refused("the feedback must return a tensor", theta=X0, feedback=lambda t, x, theta: None)


def test_a_cost_that_is_not_one_number_a_sample_is_refused():
    refused("the cost returned shape (3, 1)", "(3,)", cost=lambda t, x, theta: x)
    refused("the cost returned shape ()", "(3,)", cost=lambda t, x, theta: x.sum())
    refused("the cost must return a tensor", cost=lambda t, x, theta: 1.0)


# Times


@pytest.mark.parametrize("name", ["t0", "t1"])
def test_times_that_cannot_be_used_are_refused(name):
    for given, part in (
        (math.nan, "finite"),
        (math.inf, "finite"),
        (torch.tensor([0.0, math.nan, 0.0]), "finite"),
        ("now", "str"),
        (None, "NoneType"),
        (True, "bool"),
        ([0.0, 1.0, 2.0], "list"),
        (torch.zeros(2), "(2,)"),
        (torch.zeros(3, 1), "(3, 1)"),
        (torch.tensor(1j), "real"),
        (torch.tensor(True), "real"),
    ):
        refused(name, part, field=untouched, **{name: given})


@pytest.mark.parametrize("t1", [1, np.float32(1), np.float64(1), np.int64(1), torch.tensor(1), torch.ones(3)])
def test_a_time_may_be_any_kind_of_number(t1):
    close(ncode.solve(decay, X0, 0, t1, rtol=1e-9, atol=1e-9).x, X0 * math.exp(-1), rtol=1e-7)


def test_saved_times_out_of_order_are_refused():
    refused("out of order", save_at=[0.5, 0.2], field=untouched)
    refused("out of order", save_at=[0.2, 0.5], t0=1.0, t1=0.0, field=untouched)
    refused("out of order", save_at=[[0.1, 0.2], [0.2, 0.1], [0.1, 0.2]], field=untouched)


def test_saved_times_outside_of_the_interval_are_refused_and_the_sample_named():
    refused("outside of [t0, t1]", "0 to 1", "2", save_at=[0.5, 2.0], field=untouched)
    refused("outside of [t0, t1]", save_at=[-0.1, 0.5], field=untouched)
    own = torch.tensor([[0.1], [0.9], [0.1]])
    refused("sample 1", save_at=own, t1=torch.tensor([1.0, 0.5, 1.0]), field=untouched)


@pytest.mark.parametrize(
    "save_at", [0.5, torch.tensor(0.5), torch.zeros(2, 4), torch.zeros(1, 2, 3), ["a"], [[0.1], [0.2, 0.3]], object()]
)
def test_saved_times_of_another_shape_or_kind_are_refused(save_at):
    refused("save_at must", save_at=save_at, field=untouched)


def test_saved_times_that_are_no_numbers_are_refused():
    refused("save_at", save_at=[math.inf], field=untouched)
    refused("save_at", save_at=torch.tensor([1j]), field=untouched)
    refused("save_at", save_at=torch.tensor([True]), field=untouched)


def test_saved_times_in_single_precision_may_miss_the_end_by_their_rounding():
    for t1 in (0.1, 1 / 3, 1e5 / 3):
        sol = ncode.solve(lambda t, x, theta: torch.ones_like(x), X0, 0.0, t1, save_at=torch.tensor([0.0, t1]))
        close(sol.xs[:, -1], sol.x, rtol=1e-6)


def test_no_saved_times_are_no_values():
    sol = ncode.solve(decay, X0, 0.0, 1.0, save_at=[])
    assert sol.xs.shape == (3, 0, 1)
    assert sol.ts.shape == (3, 0)


def test_a_time_that_one_sample_was_not_solved_at_is_refused_with_its_interval():
    sol = ncode.solve(decay, X0, 0.0, torch.tensor([1.0, 0.0, 2.0]), dense=True)
    with pytest.raises(InputError, match=r"given 0\.5 for sample 1, which was solved on \[0, 0\]"):
        sol(0.5)


def test_a_time_that_was_not_solved_is_refused():
    sol = ncode.solve(decay, X0, 0.0, 1.0, dense=True)
    for t in (-0.1, 1.1, math.nan, torch.tensor([0.5, 2.0])):
        with pytest.raises(InputError, match="outside of the solved interval"):
            sol(t)
    for t in (torch.zeros(2, 4), torch.zeros(1, 3, 2)):
        with pytest.raises(InputError, match="times of shape"):
            sol(t)
    plain = ncode.solve(decay, X0, 0.0, 1.0)
    with pytest.raises(InputError, match="dense=True"):
        plain(0.5)


# Names and numbers


@pytest.mark.parametrize(
    ("given", "nearest"),
    [("dopri55", "dopri5"), ("rk45", "rk4"), ("Tsit5", "tsit5"), ("eueler", "euler"), ("dopri_8", "dopri8")],
)
def test_an_unknown_method_gets_the_nearest(given, nearest):
    refused(f'did you mean "{nearest}"?', given, "bosh3", method=given, field=untouched)


@pytest.mark.parametrize(
    ("name", "given", "nearest"),
    [
        ("gradient", "discreet", "discrete"),
        ("gradient", "adjont", "adjoint"),
        ("step", "samples", "sample"),
        ("step", "Batch", "batch"),
    ],
)
def test_an_unknown_name_gets_the_nearest(name, given, nearest):
    refused(f"unknown {name}", f'did you mean "{nearest}"?', field=untouched, **{name: given})


@pytest.mark.parametrize("name", ["method", "gradient", "step"])
def test_a_name_that_resembles_nothing_gets_the_list(name):
    refused(f"unknown {name}", "known: ", field=untouched, **{name: "zzzzzzz"})
    refused(f"unknown {name}", "known: ", field=untouched, **{name: 5})


@pytest.mark.parametrize("name", ["rtol", "atol"])
@pytest.mark.parametrize("bad", [-1e-3, math.nan, math.inf, "small", None, torch.tensor(-1e-3), True])
def test_tolerances_that_cannot_be_used_are_refused(name, bad):
    refused(name, field=untouched, **{name: bad})


def test_two_tolerances_of_zero_are_refused():
    refused("both 0", rtol=0.0, atol=0.0, field=untouched)
    for one in ({"rtol": 0.0, "atol": 1e-6}, {"rtol": 1e-6, "atol": 0.0}):
        close(ncode.solve(decay, X0, 0.0, 1.0, **one).x, X0 * math.exp(-1), rtol=1e-4)


@pytest.mark.parametrize("bad", [0.0, -0.1, math.nan, math.inf, "small", True])
def test_a_fixed_step_that_cannot_be_used_is_refused(bad):
    refused("dt", dt=bad, field=untouched)


@pytest.mark.parametrize("method", ["euler", "rk4"])
def test_a_method_without_an_error_estimate_needs_a_step(method):
    refused(f'"{method}"', "dt", "dopri5", method=method, field=untouched)


@pytest.mark.parametrize("name", ["max_steps", "checkpoint_every"])
@pytest.mark.parametrize("bad", [0, -3, 2.5, math.nan, math.inf, "ten", None])
def test_counts_that_cannot_be_used_are_refused(name, bad):
    refused(name, field=untouched, **{name: bad})


def test_a_controller_of_another_kind_is_refused():
    refused("step_rule must be a StepSizeRule", "str", step_rule="PID", field=untouched)


def test_one_step_for_the_batch_needs_one_interval_for_the_batch():
    refused("the same for all", step="batch", t1=torch.tensor([1.0, 2.0, 3.0]), field=untouched)
    ncode.solve(decay, X0, torch.zeros(3), torch.ones(3), step="batch")


def test_options_are_given_by_name():
    with pytest.raises(TypeError):
        ncode.solve(decay, X0, 0.0, 1.0, X0)


# No samples


@pytest.mark.parametrize("gradient", GRADIENTS)
@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("options", [{}, {"dt": 0.1}, {"step": "batch"}])
def test_an_empty_batch_has_an_empty_solution(gradient, feedback, options):
    x0 = torch.zeros(0, 2, dtype=DOUBLE, requires_grad=True)
    theta = {"a": torch.zeros(0, 3, dtype=DOUBLE), "b": (torch.zeros(0, dtype=DOUBLE),)}
    sol = ncode.solve(
        untouched,
        x0,
        0.0,
        1.0,
        theta=theta,
        feedback=(lambda t, x, theta: theta) if feedback else None,
        cost=lambda t, x, theta: x.sum(1),
        save_at=[0.5, 1.0],
        dense=gradient != "adjoint",
        gradient=gradient,
        **options,
    )
    assert sol.x.shape == (0, 2)
    assert sol.theta["a"].shape == (0, 3)
    assert sol.cost.shape == (0,)
    assert sol.xs.shape == (0, 2, 2)
    assert sol.ts.shape == (0, 2)
    assert sol.thetas["a"].shape == (0, 2, 3)
    assert sol.thetas["b"][0].shape == (0, 2)
    assert sol.status == ()
    assert sol.stats.nfe.shape == sol.stats.steps.shape == sol.stats.rejected.shape == (0,)
    sol.x.sum().backward()
    assert x0.grad.shape == (0, 2)
    if gradient != "adjoint":
        assert sol(0.5).shape == (0, 2)
        assert sol(torch.tensor([0.1, 0.2, 0.3])).shape == (0, 3, 2)


@pytest.mark.parametrize(
    "controller", [None, ncode.OpenLoop(nn.Linear(2, 4)), ncode.ClosedLoop(ncode.control.Feedback(nn.Linear(2, 4)))]
)
def test_a_loss_of_no_samples_has_a_backward(controller):
    block = ncode.NCODE(ncode.dynamics.MLP(2), controller)
    sol = block.solve(torch.zeros(0, 2), save_at=torch.tensor([0.5, 1.0]))
    (sol.x.sum() + sol.xs.sum()).backward()
    assert all(p.grad is not None and not p.grad.any() for p in block.parameters())


def test_an_empty_batch_may_have_times_of_its_own():
    sol = ncode.solve(untouched, torch.zeros(0, 2), torch.zeros(0), torch.ones(0), save_at=torch.zeros(0, 4))
    assert sol.xs.shape == (0, 4, 2)


def test_dynamics_in_another_precision_than_x_are_refused():
    net = torch.nn.Linear(2, 2)
    with pytest.raises(ncode.InputError, match=r"x of torch.float64 with another dtype .* net.to\(x0.dtype\)"):
        ncode.solve(lambda t, x, theta: net(x), torch.ones(3, 2, dtype=torch.float64), 0.0, 1.0)


@pytest.mark.parametrize("name", ["p", "i", "d", "safety", "smallest", "largest"])
@pytest.mark.parametrize("bad", [10**400, math.nan, "0.5", None, [1.0], torch.ones(2), 1j])
def test_a_number_of_the_step_rule_that_cannot_be_used_is_refused(name, bad):
    with pytest.raises(InputError, match=f"{name} of PID must be a finite number"):
        ncode.PID(**{name: bad})


@pytest.mark.parametrize("name", ["rtol", "atol"])
def test_tolerances_nested_too_deeply_are_refused(name):
    deep = 1e-3
    for _ in range(5000):
        deep = (deep,)
    with pytest.raises(InputError, match=f"{name} is nested too deeply"):
        ncode.solve(decay, X0, 0.0, 1.0, **{name: deep})
