"""`odeint_adjoint` of the torchdiffeq interface."""

import pytest
import torch
from torch import nn

import ncode
from ncode.compat import torchdiffeq as ours

from .systems import DOUBLE, FIXED, TIGHT, Counted, flat, gradients, start, times

theirs = pytest.importorskip("torchdiffeq")


def test_odeint_adjoint_gives_torchdiffeqs_gradients():
    field, y0, t = Counted(), start(3, 2), times(0, 0.7, 1)
    inputs = (y0, t, *field.parameters())
    y, reference = (library.odeint_adjoint(field, y0, t, **TIGHT) for library in (ours, theirs))
    torch.testing.assert_close(y, reference, rtol=0, atol=1e-8)
    torch.testing.assert_close(gradients(y, *inputs), gradients(reference, *inputs), rtol=0, atol=1e-7)


@pytest.mark.parametrize("method", FIXED)
@pytest.mark.parametrize("wanted", [True, False], ids=["with times", "without"])
def test_odeint_adjoint_steps_backward_as_torchdiffeq_does(method, wanted):
    field, y0, t = Counted(), start(3, 2), times(0.0, 0.2, 0.7, 1.0).detach().requires_grad_(wanted)
    inputs = (y0, *field.parameters(), *((t,) if wanted else ()))
    y, reference = (library.odeint_adjoint(field, y0, t, method=method) for library in (ours, theirs))
    torch.testing.assert_close(y, reference, rtol=0, atol=1e-13)
    torch.testing.assert_close(gradients(y, *inputs), gradients(reference, *inputs), rtol=0, atol=1e-12)


def test_odeint_adjoint_takes_a_plain_function_and_finds_what_it_touches():
    w = start(2, 2)
    y = ours.odeint_adjoint(lambda t, y: torch.tanh(y @ w), start(2), times(0, 1), **TIGHT)
    reference = theirs.odeint(lambda t, y: torch.tanh(y @ w), start(2), times(0, 1), **TIGHT)
    torch.testing.assert_close(gradients(y, w), gradients(reference, w), rtol=0, atol=1e-7)


ARGUMENTS = {
    "another tolerance": {"adjoint_rtol": 1e-4, "adjoint_atol": 1e-6},
    "another method": {"adjoint_method": "bosh3"},
    "fixed steps": {"adjoint_method": "rk4", "adjoint_options": {"step_size": 0.1}},
    "other options": {"adjoint_options": {"first_step": 0.01, "safety": 0.5}},
    "the seminorm": {"adjoint_options": {"norm": "seminorm"}},
    "another norm": {"adjoint_options": {"norm": lambda parts: max(part.abs().max() for part in parts)}},
    "options of forward": {"options": {"safety": 0.5, "norm": lambda y: y.abs().max()}},
}


@pytest.mark.parametrize("case", ARGUMENTS)
@pytest.mark.parametrize("nested", [False, True])
def test_arguments_of_the_adjoint_do_what_they_do_in_torchdiffeq_with(case, nested):
    results, counts = [], []
    arguments = dict(ARGUMENTS[case])
    if nested and "options" in arguments:
        arguments["options"] = {"safety": 0.5, "norm": lambda y: max(leaf.abs().max() for leaf in y)}
    for library in (ours, theirs):
        field, y0 = Counted(), start(3, 2)
        func = Pair(field) if nested else field
        y = library.odeint_adjoint(func, (y0, y0[0]) if nested else y0, times(0, 1), **arguments)
        forward = field.count
        y = torch.cat([leaf.reshape(-1) for leaf in y]) if nested else y
        results.append(flat(torch.autograd.grad(y.square().sum(), (y0, *field.parameters()))))
        counts.append((forward, field.count - forward))
    # bosh3 has another dense output.
    torch.testing.assert_close(*results, rtol=0, atol=1e-5 if case == "another method" else 1e-8)
    assert counts[0] == counts[1]


class Pair(nn.Module):
    """Two states of different shapes that a field moves."""

    def __init__(self, field):
        super().__init__()
        self.field = field

    def forward(self, t, y):
        return self.field(t, y[0]), y[0].sum(0) - y[1]


def test_the_seminorm_needs_fewer_evaluations():
    counts = []
    for norm in (None, "seminorm"):
        func = Counted()
        options = {} if norm is None else {"norm": norm}
        y = ours.odeint_adjoint(func, start(1, 2), times(0, 5), rtol=1e-6, atol=1e-9, adjoint_options=options)
        func.count = 0
        (1000 * y).sum().backward()
        counts.append(func.count)
    assert counts[1] < counts[0]


