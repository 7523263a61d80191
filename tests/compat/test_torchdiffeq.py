"""The torchdiffeq interface, held to the installed torchdiffeq, to finite differences and to closed forms."""

import inspect
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import ncode
from ncode.compat import torchdiffeq as ours

from .systems import ADAPTIVE, DOUBLE, FIXED, TIGHT, Field, flat, gradients, start, times

theirs = pytest.importorskip("torchdiffeq")


class Pair(Field):
    """The same field on a pair, with an integral along the way: tensors of different shapes, as in a flow's density."""

    def forward(self, t, y):
        x, total = y
        slope = super().forward(t, x)
        return slope, (slope * x).sum() + 0 * total


# --- signatures and shapes


@pytest.mark.parametrize("name", ["odeint", "odeint_adjoint", "odeint_event", "odeint_dense"])
def test_signatures_are_torchdiffeqs(name):
    mine, other = (inspect.signature(getattr(library, name)).parameters for library in (ours, theirs))
    assert list(mine) == list(other)
    for parameter in set(mine) - {"odeint_interface"}:
        assert mine[parameter].kind == other[parameter].kind
        assert mine[parameter].default == other[parameter].default


@settings(max_examples=25, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(1, 3), max_size=3), min_size=1, max_size=3),
    nested=st.booleans(),
    backward=st.booleans(),
    gaps=st.lists(st.floats(0.01, 0.7), max_size=4),
    begin=st.floats(-2, 2),
    method=st.sampled_from(["dopri5", "rk4", "euler"]),
)
def test_any_state_and_times_give_torchdiffeqs_shapes_and_values(shapes, nested, backward, gaps, begin, method):
    generator = torch.Generator().manual_seed(0)
    leaves = tuple(torch.randn(shape, dtype=DOUBLE, generator=generator) for shape in shapes)
    t = begin + (-1 if backward else 1) * torch.tensor([0.0, *gaps], dtype=DOUBLE).cumsum(0)

    def func(t, y):
        if nested:
            return tuple(torch.sin(leaf + t) for leaf in y)
        return torch.sin(y + t)

    y0 = leaves if nested else leaves[0]
    got, expected = (library.odeint(func, y0, t, method=method) for library in (ours, theirs))
    assert isinstance(got, tuple) == nested
    tolerance = 1e-9 if method == "dopri5" else 1e-12
    for y, reference, leaf in zip(got if nested else (got,), expected if nested else (expected,), leaves, strict=False):
        assert y.shape == reference.shape
        assert y.dtype == leaf.dtype
        assert torch.equal(y[0], leaf)
        torch.testing.assert_close(y, reference, rtol=tolerance, atol=tolerance)


def test_a_single_time_returns_the_start():
    y0 = start(2)
    assert torch.equal(ours.odeint(Field(), y0, times(0.5)), y0[None])
    assert torch.equal(ours.odeint(Field(), y0, times(0.5), method="rk4"), y0[None])


def test_func_is_told_a_scalar_time_in_the_states_precision():
    seen = []

    def func(t, y):
        seen.append((t.shape, t.dtype, y.shape))
        return -y

    ours.odeint(func, torch.ones(2, 3), torch.tensor([0.0, 1.0], dtype=DOUBLE))
    assert set(seen) == {((), torch.float32, (2, 3))}


def test_the_solution_may_be_changed_in_place():
    y0 = start(2)
    y = ours.odeint(Field(), y0, times(0, 1))
    y[-1] *= 2
    y.sum().backward()
    assert y0.grad is not None


# --- values and gradients


@pytest.mark.parametrize("method", ADAPTIVE)
@pytest.mark.parametrize("t", [(0.0, 0.4, 1.0, 1.1), (1.0, 0.3, -0.5)], ids=["forward", "backward"])
def test_adaptive_methods_give_torchdiffeqs_values_and_gradients(method, t):
    # The first step is given: torchdiffeq differentiates the one that it chooses, but no later one. Steps end at the
    # times of t for dopri8 and bosh3, whose dense output is another.
    t = times(*t)
    step_t = t.detach() if method in ("dopri8", "bosh3") else None
    options = {"first_step": 0.05, "step_t": step_t} | ({"max_step": 0.05} if method == "dopri8" else {})
    field, y0 = Field(), start(3, 2)
    y, reference = (
        library.odeint(field, y0, t, method=method, rtol=1e-5, atol=1e-6, options=options) for library in (ours, theirs)
    )
    torch.testing.assert_close(y, reference, rtol=0, atol=1e-12)
    inputs = (y0, *field.parameters())
    torch.testing.assert_close(gradients(y, *inputs), gradients(reference, *inputs), rtol=1e-10, atol=1e-10)
    if step_t is None:
        torch.testing.assert_close(gradients(y, t), gradients(reference, t), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("method", ["dopri8", "bosh3"])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-4])
