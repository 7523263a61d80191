"""`rtol` and `atol` as tensors that broadcast against x: per component, per sample, or both."""

import math

import pytest
import torch

import ncode
from ncode import InputError

from .systems import DOUBLE, GRADIENTS, Everything, close, decay, double, gradients

every_gradient = pytest.mark.parametrize("gradient", GRADIENTS)
both_steps = pytest.mark.parametrize("step", ["sample", "batch"])


def turning(t, x, theta):
    return theta * torch.stack([x[:, 1], -x[:, 0]], 1)


def counts(sol):
    return torch.stack([sol.stats.steps, sol.stats.rejected, sol.stats.nfe])


@every_gradient
@both_steps
@pytest.mark.parametrize("shape", [(), (2,), (3, 1)], ids=str)
def test_a_constant_tensor_is_the_number(gradient, step, shape):
    x0 = torch.linspace(0.5, 2.0, 6, dtype=DOUBLE).reshape(3, 2)

    def run(rtol, atol):
        rates = double(1.0, 3.0, 9.0).requires_grad_()
        sol = ncode.solve(turning, x0, 0.0, 1.0, theta=rates, rtol=rtol, atol=atol, step=step, gradient=gradient)
        return sol.x, counts(sol), torch.autograd.grad(sol.x.sum(), rates)

    close(run(torch.full(shape, 1e-4, dtype=DOUBLE), 1e-6), run(1e-4, 1e-6))
    close(run(1e-4, torch.full(shape, 1e-6, dtype=DOUBLE)), run(1e-4, 1e-6))


@pytest.mark.parametrize(
    ("gradient", "span", "compile"),
    [*((name, span, False) for name in GRADIENTS for span in (1.0, -1.0)), ("discrete", 1.0, True)],
)
def test_each_sample_has_the_solution_of_its_own_tolerance(gradient, span, compile, traced):
    """Also where samples that are done are dropped from the batch, and reordered in backward."""
    tolerances = [1e-10, 1e-2, 1e-4, 1e-2, 1e-6, 1e-3, 1e-2, 1e-8, 1e-2]
    x0 = torch.linspace(0.5, 2.0, 18, dtype=DOUBLE).reshape(9, 2)

    def run(rows, rtol):
        theta = torch.linspace(1.0, 9.0, 9, dtype=DOUBLE)[rows, None].requires_grad_()
        # Compiled batches shrink to an eighth: 9 samples to 2.
        sol = ncode.solve(
            turning, x0[rows], 0.0, span, theta=theta, rtol=rtol, atol=rtol, gradient=gradient, compile=compile
        )
        (grad,) = torch.autograd.grad(sol.x.square().sum() + sol.x[:, 0].sum(), theta)
        return sol.x.detach(), counts(sol).T, grad

    together = run(range(9), torch.tensor(tolerances, dtype=DOUBLE)[:, None])
    compile = False
    alone = [run([i], rtol) for i, rtol in enumerate(tolerances)]
    for got, expected in zip(together, zip(*alone, strict=True), strict=True):
        close(got, torch.cat(expected), rtol=1e-9, atol=1e-11)
    assert len(set(together[1][:, 0].tolist())) > 3, "a test of samples that all take the same steps"


def test_the_component_with_the_tight_tolerance_is_exact():
    """Uncoupled oscillators, of which the error of only one is controlled."""

    def field(t, x, theta):
        speed = torch.tensor([1.0, 1.0, 12.0, 12.0], dtype=DOUBLE)
        return speed * torch.stack([x[:, 1], -x[:, 0], x[:, 3], -x[:, 2]], 1)

    x0 = torch.tensor([[1.0, 0.0, 1.0, 0.0]], dtype=DOUBLE)

    def run(atol):
        sol = ncode.solve(field, x0, 0.0, 3.0, rtol=0.0, atol=atol)
        errors = sol.x[0, [0, 2]] - torch.tensor([math.cos(3.0), math.cos(36.0)], dtype=DOUBLE)
        return errors.abs(), sol.stats.nfe.item()

    (_, fast), cost = run(torch.tensor([1e-8, 1e-8, 1e-8, 1e-8], dtype=DOUBLE))
    (slow, loose), cheap = run(torch.tensor([1e-8, 1e-8, 1e3, 1e3], dtype=DOUBLE))
    assert fast < 1e-5
    assert slow < 1e-5 < loose
    assert cheap < cost / 4