def test_unused_parameters_get_zeros():
    class Partly(Counted):
        def __init__(self):
            super().__init__()
            self.unused = nn.Linear(2, 5)

    for library in (ours, theirs):
        field = Partly()
        library.odeint_adjoint(field, start(2).detach(), torch.tensor([0.0, 1.0])).sum().backward()
        assert torch.equal(field.unused.weight.grad, torch.zeros(5, 2))
        assert field.w.grad.abs().sum() > 0


def test_a_solution_has_a_graph_even_if_func_uses_no_parameter():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.unused = nn.Parameter(torch.ones(3))

        def forward(self, t, y):
            return torch.ones_like(y)

    func = Constant()
    ours.odeint_adjoint(func, torch.ones(2), torch.tensor([0.0, 1.0])).sum().backward()
    assert torch.equal(func.unused.grad, torch.zeros(3))


@pytest.mark.parametrize("kind", ["leaf", "computed"])
def test_tensors_that_a_module_uses_besides_its_parameters_get_gradients(kind):
    leaf, field, y0 = start(2), Counted(), start(2)
    context = leaf * 2 if kind == "computed" else leaf

    class With(nn.Module):
        def __init__(self):
            super().__init__()
            self.field = field

        def forward(self, t, y):
            return self.field(t, y) * context

    results = [solve(With(), y0, times(0, 1), **TIGHT) for solve in (ours.odeint_adjoint, ours.odeint)]
    results = [gradients(y, y0, leaf, field.w) for y in results]
    torch.testing.assert_close(*results, rtol=0, atol=1e-7)


def test_given_parameters_are_those_that_get_a_gradient():
    field, y0 = Counted(), start(2)
    y = ours.odeint_adjoint(field, y0, times(0, 1), adjoint_params=(parameter for parameter in (field.w,)))
    y.sum().backward()
    assert field.w.grad is not None
    assert field.b.grad is None


def test_a_tensor_computed_from_parameters_that_func_uses_too_is_refused():
    w = start(2, 2)
    code = w.exp()
    with pytest.raises(ncode.InputError, match="cannot tell their gradients apart"):
        ours.odeint_adjoint(lambda t, y: torch.tanh(y @ w) + code.sum(), start(2), times(0, 1))


def test_second_derivatives_of_the_adjoint_get_a_sentence():
    y0 = start(2)
    y = ours.odeint_adjoint(Counted(), y0, times(0, 1))
    with pytest.raises(ncode.InputError, match="first derivatives only"):
        torch.autograd.grad(y.sum(), y0, create_graph=True)


def test_a_complex_state_has_torchdiffeqs_adjoint_gradient():
    rate = torch.tensor(0.7, dtype=DOUBLE, requires_grad=True)
    y0 = torch.tensor([1.0 + 0.5j, -0.3j], requires_grad=True, dtype=torch.complex128)
    results = []
    for solve in (ours.odeint, ours.odeint_adjoint):
        t = times(0, 0.4, 1)
        y = solve(lambda t, y: 1j * rate * y * y.abs() * t, y0, t, **TIGHT)
        grads = torch.autograd.grad(y.real.sum() + y.abs().square().sum(), (y0, rate, t))
        results.append(flat(torch.view_as_real(grad) if grad.is_complex() else grad for grad in grads))
    torch.testing.assert_close(*results, rtol=0, atol=1e-5)


def test_backward_evaluates_under_the_autocast_of_forward():
    linear, seen = nn.Linear(2, 2), set()

    class Func(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = linear

        def forward(self, t, y):
            out = self.linear(y)
            seen.add(out.dtype)
            return out

    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = ours.odeint_adjoint(Func(), torch.ones(2), torch.tensor([0.0, 1.0]), rtol=1e-2, atol=1e-2)
    y.sum().backward()
    assert seen == {torch.bfloat16}


def test_backward_uses_the_tensors_of_functional_call():
    field, y0 = Counted(), start(2)
    tensors = {name: parameter.detach().clone().requires_grad_() for name, parameter in field.named_parameters()}

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.field = field

        def forward(self, solve):
            return solve(self.field, y0, times(0, 1), **TIGHT)

    inner = {f"field.{name}": 1.5 * tensor for name, tensor in tensors.items()}
    results = []
    for solve in (ours.odeint, ours.odeint_adjoint):
        y = torch.func.functional_call(Outer(), inner, (solve,))
        results.append(gradients(y, y0, *tensors.values()))
    torch.testing.assert_close(*results, rtol=0, atol=1e-7)


def test_parameters_that_changed_before_backward_are_refused():
    field = Counted()
    y = ours.odeint_adjoint(field, start(2), times(0, 1))
    with torch.no_grad():
        field.w.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
