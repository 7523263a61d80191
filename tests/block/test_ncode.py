import subprocess
import sys

import pytest
import torch
from torch import nn

import ncode


def trunk(seen=2, width=8):
    return nn.Sequential(nn.Linear(seen, width), nn.Tanh())


def open_loop(**more):
    return ncode.NCODE(ncode.dynamics.MLP(2), ncode.OpenLoop(trunk()), **more)


def test_forward_is_the_end_of_solve_and_of_the_trajectory():
    block, x = open_loop(t1=2.0), torch.randn(4, 2)
    ts = torch.linspace(0, 2, 5)
    sol = block.solve(x, save_at=ts)
    torch.testing.assert_close(block(x), sol.x)
    torch.testing.assert_close(block.trajectory(x, ts), sol.xs)
    torch.testing.assert_close(sol.xs[:, -1], sol.x)
    assert sol.xs.shape == (4, 5, 2)
    assert {name: tuple(theta.shape) for name, theta in sol.thetas.items()} == {
        name: (4, 5, *shape) for name, shape in block.dynamics.control_shapes.items()
    }


def test_a_trajectory_may_have_times_of_each_samples_own_beyond_t1():
    block, x = open_loop(rtol=1e-6), torch.randn(2, 2)
    ts = torch.tensor([[0.5, 3.0], [0.1, 0.2]])
    together = block.trajectory(x, ts)
    for b in range(2):
        torch.testing.assert_close(together[b : b + 1], block.trajectory(x[b : b + 1], ts[b]), atol=1e-4, rtol=1e-4)


def test_times_may_be_a_list_and_are_not_rounded():
    block, x = open_loop(t1=0.3).double(), torch.randn(2, 2, dtype=torch.float64)
    assert block.solve(x, save_at=[0.1, 0.3]).ts.tolist() == [[0.1, 0.3]] * 2
    assert block.trajectory(x, [0.1, 0.3]).shape == (2, 2, 2)


def test_a_solve_may_have_settings_of_its_own():
    block, x = open_loop(), torch.randn(2, 2)
    assert block.solve(x, method="euler", dt=0.1).stats.steps.tolist() == [10, 10]
    assert block.solve(x, rtol=1e-8).stats.steps.min() > block.solve(x).stats.steps.max()
    assert block.settings.options.method == "dopri5"


def test_a_misspelt_setting_gets_the_nearest_right_one():
    with pytest.raises(ncode.InputError, match='did you mean "rtol"'):
        open_loop().solve(torch.ones(1, 2), rtoll=1e-3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"method": "dopri"}, "did you mean"),
        ({"gradient": "adjont"}, 'did you mean "adjoint"'),
        ({"step": "samples"}, 'did you mean "sample"'),
        ({"dt": 0.0}, "dt must be above 0"),
        ({"method": "rk4"}, "no error estimate"),
    ],
)
def test_settings_are_checked_when_the_block_is_built(wrong, message):
    with pytest.raises(ncode.InputError, match=message):
        open_loop(**wrong)


def test_dense_output_and_statuses_come_as_they_do_from_solve():
    sol = open_loop().solve(torch.randn(3, 2), dense=True)
    torch.testing.assert_close(sol(1.0), sol.x)
    assert sol.status == (ncode.Status.OK,) * 3
    explode = ncode.NCODE(ncode.dynamics.Function(lambda t, x, theta: x**2))
    sol = explode.solve(torch.tensor([[0.1], [10.0]]), throw=False)
    assert sol.ok.tolist() == [True, False]
    with pytest.raises(ncode.SolveError, match="sample 1"):
        explode(torch.tensor([[0.1], [10.0]]))


def test_a_control_from_outside_takes_the_place_of_the_controllers_own():
    block, x = open_loop(), torch.randn(3, 2)
    sol = block.solve(x)
    torch.testing.assert_close(block.solve(x, theta=sol.theta).x, sol.x)
    still = {name: torch.zeros_like(value) for name, value in sol.theta.items()}
    torch.testing.assert_close(block.solve(x, theta=still).x, x)


def test_a_control_from_outside_that_does_not_fit_is_shown_beside_what_is_wanted():
    block = ncode.NCODE(ncode.dynamics.Linear(2))
    with pytest.raises(ncode.InputError, match=r"take   'weight' \(3, 2, 2\)\n  given               'weight' \(3, 2\)"):
        block.solve(torch.ones(3, 2), theta=torch.ones(3, 2))
    with pytest.raises(ncode.InputError, match="'wieght'"):
        block.solve(torch.ones(3, 2), theta={"wieght": torch.ones(3, 2, 2)})
    with pytest.raises(ncode.InputError, match="a dict by name"):
        open_loop().solve(torch.ones(3, 2), theta=torch.ones(3, 2))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.ones(4, 3), r"expects a state of shape \(2,\) per sample; given x of shape \(4, 3\)"),
        (torch.ones(4), r"that is \(\) per sample"),
        (torch.ones(4, 2, dtype=torch.int64), r"use x\.float\(\)"),
        (torch.ones(4, 2, dtype=torch.float64), r"the block is torch\.float32 and x torch\.float64"),
        (1.0, "must be a tensor"),
        ([1.0, 2.0], "one tensor; given a list"),
        (torch.full((4, 2), torch.nan), "not finite"),
    ],
)
def test_an_input_that_does_not_fit_gets_a_sentence(x, message):
    with pytest.raises(ncode.InputError, match=message):
        open_loop()(x)