def test_values_between_steps_are_more_exact_than_those_of_torchdiffeq(method, tolerance):
    field, y0, t = Field(), start(3, 2).detach(), torch.linspace(0, 3, 41, dtype=DOUBLE)
    exact = ours.odeint(field, y0, t, **TIGHT)
    errors = [
        float(
            (library.odeint(field, y0, t, method=method, rtol=tolerance, atol=tolerance) - exact).abs().max().detach()
        )
        for library in (ours, theirs)
    ]
    assert errors[0] < 0.5 * errors[1]


@pytest.mark.parametrize("t", [(0.0, 0.4, 1.0, 1.1), (1.0, 0.3, -0.5)], ids=["forward", "backward"])
def test_tsit5_is_as_exact_as_its_tolerance(t):
    field, y0, t = Field(), start(3, 2), times(*t)
    y, reference = (ours.odeint(field, y0, t, method="tsit5"), theirs.odeint(field, y0, t, **TIGHT))
    torch.testing.assert_close(y, reference, rtol=0, atol=1e-6)
    inputs = (y0, *field.parameters())
    torch.testing.assert_close(gradients(y, *inputs), gradients(reference, *inputs), rtol=0, atol=1e-4)


@pytest.mark.parametrize("method", FIXED)
@pytest.mark.parametrize(
    "t", [(0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 0.4, 1.0), (1.0, 0.7, 0.0)], ids=["even", "uneven", "backward"]
)
@pytest.mark.parametrize("wanted", [True, False], ids=["with times", "without"])
def test_fixed_methods_step_from_time_to_time_as_torchdiffeq_does(method, t, wanted):
    field, y0, t = Field(), start(3, 2), times(*t).detach().requires_grad_(wanted)
    inputs = (y0, *field.parameters(), *((t,) if wanted else ()))
    y, reference = (library.odeint(field, y0, t, method=method) for library in (ours, theirs))
    torch.testing.assert_close(y, reference, rtol=0, atol=1e-14)
    torch.testing.assert_close(gradients(y, *inputs), gradients(reference, *inputs), rtol=0, atol=1e-13)


@pytest.mark.parametrize(("method", "order"), [("euler", 1), ("midpoint", 2), ("heun2", 2), ("heun3", 3), ("rk4", 4)])
def test_fixed_methods_are_of_their_order(method, order):
    field, y0 = Field(), start(3, 2)
    exact = theirs.odeint(field, y0, times(0, 1), **TIGHT)[-1]

    def error(steps):
        t = torch.linspace(0, 1, steps + 1, dtype=DOUBLE)
        return float((ours.odeint(field, y0, t, method=method)[-1] - exact).detach().abs().max())

    assert math.log2(error(16) / error(32)) == pytest.approx(order, abs=0.3)


@pytest.mark.parametrize("method", FIXED)
@pytest.mark.parametrize("interp", ["linear", "cubic"])
@pytest.mark.parametrize("backward", [False, True])
def test_step_size_gives_torchdiffeqs_values_and_gradients_at_and_between_steps(method, interp, backward):
    field, y0, t = Field(), start(2), times(*([1.0, 0.6, 0.57, 0.0] if backward else [0.0, 0.4, 0.57, 1.0]))
    options = {"step_size": 0.15, "interp": interp}
    y, reference = (library.odeint(field, y0, t, method=method, options=options) for library in (ours, theirs))
    torch.testing.assert_close(y, reference, rtol=0, atol=1e-13)
    inputs = (y0, t, *field.parameters())
    torch.testing.assert_close(gradients(y, *inputs), gradients(reference, *inputs), rtol=0, atol=1e-12)


