import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ncode
from ncode.control.time_varying import BASES


@given(basis=st.sampled_from(sorted(BASES)), terms=st.integers(1, 9), seed=st.integers(0, 99))
def test_slopes_of_a_basis_are_the_derivatives_of_its_values(basis, terms, seed):
    torch.manual_seed(seed)
    s = torch.rand(7, dtype=torch.float64)
    values, slopes = BASES[basis](s, terms)
    assert values.shape == slopes.shape == (7, terms)
    assert torch.equal(values[:, 0], torch.ones_like(s))
    ahead, behind = (BASES[basis](s + h, terms)[0] for h in (1e-6, -1e-6))
    torch.testing.assert_close(slopes, (ahead - behind) / 2e-6, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("basis", sorted(BASES))
def test_both_ends_of_the_span_are_free(basis):
    values, _ = BASES[basis](torch.tensor([0.0, 1.0]), 5)
    assert torch.linalg.matrix_rank(values) == 2


def test_the_control_is_the_sum_of_its_terms_at_every_time():
    block = ncode.NCODE(
        ncode.dynamics.Function(lambda t, x, theta: theta, (1,)), ncode.TimeVarying("fourier", 3, span=2.0)
    )
    c = block.controller.coefficients.theta["theta"].detach()[:, 0]
    ts = torch.linspace(0, 1, 5)
    thetas = block.solve(torch.zeros(2, 1), save_at=ts).thetas["theta"]
    s = math.pi * ts / 2.0
    expected = c[0] + c[1] * torch.cos(s) + c[2] * torch.sin(s)
    torch.testing.assert_close(thetas[..., 0], expected.expand(2, 5))


def test_the_state_is_the_integral_of_a_control_that_is_its_velocity():
    f = ncode.dynamics.Function(lambda t, x, theta: theta, (1,))
    block = ncode.NCODE(f, ncode.TimeVarying("polynomial", 3), rtol=1e-7)
    c = block.controller.coefficients.theta["theta"].detach()[:, 0]
    # Legendre's polynomials but the first integrate to 0.
    torch.testing.assert_close(block(torch.zeros(1, 1)), c[:1, None], atol=1e-5, rtol=0)


def test_one_term_is_a_static_control():
    block = ncode.NCODE(ncode.dynamics.MLP(2), ncode.TimeVarying(terms=1))
    static = ncode.NCODE(ncode.dynamics.MLP(2), ncode.Static())
    for name, parameter in static.controller.theta.items():
        parameter.data.copy_(block.controller.coefficients.theta[name][0])
    x = torch.randn(4, 2)
    torch.testing.assert_close(block(x), static(x))


def test_coefficients_may_differ_between_samples():
    gamma = ncode.OpenLoop(torch.nn.Linear(2, 4))
    block = ncode.NCODE(ncode.dynamics.MLP(2), ncode.TimeVarying(coefficients=gamma))
    assert gamma.heads["weight_1"].out_features == 3 * 16 * 2
    x = torch.randn(4, 2)
    together, alone = block(x), torch.cat([block(x[i : i + 1]) for i in range(4)])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)
    together.sum().backward()
    assert all(p.grad is not None for p in block.parameters())


def test_the_control_is_never_integrated():
    block = ncode.NCODE(ncode.dynamics.MLP(2), ncode.TimeVarying())
    state = block.controller.start(torch.randn(4, 2))
    assert state == ncode.control.State({}, {}, {})


def test_a_function_of_time_cannot_start_from_a_given_control():
    block = ncode.NCODE(ncode.dynamics.Linear(2), ncode.TimeVarying())
    with pytest.raises(ncode.InputError, match="function of time"):
        block.solve(torch.ones(1, 2), theta=torch.ones(1, 2, 2))


@pytest.mark.parametrize(
    "wrong", [{"basis": "fuorier"}, {"terms": 0}, {"span": 0.0}, {"coefficients": ncode.Hebbian()}]
)
def test_arguments_that_make_no_function_of_time_are_refused(wrong):
    with pytest.raises(ncode.InputError):
        ncode.TimeVarying(**wrong)