def test_what_augmentation_made_of_the_input_is_shown_too():
    block = ncode.NCODE(ncode.dynamics.Augmented(ncode.dynamics.MLP(5), zeros=2))
    with pytest.raises(ncode.InputError, match=r"that is \(2,\) per sample, which became \(4,\)"):
        block(torch.ones(1, 2))


def test_a_context_must_have_an_entry_a_sample():
    with pytest.raises(ncode.InputError, match=r"one entry per sample; given \(3, 2\)"):
        open_loop()(torch.ones(4, 2), context=torch.ones(3, 2))


@pytest.mark.parametrize("wrong", [lambda t, x, theta: x, nn.Linear(2, 2)])
def test_what_is_no_dynamics_is_told_how_to_become_one(wrong):
    with pytest.raises(ncode.InputError, match=r"ncode\.dynamics\.Function"):
        ncode.NCODE(wrong)


def test_what_is_no_controller_is_told_how_to_become_one():
    with pytest.raises(ncode.InputError, match=r"ncode\.OpenLoop\(trunk\)"):
        ncode.NCODE(ncode.dynamics.MLP(2), trunk())


def test_a_controller_works_in_a_block_only():
    with pytest.raises(ncode.InputError, match="not part of a block yet"):
        ncode.OpenLoop(trunk()).start(torch.ones(1, 2))


def test_no_samples_make_no_trouble():
    block = open_loop()
    assert block(torch.ones(0, 2)).shape == (0, 2)
    assert ncode.NCODE(ncode.dynamics.Linear(2))(torch.ones(0, 2)).shape == (0, 2)


def test_a_printed_block_says_what_it_is():
    shown = str(open_loop(t1=2.0, gradient="adjoint"))
    assert "dx/dt = MLP(t, x, theta), theta = gamma(x0)" in shown
    assert "theta: 'weight_1' (16, 2), 'bias_1' (16,), 'weight_2' (2, 16), 'bias_2' (2,)" in shown
    assert "t from 0.0 to 2.0, method='dopri5', gradient='adjoint'" in shown
    assert "by the matrix exponential" in str(ncode.NCODE(ncode.dynamics.Linear(2)))
    assert "dx/dt = MLP(t, x)\n" in str(ncode.NCODE(ncode.dynamics.MLP(2, controlled=())))


def test_a_block_whose_samples_end_at_times_of_their_own_can_be_printed():
    block = ncode.NCODE(ncode.dynamics.MLP(2), t1=torch.tensor([1.0, 2.0]))
    assert "tensor([1., 2.])" in repr(block)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"rtol": -1.0}, "rtol must be at least 0"),
        ({"rtol": 0.0, "atol": 0.0}, "both 0"),
        ({"max_steps": 0}, "max_steps must be at least 1"),
        ({"checkpoint_every": 1.5}, "checkpoint_every must be a whole number"),
        ({"method": "rk4"}, "give a step size dt, or use one of midpoint"),
    ],
)
def test_settings_are_checked_when_a_block_is_made(settings, sentence):
    with pytest.raises(ncode.InputError, match=sentence):
        ncode.NCODE(ncode.dynamics.Linear(2), **settings)


def test_each_sample_has_a_flow_of_its_own():
    block, x = open_loop(rtol=1e-6).double(), torch.randn(6, 2, dtype=torch.float64)
    alone = torch.cat([block(x[i : i + 1]) for i in range(6)])
    torch.testing.assert_close(block(x), alone, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("gradient", ["discrete", "adjoint", "autograd"])
def test_all_three_gradients_agree(gradient):
    block, x = open_loop(rtol=1e-9, atol=1e-11).double(), torch.randn(3, 2, dtype=torch.float64)
    block.solve(x).x.square().sum().backward()
    expected = [p.grad.clone() for p in block.parameters()]
    block.zero_grad()
    block.solve(x, gradient=gradient).x.square().sum().backward()
    for p, grad in zip(block.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, grad, rtol=1e-5, atol=1e-8)


def test_frozen_parameters_stay_without_a_gradient():
    block = open_loop()
    block.controller.trunk.requires_grad_(False)
    block(torch.randn(3, 2)).sum().backward()
    assert all(p.grad is None for p in block.controller.trunk.parameters())
    assert all(p.grad is not None for p in block.controller.heads.parameters())


def test_importing_ncode_brings_neither_the_hub_nor_the_compiler():
    heavy = ("huggingface_hub", "safetensors", "onnx", "torch._dynamo")
    code = f"import sys, ncode; print([name for name in {heavy} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_cost_of_the_velocity_takes_no_evaluations_of_its_own_on_any_eager_backend():
    calls = []

    class Counted(ncode.dynamics.Dynamics):
        def forward(self, t, x, theta):
            calls.append(1)
            return -x

    counts = []
    for compile in (False, "eager"):
        calls.clear()
        block = ncode.NCODE(Counted(), method="rk4", dt=0.25, compile=compile)
        block.solve(torch.ones(2, 1), cost=ncode.costs.KineticEnergy())
        counts.append(len(calls))
    assert counts[0] == counts[1]
