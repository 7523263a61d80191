import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ncode

DOUBLE = torch.float64
TIGHT = {"exact": False, "rtol": 1e-10, "atol": 1e-12}
GAMMA = {"static": ncode.Static, "open loop": lambda: ncode.OpenLoop(nn.Linear(4, 3), scale=1.0)}
LINEAR = {
    "dense": lambda: ncode.dynamics.Linear(4),
    "sparse": lambda: ncode.dynamics.SparseLinear(4, 2),
    "augmented": lambda: ncode.dynamics.Augmented(ncode.dynamics.Linear(6), zeros=2),
    "diagonal": lambda: ncode.dynamics.BlockLinear(4),
    "blocks": lambda: ncode.dynamics.BlockLinear(4, block=2),
    "skew": lambda: ncode.dynamics.Skew(4),
    "skew blocks": lambda: ncode.dynamics.Augmented(ncode.dynamics.Skew(6, block=3), zeros=2),
}


def gradients(block, loss):
    block.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in block.parameters()]


@pytest.mark.parametrize("controller", GAMMA)
@pytest.mark.parametrize("dynamics", LINEAR)
def test_a_linear_flow_is_exact_values_and_gradients(dynamics, controller):
    block = ncode.NCODE(LINEAR[dynamics](), GAMMA[controller](), t1=3.0).double()
    x = torch.randn(5, 4, dtype=DOUBLE, requires_grad=True)
    for ts in (None, torch.linspace(0, 3, 4, dtype=DOUBLE), 3 * torch.rand(5, 4, dtype=DOUBLE).sort(1).values):
        results = []
        for options in ({}, TIGHT):
            sol = block.solve(x, save_at=ts, **options)
            loss = sol.x.square().sum() + (0 if ts is None else sol.xs.sin().sum())
            x.grad = None
            results.append((sol, gradients(block, loss), x.grad.clone()))
        (exact, params, x_grad), (generic, params_generic, x_grad_generic) = results
        assert exact.stats.nfe.tolist() == [0] * 5
        assert generic.stats.nfe.min() > 0
        torch.testing.assert_close(exact.x, generic.x, rtol=1e-7, atol=1e-8)
        torch.testing.assert_close(x_grad, x_grad_generic, rtol=1e-6, atol=1e-7)
        for a, b in zip(params, params_generic, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
        if ts is not None:
            torch.testing.assert_close(exact.xs, generic.xs, rtol=1e-7, atol=1e-8)
            torch.testing.assert_close(exact.ts, generic.ts)
            torch.testing.assert_close(exact.thetas, generic.thetas)
        torch.testing.assert_close(exact.theta, generic.theta)


@pytest.mark.parametrize("dynamics", [ncode.dynamics.Linear(4), ncode.dynamics.Skew(4, 2)])
def test_a_linear_flow_may_have_times_of_each_samples_own(dynamics):
    block = ncode.NCODE(dynamics).double()
    x, t1 = torch.randn(2, 4, dtype=DOUBLE), torch.tensor([0.5, 2.0], dtype=DOUBLE, requires_grad=True)
    exact, generic = block.solve(x, t1=t1).x, block.solve(x, t1=t1, **TIGHT).x
    torch.testing.assert_close(exact, generic, rtol=1e-7, atol=1e-9)
    grads = [torch.autograd.grad(end.sum(), t1)[0] for end in (exact, generic)]
    torch.testing.assert_close(*grads, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("options", [{"dt": 0.1}, {"dense": True}, {"cost": lambda t, x, theta: x.sum(1)}])
def test_what_the_closed_form_cannot_tell_is_solved_by_steps(options):
    block = ncode.NCODE(ncode.dynamics.Linear(3))
    assert block.solve(torch.randn(2, 3), **options).stats.steps.min() > 0


def test_a_flow_that_overflows_is_named_as_the_solver_would():
    block = ncode.NCODE(ncode.dynamics.Linear(1), t1=1000.0)
    x, theta = torch.ones(2, 1), torch.tensor([-1.0, 1.0])[:, None, None]
    with pytest.raises(ncode.SolveError, match="sample 1 at t = 1000: NOT_FINITE"):
        block.solve(x, theta=theta)
    sol = block.solve(x, theta=theta, throw=False)
    assert sol.status == (ncode.Status.OK, ncode.Status.NOT_FINITE)
    assert sol.x.isnan().tolist() == [[False], [True]]


def test_second_derivatives_of_a_linear_flow_are_there_when_asked_for():
    block = ncode.NCODE(
        ncode.dynamics.SparseLinear(40, 2), ncode.OpenLoop(nn.Linear(40, 3)), gradient="autograd"
    ).double()
    x = torch.randn(2, 40, dtype=DOUBLE, requires_grad=True)
    (first,) = torch.autograd.grad(block(x).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.isfinite().all()


@settings(max_examples=10)
@given(
    n=st.integers(1, 5),
    batch=st.integers(1, 3),
    method=st.sampled_from(["euler", "heun", "rk4", "dopri5"]),
    decay=st.sampled_from([None, 0.3, "learned"]),
    activation=st.sampled_from(["tanh", "sigmoid"]),
)
def test_plastic_synapses_are_those_of_the_generic_solver(n, batch, method, decay, activation):
    f = ncode.dynamics.Recurrent(n, activation)
    block = ncode.NCODE(f, ncode.Hebbian(scale=0.5, decay=decay), t1=0.5, method=method, dt=0.2).double()
    x = torch.randn(batch, n, dtype=DOUBLE, requires_grad=True)
    results = []
    for exact in (True, False):
        sol = block.solve(x, exact=exact)
        x.grad = None
        grads = gradients(block, sol.x.square().sum() + sol.theta["weight"].sin().sum())
        results.append((sol.x, sol.theta["weight"], x.grad.clone(), *grads, sol.stats.steps))
    for fast, generic in zip(*results, strict=True):
        torch.testing.assert_close(fast, generic, rtol=1e-9, atol=1e-11)


def test_forward_never_forms_the_coupling(monkeypatch):
    from ncode.closed_forms import plastic

    block = ncode.NCODE(ncode.dynamics.Recurrent(4), ncode.Hebbian(), t1=0.5, method="rk4", dt=0.25)
    monkeypatch.setattr(plastic.Trace, "theta", lambda self: pytest.fail("formed"))
    block(torch.randn(2, 4)).sum().backward()