def test_a_component_with_a_tolerance_of_infinity_but_in_name_takes_no_part():
    """A large atol for one component is as if the other were alone, up to the mean over components."""
    x0 = torch.tensor([[1.0, 1e6]], dtype=DOUBLE)
    sol = ncode.solve(decay, x0, 0.0, 1.0, rtol=torch.tensor([1e-8, 0.0]), atol=torch.tensor([1e-8, 1e12]))
    alone = ncode.solve(decay, x0[:, :1], 0.0, 1.0, rtol=1e-8 * math.sqrt(2), atol=1e-8 * math.sqrt(2))
    assert sol.stats.steps.item() == alone.stats.steps.item()


def test_theta_and_the_cost_use_the_smallest_positive_value_of_a_sample():
    system = Everything()
    rtol = torch.tensor([[1e-3, 1e-6], [1e-9, 1e-2], [0.0, 1e-5]], dtype=DOUBLE)
    made = ncode.ode.tolerance.make_tolerance(rtol, 1e-7, (system.x0,))
    close(made.others[0], torch.tensor([1e-6, 1e-9, 1e-5], dtype=DOUBLE))
    assert made.others[1] == 1e-7


@every_gradient
def test_gradients_of_everything_with_tensors_are_those_with_numbers(gradient):
    def run(rtol, atol):
        system = Everything()
        sol = ncode.solve(**system.arguments(), rtol=rtol, atol=atol, gradient=gradient)
        return gradients(system.loss(sol), system.inputs)

    close(run(torch.full((3, 2), 1e-5, dtype=DOUBLE), torch.full((2,), 1e-6, dtype=DOUBLE)), run(1e-5, 1e-6))


@pytest.mark.parametrize("compile", [False, True], ids=["eager", "traced"])
def test_other_tolerances_are_not_those_of_a_compiled_solve_before(compile, traced):
    x0, made = double(1.0, 2.0), []
    for rtol in (1e-3, 1e-9, 1e-3):
        sol = ncode.solve(decay, x0, 0.0, 3.0, rtol=torch.full((2, 1), rtol), atol=0.0, compile=compile)
        made.append(sol.stats.steps.tolist())
    assert made[0] == made[2] != made[1]
    assert len(traced) == (2 if compile else 0), "tensors are inputs of what was compiled once"


def test_tolerances_are_in_the_precision_of_x():
    x0 = torch.ones(2, 3)
    sol = ncode.solve(decay, x0, 0.0, 1.0, rtol=torch.full((3,), 1e-5, dtype=DOUBLE), atol=[1e-6, 1e-6, 1e-6])
    assert sol.x.dtype == torch.float32
    wave = torch.ones(2, 3, dtype=torch.complex64)
    assert ncode.solve(lambda t, x, theta: 1j * x, wave, 0.0, 1.0, rtol=torch.full((2, 1), 1e-4)).ok.all()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rtol": torch.full((3,), 1e-3)}, r"rtol of shape \(3,\) does not broadcast against x0 of shape \(2, 1\)"),
        ({"atol": torch.full((2, 2, 1), 1e-3)}, r"one per sample, \(2, 1\)"),
        ({"rtol": torch.tensor([[1e-3], [-1e-3]])}, "rtol must be finite and at least 0"),
        ({"rtol": torch.tensor([[1e-3], [math.nan]])}, "rtol must be finite and at least 0"),
        ({"atol": torch.tensor([1j])}, "atol must be real"),
        ({"atol": [1e-3, "a"]}, r"atol\[1\] must be a finite number; given 'a'"),
        ({"rtol": 0.0, "atol": torch.tensor([[1e-3], [0.0]])}, "both 0"),
        ({"rtol": torch.tensor([[0.0], [1e-3]]), "atol": torch.tensor([[0.0], [1e-3]])}, "both 0"),
    ],
)
def test_bad_tolerances_are_refused(options, text):
    with pytest.raises(InputError, match=text):
        ncode.solve(decay, double(1.0, 2.0), 0.0, 1.0, **options)


def test_a_block_saves_tolerances_per_component_and_takes_others_per_sample(tmp_path):
    block = ncode.NCODE(ncode.dynamics.MLP(2, hidden=4), rtol=torch.tensor([1e-6, 1e-2]), atol=[1e-7, 1.0])
    block.save_pretrained(tmp_path)
    again, x = ncode.NCODE.from_pretrained(tmp_path), torch.randn(3, 2)
    assert again.settings.options.rtol == block.settings.options.rtol.tolist()
    assert torch.equal(again(x), block(x))
    assert "rtol=tensor" in repr(block)
    own = block.solve(x, rtol=torch.tensor([[1e-2], [1e-6], [1e-4]]))
    close(own.x[1:2], block.solve(x[1:2], rtol=1e-6).x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (0, 2, 2)])
def test_a_batch_without_samples_takes_tensors(shape):
    x0 = torch.zeros(shape)
    assert ncode.solve(lambda t, x, theta: -x, x0, 0.0, 1.0, atol=torch.tensor(1e-4)).x.shape == shape