@pytest.mark.parametrize("end", [1.0, -1.0])
def test_a_grid_constructor_sets_the_steps(end):
    field, y0, t = Field(), start(2), times(0.0, 0.3 * end, end).detach()
    options = {"grid_constructor": lambda func, y, t: torch.linspace(0, end, 11, dtype=DOUBLE)}
    y, reference = (library.odeint(field, y0, t, method="euler", options=options) for library in (ours, theirs))
    torch.testing.assert_close(y, reference, rtol=0, atol=1e-13)


@pytest.mark.parametrize("interface", ["odeint", "odeint_adjoint"])
def test_a_tuple_state_gives_torchdiffeqs_values_and_gradients(interface):
    field, x0, total0, t = (
        Pair(),
        start(3, 2),
        torch.tensor(0.5, dtype=DOUBLE, requires_grad=True),
        times(0, 0.5, 2),
    )
    inputs = (x0, total0, t, *field.parameters())
    y, reference = (getattr(library, interface)(field, (x0, total0), t, **TIGHT) for library in (ours, theirs))
    assert [leaf.shape for leaf in y] == [(3, 3, 2), (3,)]
    torch.testing.assert_close(flat(y), flat(reference), rtol=0, atol=1e-8)
    torch.testing.assert_close(gradients(y, *inputs), gradients(reference, *inputs), rtol=0, atol=1e-6)


def test_a_tuple_state_costs_one_evaluation_of_func_a_stage():
    calls = {"tensor": 0, "tuple": 0}

    def alone(t, y):
        calls["tensor"] += 1
        return -y

    def twice(t, y):
        calls["tuple"] += 1
        return -y[0], -y[1]

    y0 = torch.ones(2)
    ours.odeint(alone, y0, torch.tensor([0.0, 1.0]))
    ours.odeint(twice, (y0, y0), torch.tensor([0.0, 1.0]))
    assert calls["tuple"] == calls["tensor"] > 0


