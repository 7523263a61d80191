import math

import pytest
import scipy.linalg
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import ncode
from ncode.closed_forms import linear_recurrence, piecewise_linear_flow
from ncode.closed_forms.piecewise import scan_is_faster

DOUBLE = torch.float64


def problem(batch=3, count=7, m=4, seed=0, dtype=DOUBLE):
    g = torch.Generator().manual_seed(seed)
    theta, x0, bias = (
        torch.randn(*shape, generator=g, dtype=DOUBLE).to(dtype)
        for shape in ((batch, count, m, m), (batch, m), (batch, count, m))
    )
    knots = torch.rand(batch, count + 1, generator=g, dtype=DOUBLE).cumsum(1)
    return theta, x0, knots, bias


def step_by_step(theta, x0, knots, bias):
    """The same by `ncode.solve`, one solve per interval."""
    xs = [x0]
    for k in range(theta.shape[1]):
        f = lambda t, x, w: (w[0] @ x[..., None])[..., 0] + w[1]  # noqa: E731
        now = theta[:, k], torch.zeros_like(x0) if bias is None else bias[:, k]
        sol = ncode.solve(f, xs[-1], knots[:, k], knots[:, k + 1], theta=now, rtol=1e-10, atol=1e-12)
        xs.append(sol.x)
    return torch.stack(xs, 1)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("recurrence", ["loop", "scan"])
