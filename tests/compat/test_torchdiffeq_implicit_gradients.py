"""Gradients of the torchdiffeq interface's implicit methods, held to finite differences and the exact solution."""

import pytest
import torch
from torch.autograd import forward_ad

from ncode.compat import torchdiffeq as ours

from .systems import DOUBLE, IMPLICIT_ORDERS, TIGHT, Field, double, flat, gradients, start, times

every_method = pytest.mark.parametrize("method", IMPLICIT_ORDERS)


@every_method
@pytest.mark.parametrize("t", [(0.0, 0.4, 1.0), (1.0, 0.3)], ids=["forward", "backward"])
def test_first_and_second_derivatives_agree_with_finite_differences(method, t):
    field, y0, t = Field(), start(2), times(*t)

    def final(y0, t, w, b):
        tensors = {"w": w, "b": b}
        return ours.odeint(lambda t, y: _call(field, tensors, t, y), y0, t, method=method)[1:]

    inputs = (y0, t, field.w.detach().clone().requires_grad_(), field.b.detach().clone().requires_grad_())
    assert torch.autograd.gradcheck(final, inputs)
    assert torch.autograd.gradgradcheck(final, inputs)


def _call(field, tensors, t, y):
    return torch.tanh(y @ tensors["w"] + tensors["b"] * torch.cos(t)) - 0.3 * y


@every_method
def test_gradients_of_complex_and_tuple_states_agree_with_finite_differences(method):
    a = torch.tensor([0.3 - 1.1j, -0.2 + 0.5j], dtype=torch.complex128, requires_grad=True)

    def final(y0, z0, a):
        def func(t, y):
            return a * y[0] * y[0].abs(), -y[1] * a.real.sum() * t

        return ours.odeint(func, (y0, z0), double(0.0, 0.5), method=method)[0][-1]

    y0 = torch.tensor([1.0 + 0.5j, -0.7j], dtype=torch.complex128, requires_grad=True)
    assert torch.autograd.gradcheck(final, (y0, start(1).to(torch.complex128).detach(), a))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # by make_dual
@every_method
@pytest.mark.parametrize("enabled", [True, False])
def test_forward_mode_agrees_with_reverse_mode(method, enabled):
    w, y0, t = torch.tensor(1.3, dtype=DOUBLE), double(1.0, 2.0), double(0.0, 0.5, 1.0)

    def total(y0, w):
        return ours.odeint(lambda t, y: -w * y.square() * t.cos(), y0, t, method=method)[-1].sum()

    with torch.set_grad_enabled(enabled), forward_ad.dual_level():
        duals = (forward_ad.make_dual(it, torch.ones_like(it)) for it in (y0, w))
        tangent = forward_ad.unpack_dual(total(*duals)).tangent
    leaves = y0.requires_grad_(), w.requires_grad_()
    expected = sum(it.sum() for it in torch.autograd.grad(total(*leaves), leaves))
    torch.testing.assert_close(tangent, expected, rtol=1e-10, atol=1e-10)


@every_method
def test_the_discrete_gradient_is_the_same(method):
    field, y0, t = Field(), start(2), times(0.0, 0.5, 1.0)
    inputs = (y0, *field.parameters())
    kept, again = (
        gradients(ours.odeint(field, y0, t, method=method, options=options), *inputs)
        for options in ({}, {"gradient": "discrete"})
    )
    torch.testing.assert_close(again, kept, rtol=1e-12, atol=1e-12)


@every_method
@pytest.mark.parametrize("end", [1.0, -0.5])
def test_the_adjoint_solves_the_augmented_system_with_the_same_method(method, end):
    """Its Newton steps are for y alone; here the whole system is one differentiable state."""
    field, y0, t = Field(), start(2), times(0.0, end)
    y = ours.odeint_adjoint(field, y0, t, method=method, options={"step_size": 0.125})
    by_state, by_time, *by_parameters = torch.autograd.grad(y[-1].square().sum(), (y0, t, *field.parameters()))

    def augmented(t, z):
        with torch.enable_grad():
            x, t = z[0].clone().requires_grad_(), t.clone().requires_grad_()
            slope = field(t, x)
            return slope, *torch.autograd.grad(slope, (x, *field.parameters(), t), -z[1], create_graph=True)

    y1 = y[-1].detach()
    zeros = [torch.zeros_like(it) for it in field.parameters()]
    initial = (y1, 2 * y1, *zeros, -(field(t[1], y1) * 2 * y1).sum().detach())
    with torch.no_grad():
        parts = ours.odeint(augmented, initial, t.flip(0), method=method, options={"step_size": 0.125})
    got = flat((by_state, *by_parameters, by_time[0]))
    torch.testing.assert_close(got, flat(part[-1] for part in parts[1:]), rtol=0, atol=1e-10)


@pytest.mark.parametrize("method", ["gl6", "radauIIA5"])
def test_the_adjoint_gradient_is_that_of_the_exact_solution(method):
    field, y0, t = Field(), start(3, 2), times(0.0, 0.4, 1.0)
    inputs = (y0, t, *field.parameters())
    y = ours.odeint_adjoint(field, y0, t, method=method, options={"step_size": 0.1})
    exact = gradients(ours.odeint(field, y0, t, **TIGHT), *inputs)
    torch.testing.assert_close(gradients(y, *inputs), exact, rtol=0, atol=1e-6)


def test_the_adjoint_of_complex_states_is_that_of_the_exact_solution():
    a = torch.tensor([0.3 - 1.1j, -0.2 + 0.5j], dtype=torch.complex128, requires_grad=True)
    y0 = torch.tensor([1.0 + 0.5j, -0.7j], dtype=torch.complex128, requires_grad=True)

    def grads(interface, **options):
        y = interface(lambda t, y: a * y * y.abs(), y0, double(0.0, 0.5), **options)
        return torch.view_as_real(flat(torch.autograd.grad(y[-1].abs().square().sum() + y[-1].sum().imag, (y0, a))))

    got = grads(ours.odeint_adjoint, method="gl6", options={"step_size": 0.05})
    torch.testing.assert_close(got, grads(ours.odeint, **TIGHT), rtol=0, atol=1e-8)


def test_forward_and_backward_may_have_methods_of_different_kinds():
    field, y0, t = Field(), start(2), times(0.0, 0.5)
    inputs = (y0, *field.parameters())
    exact = gradients(ours.odeint(field, y0, t, **TIGHT), *inputs)
    fixed = {"step_size": 0.1, "max_iters": 20}
    for method, options, backward, adjoint in (("gl6", fixed, "dopri5", {}), ("dopri5", {}, "gl6", fixed)):
        y = ours.odeint_adjoint(
            field, y0, t, method=method, options=options, adjoint_method=backward, adjoint_options=adjoint
        )
        torch.testing.assert_close(gradients(y, *inputs), exact, rtol=0, atol=1e-5)