def test_a_large_tensor_does_not_hide_the_error_of_a_small_one():
    def func(t, y):
        still, turning = y
        return torch.zeros_like(still), 10 * torch.stack([-turning[1], turning[0]])

    y0 = (torch.zeros(100_000, dtype=DOUBLE), torch.tensor([1.0, 0.0], dtype=DOUBLE))
    t = torch.tensor([0.0, 1.0], dtype=DOUBLE)
    both = ours.odeint(func, y0, t, rtol=1e-6, atol=1e-6)[1]
    alone = ours.odeint(lambda t, y: func(t, (y0[0], y))[1], y0[1], t, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(both, alone, rtol=0, atol=1e-12)


def test_single_precision_follows_double():
    t = torch.linspace(0, 1, 5)
    y = ours.odeint(lambda t, y: -y * t, torch.ones(3), t)
    assert y.dtype == torch.float32
    torch.testing.assert_close(y, torch.exp(-(t**2) / 2)[:, None].expand(-1, 3), rtol=0, atol=1e-6)


def test_a_complex_state_gives_torchdiffeqs_values_and_gradients():
    y0 = torch.tensor([1.0 + 0.5j, -0.3j], requires_grad=True, dtype=torch.complex128)
    results = []
    for library in (ours, theirs):
        y = library.odeint(lambda t, y: 1j * y * y.abs(), y0, times(0, 1), **TIGHT)
        results.append((y, *torch.autograd.grad(y.real.sum() + y.abs().square().sum(), y0)))
    torch.testing.assert_close(*results, rtol=0, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", ["dopri5", "bosh3", "euler", "rk4"])
def test_half_precision_follows_single_precision(dtype, method):
    t, seen = torch.linspace(0, 1, 9), set()

    def func(t, y):
        seen.add(t.dtype)
        return -y * t

    y0 = torch.ones(3, dtype=dtype, requires_grad=True)
    y = ours.odeint(func, y0, t, method=method, rtol=1e-2, atol=1e-2)
    assert y.dtype == dtype
    assert seen == {dtype}
    exact = ours.odeint(func, torch.ones(3), t, method="dopri5" if method == "bosh3" else method)
    torch.testing.assert_close(y.float(), exact, rtol=0, atol=0.05)
    y[-1].sum().backward()
    assert float(y0.grad[0]) == pytest.approx(float(exact[-1, 0]), abs=0.05)


def test_tensors_of_a_tuple_are_promoted_as_in_torchdiffeq():
    y0 = (torch.ones(2), torch.ones(1, dtype=DOUBLE))
    y, reference = (
        library.odeint(lambda t, y: (-y[0], y[1]), y0, torch.tensor([0.0, 1.0])) for library in (ours, theirs)
    )
    for leaf, other in zip(y, reference, strict=True):
        torch.testing.assert_close(leaf, other, rtol=0, atol=1e-9)


def test_func_may_return_tensors_of_a_tuple_without_dimensions_of_size_one():
    y0 = (torch.ones(2, 1), torch.ones(2))
    results = [
        library.odeint(lambda t, y: (-y[0][:, 0], y[1][:, None]), y0, torch.tensor([0.0, 1.0]), method="rk4")
        for library in (ours, theirs)
    ]
    for leaf, other in zip(*results, strict=True):
        torch.testing.assert_close(leaf, other)


TOLERANCES = {
    "a list of one": ([1e-4], False),
    "a tuple of one": ((1e-4,), False),
    "a tensor": (torch.tensor(1e-4), False),
    "one per element": (torch.tensor([1e-3, 1e-6]), False),
    "one per tensor": ([1e-3, 1e-6], True),
    "tensors for tensors": ((torch.tensor(1e-3), torch.tensor([1e-4, 1e-6])), True),
}


@pytest.mark.parametrize("case", TOLERANCES)
@pytest.mark.parametrize("method", ["dopri5", "bosh3", "euler"])
def test_tolerances_mean_what_they_mean_in_torchdiffeq_as(case, method):
    tolerance, nested = TOLERANCES[case]
    y0 = (torch.ones(1, dtype=DOUBLE), torch.ones(2, dtype=DOUBLE)) if nested else torch.ones(2, dtype=DOUBLE)
    results, counts = [], []
    for library in (ours, theirs):
        calls = []

        def func(t, y):
            calls.append(0)  # noqa: B023
            return tuple(torch.sin(5 * leaf + t) for leaf in y) if nested else torch.sin(5 * y + t)

        t = torch.tensor([0.0, 1.0, 3.0])
        options = {} if method == "euler" else {"step_t": t}
        y = library.odeint(func, y0, t, rtol=tolerance, atol=tolerance, method=method, options=options)
        results.append(flat(y) if nested else flat([y]))
        counts.append(len(calls))
    torch.testing.assert_close(*results, rtol=0, atol=1e-9)
    assert counts[0] == counts[1]


def test_func_may_compute_in_a_lower_precision_as_under_autocast():
    linear = nn.Linear(2, 2)

    def func(t, y):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return linear(y)

    y = ours.odeint(func, torch.ones(2), torch.tensor([0.0, 1.0]), rtol=1e-2, atol=1e-2)
    y.sum().backward()
    assert y.dtype == torch.float32
    assert linear.weight.grad is not None


def test_parameters_used_only_at_later_times_get_gradients():
    early, late = nn.Linear(2, 2), nn.Linear(2, 2)
    y = ours.odeint(lambda t, y: early(y) if t < 0.5 else late(y), torch.ones(2), torch.linspace(0, 1, 3), method="rk4")
    y.sum().backward()
    assert early.weight.grad is not None
    assert late.weight.grad is not None


def test_adaptive_options_reach_the_step_control():
    steps = {}
    for safety in (0.9, 0.3):
        calls = 0

        def func(t, y):
            nonlocal calls
            calls += 1
            return -y * t

        options = {"safety": safety, "ifactor": 5.0, "dfactor": 0.5, "max_num_steps": 1000, "dtype": DOUBLE}
        ours.odeint(func, torch.ones(1), torch.tensor([0.0, 3.0]), method="dopri5", options=options)
        steps[safety] = calls
    assert steps[0.3] > steps[0.9]


# --- second derivatives


@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_second_derivatives_are_torchdiffeqs(method):
    field, y0, results = Field(), start(2), []
    t = torch.linspace(0, 1, 2 if method == "dopri5" else 33, dtype=DOUBLE)
    for library in (ours, theirs):
        y = library.odeint(field, y0, t, method=method, **TIGHT)[-1]
        (first,) = torch.autograd.grad(y.square().sum(), y0, create_graph=True)
        results.append(flat(torch.autograd.grad(first.square().sum(), (y0, *field.parameters()))))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_the_discrete_gradient_evaluates_again_and_is_the_same(method):
    field, y0, t, results, calls = Field(), start(2), times(0, 0.5, 1), [], []

    def func(t, y):
        calls.append(0)
        return field(t, y)

    for gradient in ("autograd", "discrete"):
        y = ours.odeint(func, y0, t, method=method, options={"gradient": gradient})
        calls.clear()
        results.append(gradients(y, y0, t, *field.parameters()))
        assert bool(calls) == (gradient == "discrete")
    torch.testing.assert_close(*results, rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch reads it as it compiles
@pytest.mark.parametrize("method", ["dopri5", "rk4"])
@pytest.mark.parametrize("compiled", ["caller", "func"])
def test_compiled_code_solves_as_eager_code_does(method, compiled):
    field, y0, t, compilations = Field(), start(2), torch.linspace(0, 1, 5, dtype=DOUBLE), []

    def count(graph, inputs):
        compilations.append(graph)
        return graph

    def final(func, y0):
        return ours.odeint(func, y0 * 1, t, method=method)[-1] * 2

    torch.compiler.reset()
    expected = gradients(final(field, y0), y0, *field.parameters())
    if compiled == "func":
        y = final(torch.compile(field, backend=count), y0)
    else:
        y = torch.compile(final, backend=count)(field, y0)
    torch.testing.assert_close(gradients(y, y0, *field.parameters()), expected, rtol=1e-9, atol=1e-9)
    assert 1 <= len(compilations) <= 3


def test_vmap_maps_fixed_steps():
    field = Field()

    def final(y):
        return ours.odeint(field, y, torch.linspace(0, 1, 5, dtype=DOUBLE), method="rk4")[-1]

    y0 = start(4, 2).detach()
    torch.testing.assert_close(torch.func.vmap(final)(y0), torch.stack([final(row) for row in y0]))


# --- what gets a sentence


def solve_with(**changes):
    arguments = {"func": lambda t, y: -y, "y0": torch.ones(2), "t": torch.tensor([0.0, 1.0])} | changes
    interface = arguments.pop("interface", ours.odeint)
    func, y0, t = (arguments.pop(name) for name in ("func", "y0", "t"))
    return interface(func, y0, t, **arguments)


ADJOINT = {"interface": ours.odeint_adjoint}
BAD = {
    "func is no function": ({"func": 3}, "func must be a function"),
    "func returns another shape": ({"func": lambda t, y: y[:1]}, r"shape \(1,\); expected .* \(2,\)"),
    "func returns no tensor": ({"func": lambda t, y: 1.0}, "must return a tensor"),
    "func returns complex": ({"func": lambda t, y: 1j * y}, "make y0 complex"),
    "func returns a tensor for a tuple": (
        {"y0": (torch.ones(2),), "func": lambda t, y: y[0]},
        "must return a tuple",
    ),
    "func returns too few": (
        {"y0": (torch.ones(2), torch.ones(1)), "func": lambda t, y: y[:1]},
        "1 tensors for a state of 2",
    ),
    "y0 is on two devices": ({"y0": (torch.ones(2), torch.ones(2, device="meta"))}, "on one device"),
    "y0 is a list": ({"y0": [1.0]}, "y0 must be a tensor or a tuple"),
    "y0 holds a number": ({"y0": (torch.ones(2), 1.0)}, "tuple with float"),
    "y0 is empty": ({"y0": ()}, "empty tuple"),
    "y0 has no elements": ({"y0": torch.ones(0)}, "no elements"),
    "y0 holds integers": ({"y0": torch.ones(2, dtype=torch.int64)}, r"y0\.float\(\)"),
    "y0 has nan": ({"y0": torch.tensor([1.0, math.nan])}, "nan or inf"),
    "t is a list": ({"t": [0.0, 1.0]}, "t must be a floating tensor"),
    "t holds integers": ({"t": torch.arange(3)}, "torch.int64"),
    "t has two dimensions": ({"t": torch.zeros(2, 2)}, r"shape \(T,\)"),
    "t is empty": ({"t": torch.zeros(0)}, "at least one time"),
    "t repeats": ({"t": torch.tensor([0.0, 1.0, 1.0])}, "strictly increasing or decreasing"),
    "t turns": ({"t": torch.tensor([0.0, 1.0, 0.5])}, "strictly increasing or decreasing"),
    "t is infinite": ({"t": torch.tensor([0.0, math.inf])}, "finite"),
    "rtol is negative": ({"rtol": -1.0}, "rtol must be at least 0"),
    "atol is a tuple for another state": (
        {"y0": (torch.ones(2),), "func": lambda t, y: y, "atol": (1e-3, 1e-6)},
        "one per tensor of y0; given 2 for 1",
    ),
    "rtol holds words": ({"rtol": ["small"]}, "rtol must be a number"),
    "rtol has a negative part": ({"rtol": torch.tensor([1e-3, -1.0])}, "rtol must be at least 0"),
    "rtol requires a gradient": ({"rtol": torch.tensor(1e-3, requires_grad=True)}, "must not require a gradient"),
    "atol does not broadcast": ({"atol": torch.ones(3)}, r"broadcast with y0 of shape \(2,\)"),
    "method is misspelt": ({"method": "dopri_5"}, 'did you mean "dopri5"'),
    "method is a multistep one": ({"method": "explicit_adams"}, "one-step methods only"),
    "method is SciPy's": ({"method": "scipy_solver"}, "DOP853"),
    "options are no dict": ({"options": 3}, "must be a dict"),
    "a norm is no function": ({"options": {"norm": "max"}}, "must be a function"),
    "jumps are a matrix": ({"options": {"jump_t": [[0.5]]}}, "must be times"),
    "jumps are steps too": (
        {"options": {"jump_t": torch.tensor([0.5]), "step_t": torch.tensor([0.5])}},
        "nor have one in common",
    ),
    "interpolation is misspelt": ({"method": "rk4", "options": {"interp": "cubik"}}, 'did you mean "cubic"'),
    "step_size is negative": ({"method": "rk4", "options": {"step_size": -1.0}}, "step_size"),
    "max_num_steps is a fraction": ({"options": {"max_num_steps": 2.5}}, "whole"),
    "two grids": (
        {"method": "rk4", "options": {"step_size": 0.1, "grid_constructor": lambda f, y, t: t}},
        "exclude each other",
    ),
    "the grid misses the end": (
        {"method": "rk4", "options": {"grid_constructor": lambda f, y, t: t[:1]}},
        "from t\\[0\\] to t\\[-1\\]",
    ),
    "gradient is misspelt": ({"options": {"gradient": "autgrad"}}, 'did you mean "autograd"'),
    "the adjoint has another gradient": (ADJOINT | {"options": {"gradient": "autograd"}}, "is for odeint"),
    "the adjoint has another method": (
        ADJOINT | {"adjoint_method": "rk4", "options": {"max_num_steps": 3}},
        "pass adjoint_options too",
    ),
    "adjoint_options are no dict": (ADJOINT | {"adjoint_options": 3}, "adjoint_options must be a dict"),
    "the adjoint has an unknown norm": (ADJOINT | {"adjoint_options": {"norm": "max"}}, '"seminorm"; given'),
    "adjoint_params are no tensors": (ADJOINT | {"adjoint_params": ["w"]}, "adjoint_params must be tensors"),
    "event_fn is no function": ({"event_fn": 3}, "event_fn must be a function"),
    "event_fn returns no tensor": ({"event_fn": lambda t, y: 1.0}, "event_fn must return"),
    "event_fn returns nan": ({"event_fn": lambda t, y: y * math.nan}, "event_fn returned nan"),
    "event_fn with many times": (
        {"event_fn": lambda t, y: y, "t": torch.tensor([0.0, 1.0, 2.0])},
        "two times",
    ),
    "event_fn without a step size": ({"event_fn": lambda t, y: y, "method": "rk4"}, "step_size"),
    "no event": (
        {"event_fn": lambda t, y: y + 1, "options": {"max_num_steps": 50}},
        r"no event between t = 0 and .* 50 steps",
    ),
    "t0 is a number": (
        {"interface": ours.odeint_event, "t": 0.0, "event_fn": lambda t, y: y - 0.5},
        "t0 must be a floating tensor",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_a_sentence_when(case):
    changes, sentence = BAD[case]
    with pytest.raises(ncode.InputError, match=sentence):
        solve_with(**changes)


def test_too_many_steps_name_the_option():
    with pytest.raises(ncode.SolveError, match="max_num_steps"):
        solve_with(options={"max_num_steps": 2})


def test_a_failed_solve_is_an_assertion_error_too_as_in_torchdiffeq():
    for library in (ours, theirs):
        with pytest.raises(AssertionError):
            solve_with(func=lambda t, y: y * y, t=torch.tensor([0.0, 2.0]), interface=library.odeint)


def test_a_field_that_is_not_finite_is_named():
    with pytest.raises(ncode.SolveError, match="NOT_FINITE"):
        solve_with(func=lambda t, y: y / 0)


def test_a_slope_whose_norm_overflows_fails_as_a_solve():
    with pytest.raises(ncode.SolveError, match="STEP_TOO_SMALL"):
        ours.odeint(lambda t, y: y * 1e30 * y, torch.tensor([[2.0, 0.0]]), torch.linspace(0, 5, 3))


UNKNOWN = {
    "misspelt": ("dopri5", {"max_num_step": 3}, 'did you mean "max_num_steps"'),
    "for fixed steps": ("dopri5", {"step_size": 0.1}, '"dopri5" does not have'),
    "for adaptive steps": ("rk4", {"safety": 0.5}, '"rk4" does not have'),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_an_option_that_a_method_does_not_have_warns_as_in_torchdiffeq_when(case):
    method, options, sentence = UNKNOWN[case]
    with pytest.warns(UserWarning, match=sentence) as warned:
        solve_with(method=method, options=options)
    assert {it.filename for it in warned} == {__file__}
    with pytest.warns(UserWarning, match="Unexpected arguments"):
        solve_with(method=method, options=options, interface=theirs.odeint)


# --- change one import

PROGRAM = """
import torch
from {library} import odeint, odeint_adjoint, odeint_event

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
t = torch.linspace(0.0, 3.0, 20)
turn = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])
with torch.no_grad():
    data = odeint(lambda t, y: y**3 @ turn, torch.tensor([[2.0, 0.0]]), t, method="dopri5")


class Field(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))

    def forward(self, t, y):
        return self.net(y**3)


class Density(torch.nn.Module):
    def __init__(self, field):
        super().__init__()
        self.field = field

    def forward(self, t, state):
        y, _ = state
        with torch.enable_grad():
            y = y.requires_grad_()
            dy = self.field(t, y)
            rows = [torch.autograd.grad(dy[:, i].sum(), y, create_graph=True)[0][:, i] for i in range(2)]
        return dy, -sum(rows)


field, losses = Field(), []
optimiser = torch.optim.Adam(field.parameters(), lr=0.01)
for step in range(6):
    optimiser.zero_grad()
    solver = odeint_adjoint if step % 2 else odeint
    loss = (solver(field, data[0], t, rtol=1e-7, atol=1e-9) - data).abs().mean()
    y, log = odeint(Density(field), (data[::5, 0], torch.zeros(4)), torch.tensor([1.0, 0.0]), rtol=1e-8, atol=1e-8)
    loss = loss - 0.01 * log[-1].mean()
    when, y = odeint_event(field, data[0], t[0], event_fn=lambda t, y: y[0, 0] + 9 * (t - 0.5), method="dopri8")
    loss = loss + 0.001 * (when - 1) ** 2 + 0.01 * y[-1].square().sum()
    loss.backward()
    optimiser.step()
    losses.append(loss.detach())
"""


@pytest.mark.slow
def test_changing_one_import_leaves_training_as_it_was():
    losses = []
    before = torch.get_default_dtype()
    try:
        for library in ("ncode.compat.torchdiffeq", "torchdiffeq"):
            names: dict = {}
            exec(PROGRAM.format(library=library), names)
            losses.append(torch.stack(names["losses"]))
    finally:
        torch.set_default_dtype(before)
    torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-3)
    assert all(after < first for first, after in pairwise(losses[0].tolist()))