def test_the_flow_is_that_of_a_solve_per_interval_values_and_gradients(recurrence, biased):
    *leaves, bias = problem()
    leaves = [leaf.requires_grad_() for leaf in (*leaves, *([bias] if biased else []))]
    weights = torch.randn(3, 8, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    found = []
    for solve in (lambda *args, b=None: piecewise_linear_flow(*args, bias=b, recurrence=recurrence), None):
        arguments = leaves[:3], leaves[3] if biased else None
        xs = step_by_step(*arguments[0], arguments[1]) if solve is None else solve(*arguments[0], b=arguments[1])
        found.append((xs.detach(), *torch.autograd.grad((xs * weights).sum(), leaves)))
    for exact, generic in zip(*found, strict=True):
        torch.testing.assert_close(exact, generic, rtol=1e-6, atol=1e-7)


@given(st.integers(1, 40), st.integers(1, 3), st.booleans(), st.integers(0, 99))
def test_loop_and_scan_agree_values_and_gradients(count, m, added, seed):
    g = torch.Generator().manual_seed(seed)
    e = torch.linalg.qr(torch.randn(2, count, m, m, generator=g, dtype=DOUBLE))[0].requires_grad_()
    x0, c = (torch.randn(*s, generator=g, dtype=DOUBLE).requires_grad_() for s in ((2, m), (2, count, m)))
    leaves = (e, x0, c) if added else (e, x0)
    weights = torch.randn(2, count + 1, m, generator=g, dtype=DOUBLE)
    found = []
    for how in ("loop", "scan"):
        xs = linear_recurrence(*leaves, recurrence=how)
        found.append((xs.detach(), *torch.autograd.grad((xs * weights).sum(), leaves)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("recurrence", ["loop", "scan"])
def test_a_recurrence_has_first_and_second_derivatives(recurrence):
    theta, x0, _, bias = problem(batch=2, count=5, m=2)
    leaves = [leaf.requires_grad_() for leaf in (0.5 * theta, x0, bias)]
    function = lambda e, x, c: linear_recurrence(e, x, c, recurrence=recurrence)  # noqa: E731
    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


def test_the_flow_of_single_precision_is_exact_to_its_rounding():
    theta, x0, knots, _ = problem(count=5, dtype=torch.float32)
    x = x0.double()
    for k in range(5):
        h = (knots[:, k + 1] - knots[:, k])[:, None, None]
        x = (torch.tensor(scipy.linalg.expm((theta[:, k].double() * h).numpy())) @ x[..., None])[..., 0]
    found = piecewise_linear_flow(theta, x0, knots)[:, -1]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), x, rtol=3e-7, atol=3e-7)


def test_a_sample_does_not_depend_on_its_companions():
    theta, x0, knots, bias = problem()
    together = piecewise_linear_flow(theta, x0, knots, bias=bias)
    for row in range(3):
        one = slice(row, row + 1)
        alone = piecewise_linear_flow(theta[one], x0[one], knots[one], bias=bias[one])
        torch.testing.assert_close(together[one], alone, rtol=1e-11, atol=1e-11)


def test_time_may_run_backward_and_stand_still():
    theta, x0, knots, bias = problem()
    xs = piecewise_linear_flow(theta, x0, knots, bias=bias)
    back = piecewise_linear_flow(theta.flip(1), xs[:, -1], knots.flip(1), bias=bias.flip(1))
    torch.testing.assert_close(back.flip(1), xs, rtol=1e-8, atol=1e-8)
    still = piecewise_linear_flow(theta, x0, torch.ones(8, dtype=DOUBLE), bias=bias)
    torch.testing.assert_close(still, x0[:, None].expand(-1, 8, -1))


def test_no_intervals_and_no_samples_are_no_special_cases():
    theta, x0, knots, _ = problem(count=1)
    assert torch.equal(piecewise_linear_flow(theta[:, :0], x0, knots[:, :1]), x0[:, None])
    assert piecewise_linear_flow(theta[:0], x0[:0], knots[:0]).shape == (0, 2, 4)


def test_a_scan_is_chosen_for_many_small_matrices():
    assert scan_is_faster(torch.empty(1, 1024, 4, 4))
    assert not scan_is_faster(torch.empty(1, 4, 4, 4))
    assert not scan_is_faster(torch.empty(4, 64, 64, 64))


@pytest.mark.parametrize(
    "dynamics",
    [
        ncode.dynamics.Linear(4),
        ncode.dynamics.SparseLinear(4, 2),
        ncode.dynamics.BlockLinear(4, 2),
        ncode.dynamics.Skew(4),
        ncode.dynamics.Skew(4, 2),
    ],
    ids=lambda it: f"{type(it).__name__}-{it.control_shapes['weight']}",
)
@pytest.mark.parametrize("t", [(0.0, 4.0), (3.5, 0.3)])
def test_a_block_along_a_piecewise_constant_path_is_solved_exactly(dynamics, t):
    torch.manual_seed(0)
    values = (0.3 * torch.randn(4, 5, 2, dtype=DOUBLE)).requires_grad_()
    size = math.prod(dynamics.control_shapes["weight"])
    block = ncode.NCODE(dynamics, ncode.InputControl(nn.Linear(2, size)), *t).double()
    assert "matrix exponentials" in repr(block)
    x, found = torch.randn(4, 4, dtype=DOUBLE, requires_grad=True), []
    ts = torch.linspace(*t, 6, dtype=DOUBLE)[1:-1] + 0.01
    for options in ({}, {"exact": False, "rtol": 1e-9, "atol": 1e-11}):
        path = ncode.paths.constant(values, lengths=torch.tensor([5, 2, 3, 1]))
        sol = block.solve(x, path=path, save_at=ts, **options)
        loss = sol.x.square().sum() + sol.xs.sin().sum()
        grads = torch.autograd.grad(loss, (x, values, *block.parameters()))
        found.append((sol.x, sol.xs, sol.theta["weight"], sol.thetas["weight"], *grads))
        assert bool((sol.stats.nfe == 0).all()) != bool(options)
    for exact, generic in zip(*found, strict=True):
        torch.testing.assert_close(exact, generic, rtol=1e-5, atol=1e-5)


def test_other_paths_and_steps_of_a_given_size_are_left_to_the_solver():
    block = ncode.NCODE(ncode.dynamics.Linear(2), ncode.InputControl(), t1=2.0)
    values, x = torch.randn(3, 4, 4), torch.randn(3, 2)
    assert block.solve(x, path=ncode.paths.linear(values)).stats.nfe.min() > 0
    assert block.solve(x, path=ncode.paths.constant(values), dt=0.5).stats.nfe.min() > 0
    assert block.solve(x, path=ncode.paths.constant(values)).stats.nfe.max() == 0


def test_missing_saved_times_of_a_block_are_nan():
    block = ncode.NCODE(ncode.dynamics.Linear(2), ncode.InputControl(), t1=2.0)
    path, ts = ncode.paths.constant(torch.randn(2, 3, 4)), torch.tensor([[0.5, 2.0], [1.0, math.nan]])
    sol = block.solve(torch.randn(2, 2), path=path, save_at=ts)
    assert torch.equal(sol.xs.isnan()[..., 0], ts.isnan())
    assert torch.equal(sol.thetas["weight"].isnan()[..., 0, 0], ts.isnan())


def test_bad_arguments_are_refused_with_a_sentence():
    theta, x0, knots, bias = problem()
    with pytest.raises(ncode.InputError, match=r"theta must be \(3, K, 4, 4\)"):
        piecewise_linear_flow(theta[:2], x0, knots)
    with pytest.raises(ncode.InputError, match=r"knots must be \(8,\) or \(3, 8\)"):
        piecewise_linear_flow(theta, x0, knots[:, 1:])
    with pytest.raises(ncode.InputError, match=r"bias must be \(3, 7, 4\)"):
        piecewise_linear_flow(theta, x0, knots, bias=bias[:, 1:])
    with pytest.raises(ncode.InputError, match=r"theta is torch\.float32"):
        piecewise_linear_flow(theta.float(), x0, knots)
    with pytest.raises(ncode.InputError, match=r"theta .* is not finite"):
        piecewise_linear_flow(theta * math.inf, x0, knots)
    with pytest.raises(ncode.InputError, match="recurrence"):
        piecewise_linear_flow(theta, x0, knots, recurrence="tree")
    with pytest.raises(ncode.InputError, match=r"c must be \(3, 7, 4\)"):
        linear_recurrence(theta, x0, bias[:, 1:])
    with pytest.raises(ncode.InputError, match="x0 must be real"):
        piecewise_linear_flow(theta, x0[0], knots)
