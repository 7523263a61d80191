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

theirs = pytest.importorskip("torchdiffeq")

DOUBLE = torch.float64
TIGHT = {"rtol": 1e-10, "atol": 1e-10}
ADAPTIVE = ("dopri5", "dopri8", "tsit5", "bosh3", "adaptive_heun")
FIXED = ("euler", "midpoint", "heun2", "rk4")


class Field(nn.Module):
    """A small field that depends on time, on the state and on parameters."""

    def __init__(self, width: int = 2):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.w = nn.Parameter(0.7 * torch.randn(width, width, dtype=DOUBLE, generator=generator))
        self.b = nn.Parameter(torch.randn(width, dtype=DOUBLE, generator=generator))

    def forward(self, t, y):
        return torch.tanh(y @ self.w + self.b * torch.cos(t)) - 0.3 * y


class Pair(Field):
    """The same field on a pair, with an integral along the way: tensors of different shapes, as in a flow's density."""

    def forward(self, t, y):
        x, total = y
        slope = super().forward(t, x)
        return slope, (slope * x).sum() + 0 * total


def start(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(1)).requires_grad_()


def times(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=DOUBLE, requires_grad=True)


def flat(tensors) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def gradients(solution, *inputs) -> torch.Tensor:
    """Gradients of a loss that uses every saved value, unevenly."""
    leaves = solution if isinstance(solution, tuple) else (solution,)
    values = flat(leaves)
    loss = (values * torch.linspace(0.5, 1.5, len(values), dtype=DOUBLE)).sum() + values.square().sum()
    return flat(torch.autograd.grad(loss, inputs, retain_graph=True))


class Fall(nn.Module):
    """A ball in the air, with drag so that dopri5 is not exact."""

    def __init__(self):
        super().__init__()
        self.g = nn.Parameter(torch.tensor(9.81, dtype=DOUBLE))
        self.drag = nn.Parameter(torch.tensor(0.1, dtype=DOUBLE))

    def forward(self, t, y):
        _, speed = y
        return speed, -self.g - self.drag * speed * speed.abs() + 0.1 * torch.sin(t)


def ball(height: float = 10.0, speed: float = 1.0):
    return (
        torch.tensor([height], dtype=DOUBLE, requires_grad=True),
        torch.tensor([speed], dtype=DOUBLE, requires_grad=True),
    )


# --- signatures and shapes


@pytest.mark.parametrize("name", ["odeint", "odeint_adjoint", "odeint_event"])
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
    tolerance = {"dopri5": 1e-5, "rk4": 2e-2, "euler": 1e-12}[method]
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


@pytest.mark.slow
@pytest.mark.parametrize("method", ADAPTIVE)
@pytest.mark.parametrize("t", [(0.0, 0.4, 1.0, 1.1), (1.0, 0.3, -0.5)], ids=["forward", "backward"])
def test_adaptive_methods_give_torchdiffeqs_values_and_gradients(method, t):
    # The reference is its dopri5: between steps, its dopri8 and bosh3 are off by more than the tolerance.
    field, y0, t = Field(), start(3, 2), times(*t)
    tolerance = 1e-6 if method == "adaptive_heun" else 1e-8
    y = ours.odeint(field, y0, t, method=method, rtol=tolerance, atol=tolerance)
    reference = theirs.odeint(field, y0, t, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(y, reference, rtol=0, atol=20 * tolerance)
    inputs = (y0, *field.parameters())
    torch.testing.assert_close(gradients(y, *inputs), gradients(reference, *inputs), rtol=0, atol=1000 * tolerance)
    # Times move along the interpolant, whose slope is of a lower order.
    torch.testing.assert_close(gradients(y, t), gradients(reference, t), rtol=0, atol=1e-3)


@pytest.mark.parametrize("method", ["euler", "midpoint", "heun2"])
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


def test_rk4_is_the_classic_method_and_of_the_order_of_torchdiffeqs():
    field, y0 = Field(), start(3, 2)
    exact = theirs.odeint(field, y0, times(0, 1), **TIGHT)[-1]

    def error(steps):
        t = torch.linspace(0, 1, steps + 1, dtype=DOUBLE)
        return float((ours.odeint(field, y0, t, method="rk4")[-1] - exact).detach().abs().max())

    assert math.log2(error(4) / error(8)) == pytest.approx(4, abs=0.3)


@pytest.mark.parametrize("method", ["euler", "midpoint", "heun2"])
def test_step_size_gives_torchdiffeqs_values_at_the_ends_of_steps(method):
    field, y0, t = Field(), start(2), times(0.0, 0.4, 0.6, 1.0)
    y, reference = (
        library.odeint(field, y0, t, method=method, options={"step_size": 0.2}) for library in (ours, theirs)
    )
    torch.testing.assert_close(y, reference, rtol=0, atol=1e-13)


def test_step_size_gives_values_of_the_methods_order_between_steps():
    field, y0, t = Field(), start(2), times(0.0, 0.13, 0.37)
    options = {"step_size": 0.05}
    y = ours.odeint(field, y0, t, method="rk4", options=options)
    torch.testing.assert_close(y, ours.odeint(field, y0, t, **TIGHT), rtol=0, atol=1e-7)
    assert torch.equal(ours.odeint(field, y0, t, method="rk4", options=options | {"interp": "cubic"}), y)


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


def test_second_derivatives_ask_for_the_autograd_gradient():
    y0 = start(2)
    y = ours.odeint(Field(), y0, times(0, 1))
    with pytest.raises(ncode.InputError, match=r'options=\{"gradient": "autograd"\}'):
        torch.autograd.grad(y.sum(), y0, create_graph=True)


@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_second_derivatives_with_the_autograd_gradient_are_torchdiffeqs(method):
    field, y0, results = Field(), start(2), []
    t = torch.linspace(0, 1, 2 if method == "dopri5" else 33, dtype=DOUBLE)
    for library, options in ((ours, {"gradient": "autograd"}), (theirs, {})):
        y = library.odeint(field, y0, t, method=method, options=options, **TIGHT)[-1]
        (first,) = torch.autograd.grad(y.square().sum(), y0, create_graph=True)
        results.append(flat(torch.autograd.grad(first.square().sum(), (y0, *field.parameters()))))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


def test_vmap_maps_fixed_steps_with_the_autograd_gradient():
    field = Field()

    def final(y):
        options = {"gradient": "autograd"}
        return ours.odeint(field, y, torch.linspace(0, 1, 5, dtype=DOUBLE), method="rk4", options=options)[-1]

    y0 = start(4, 2).detach()
    torch.testing.assert_close(torch.func.vmap(final)(y0), torch.stack([final(row) for row in y0]))


# --- odeint_adjoint


def test_odeint_adjoint_gives_torchdiffeqs_gradients():
    field, y0, t = Field(), start(3, 2), times(0, 0.7, 1)
    inputs = (y0, t, *field.parameters())
    y, reference = (library.odeint_adjoint(field, y0, t, **TIGHT) for library in (ours, theirs))
    torch.testing.assert_close(y, reference, rtol=0, atol=1e-8)
    torch.testing.assert_close(gradients(y, *inputs), gradients(reference, *inputs), rtol=0, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("method", FIXED)
def test_odeint_adjoint_steps_backward_from_time_to_time(method):
    field, y0, t = Field(), start(2), times(*torch.linspace(0, 1, 201).tolist())
    inputs = (y0, t, *field.parameters())
    y, reference = (library.odeint_adjoint(field, y0, t, method=method) for library in (ours, theirs))
    torch.testing.assert_close(y, reference, rtol=0, atol=1e-9)
    # Each side has the method's own error: it uses other stages for the integral over the parameters.
    atol = 0.5 if method == "euler" else 1e-2
    torch.testing.assert_close(gradients(y, *inputs), gradients(reference, *inputs), rtol=1e-2, atol=atol)


def test_odeint_adjoint_takes_a_plain_function_and_finds_what_it_touches():
    w = start(2, 2)
    y = ours.odeint_adjoint(lambda t, y: torch.tanh(y @ w), start(2), times(0, 1), **TIGHT)
    reference = theirs.odeint(lambda t, y: torch.tanh(y @ w), start(2), times(0, 1), **TIGHT)
    torch.testing.assert_close(gradients(y, w), gradients(reference, w), rtol=0, atol=1e-7)


def test_odeint_adjoint_accepts_adjoint_arguments_that_it_does_not_need():
    field, y0 = Field(), start(2)
    y = ours.odeint_adjoint(
        field,
        y0,
        times(0, 1),
        method="dopri5",
        rtol=1e-6,
        adjoint_rtol=1e-8,
        adjoint_method="dopri5",
        adjoint_options={"norm": "seminorm"},
        adjoint_params=(parameter for parameter in field.parameters()),
    )
    y.sum().backward()
    assert field.w.grad is not None


# --- events


@pytest.mark.slow
@pytest.mark.parametrize("interface", ["odeint", "odeint_adjoint"])
def test_a_falling_ball_lands_when_and_how_torchdiffeq_says_with_its_gradients(interface):
    fall, (height, speed), t0 = Fall(), ball(), times(0.3)[0]
    inputs, results = (height, speed, *fall.parameters()), []
    for library in (ours, theirs):
        t, y = library.odeint_event(
            fall,
            (height, speed),
            t0,
            event_fn=lambda t, y: y[0],
            odeint_interface=getattr(library, interface),
            rtol=1e-11,
            atol=1e-11,
        )
        assert t.shape == ()
        assert [leaf.shape for leaf in y] == [(2, 1), (2, 1)]
        values = torch.stack([t, y[0][-1, 0], y[1][-1, 0]])
        grads = [flat(torch.autograd.grad(value, inputs, retain_graph=True)) for value in (t, y[1][-1, 0])]
        results.append(torch.cat([values, *grads]))
    torch.testing.assert_close(*results, rtol=0, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("reverse", [False, True])
def test_gradients_of_an_event_agree_with_finite_differences(reverse):
    # A tilted ground that moves: event_fn has a parameter of its own and depends on time.
    def event(y0, t0, w, ground):
        def func(t, y):
            return torch.stack([y[1], -torch.sin(y[0] * w) - 0.1 * t])

        def reaches(t, y):
            return y[0] - ground * (1 + 0.1 * t) + 0.2 * y[1]

        t, y = ours.odeint_event(func, y0, t0, event_fn=reaches, reverse_time=reverse, rtol=1e-12, atol=1e-12)
        return torch.cat([t[None], y[-1]])

    inputs = (
        torch.tensor([1.2, 0.1], dtype=DOUBLE),
        torch.tensor(0.2, dtype=DOUBLE),
        torch.tensor(1.3, dtype=DOUBLE),
        torch.tensor(-0.4, dtype=DOUBLE),
    )
    assert torch.autograd.gradcheck(
        event, [tensor.requires_grad_() for tensor in inputs], eps=1e-5, atol=1e-6, rtol=1e-6
    )


def test_a_bouncing_ball_is_torchdiffeqs_through_three_bounces():
    results = []
    for library in (ours, theirs):
        fall, y, t = Fall(), ball(), times(0.0)[0]
        heard = []
        for _ in range(3):
            t, trace = library.odeint_event(fall, y, t, event_fn=lambda t, y: y[0], rtol=1e-10, atol=1e-10)
            heard.append(t)
            position, velocity = (leaf[-1] for leaf in trace)
            y = (position.clamp_min(0) + 1e-7, -0.8 * velocity)
        heard = torch.stack(heard)
        results.append(
            torch.cat([heard, *(g.reshape(-1) for g in torch.autograd.grad(heard.sum(), fall.parameters()))])
        )
    torch.testing.assert_close(*results, rtol=1e-5, atol=0)


def test_the_state_at_an_event_is_on_the_event_even_at_loose_tolerances():
    _, y = ours.odeint_event(Fall(), ball(), times(0.0)[0], event_fn=lambda t, y: y[0], rtol=1e-2, atol=1e-2)
    assert abs(float(y[0][-1].detach())) < 1e-12


def test_the_first_of_several_events_counts():
    def event_fn(t, y):
        return torch.stack([y[0][0] - 3, t - 1.9, y[1][0] + 100])

    results = []
    for library in (ours, theirs):
        t, y = library.odeint_event(Fall(), ball(), times(0.0)[0], event_fn=event_fn, rtol=1e-9, atol=1e-9)
        results.append(torch.stack([t, y[0][-1, 0], y[1][-1, 0]]))
    torch.testing.assert_close(*results, rtol=0, atol=1e-6)
    assert float(results[0][0].detach()) < 1.9  # it was the height


def test_an_event_of_time_alone_has_a_constant_time():
    y0 = start(2)
    t, y = ours.odeint_event(Field(), y0, times(0.0)[0], event_fn=lambda t, y: t - 0.75)
    assert float(t.detach()) == pytest.approx(0.75, abs=1e-15)
    (grad,) = torch.autograd.grad(y[-1].sum() + t, y0)
    reference = ours.odeint(Field(), y0, times(0, 0.75))[-1]
    torch.testing.assert_close(grad, *torch.autograd.grad(reference.sum(), y0), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("interface", ["odeint", "odeint_adjoint"])
def test_event_fn_in_odeint_returns_time_and_state_without_a_gradient_of_the_time(interface):
    y0 = start(2)
    results = []
    for library in (ours, theirs):
        t, y = getattr(library, interface)(
            Field(), y0, times(0, 1), event_fn=lambda t, y: y[0] - y0[0].detach() - 0.2, **TIGHT
        )
        assert y.shape == (2, 2)
        results.append(torch.cat([t[None].detach(), y.reshape(-1), *torch.autograd.grad(y[-1].sum(), y0)]))
    torch.testing.assert_close(*results, rtol=0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("method", FIXED)
def test_fixed_steps_find_events_too(method):
    t, y = ours.odeint_event(
        Fall(), ball(), times(0.0)[0], event_fn=lambda t, y: y[0], method=method, options={"step_size": 0.003}
    )
    reference, _ = theirs.odeint_event(
        Fall(), ball(), times(0.0)[0], event_fn=lambda t, y: y[0], method=method, options={"step_size": 0.003}
    )
    assert float(t.detach()) == pytest.approx(float(reference.detach()), abs=1e-5)
    assert abs(float(y[0][-1].detach())) < 1e-12


def test_an_event_before_a_blow_up_is_found():
    # y = 1 / (1 - t) leaves the numbers at t = 1.
    t, _ = ours.odeint_event(
        lambda t, y: y * y,
        torch.ones(1, dtype=DOUBLE),
        torch.zeros((), dtype=DOUBLE),
        event_fn=lambda t, y: y - 4,
    )
    assert float(t) == pytest.approx(0.75, abs=1e-6)


def test_an_event_far_away_is_found():
    t, _ = ours.odeint_event(
        lambda t, y: 1e-3 + 0 * y, torch.zeros(1, dtype=DOUBLE), torch.zeros(()), event_fn=lambda t, y: y - 5
    )
    assert float(t) == pytest.approx(5000, rel=1e-6)


def test_an_event_at_the_start_happens_there():
    t, y = ours.odeint_event(Field(), start(2), times(0.5)[0], event_fn=lambda t, y: t - 0.5)
    assert float(t.detach()) == 0.5
    assert torch.equal(y[0], y[1])


def test_torchdiffeqs_own_odeint_fits_as_interface():
    t, _ = ours.odeint_event(Fall(), ball(), times(0.0)[0], event_fn=lambda t, y: y[0], odeint_interface=theirs.odeint)
    reference, _ = theirs.odeint_event(Fall(), ball(), times(0.0)[0], event_fn=lambda t, y: y[0])
    assert float(t.detach()) == pytest.approx(float(reference.detach()), abs=1e-12)


# --- what gets a sentence


def solve_with(**changes):
    arguments = {"func": lambda t, y: -y, "y0": torch.ones(2), "t": torch.tensor([0.0, 1.0])} | changes
    interface = arguments.pop("interface", ours.odeint)
    func, y0, t = (arguments.pop(name) for name in ("func", "y0", "t"))
    return interface(func, y0, t, **arguments)


class Called(nn.Module):
    def callback_step(self, t, y, dt):
        pass

    def forward(self, t, y):
        return y


ADJOINT = {"interface": ours.odeint_adjoint}
BAD = {
    "func is no function": ({"func": 3}, "func must be a function"),
    "func has callbacks": ({"func": Called()}, "no callbacks"),
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
    "y0 is a list": ({"y0": [1.0]}, "y0 must be a tensor or a tuple"),
    "y0 holds a number": ({"y0": (torch.ones(2), 1.0)}, "tuple with float"),
    "y0 is empty": ({"y0": ()}, "empty tuple"),
    "y0 has no elements": ({"y0": torch.ones(0)}, "no elements"),
    "y0 holds integers": ({"y0": torch.ones(2, dtype=torch.int64)}, r"y0\.float\(\)"),
    "y0 is too coarse": ({"y0": torch.ones(2, dtype=torch.bfloat16)}, "too coarse"),
    "y0 mixes dtypes": ({"y0": (torch.ones(2), torch.ones(1, dtype=DOUBLE))}, "one dtype"),
    "y0 has nan": ({"y0": torch.tensor([1.0, math.nan])}, "nan or inf"),
    "t is a list": ({"t": [0.0, 1.0]}, "t must be a floating tensor"),
    "t holds integers": ({"t": torch.arange(3)}, "torch.int64"),
    "t has two dimensions": ({"t": torch.zeros(2, 2)}, r"shape \(T,\)"),
    "t is empty": ({"t": torch.zeros(0)}, "at least one time"),
    "t repeats": ({"t": torch.tensor([0.0, 1.0, 1.0])}, "strictly increasing or decreasing"),
    "t turns": ({"t": torch.tensor([0.0, 1.0, 0.5])}, "strictly increasing or decreasing"),
    "t is infinite": ({"t": torch.tensor([0.0, math.inf])}, "finite"),
    "rtol is negative": ({"rtol": -1.0}, "rtol must be at least 0"),
    "atol is a tuple": ({"atol": (1e-3, 1e-6)}, "atol must be one number"),
    "atol is a tensor": ({"atol": torch.ones(2)}, "atol must be one number"),
    "method is misspelt": ({"method": "dopri_5"}, 'did you mean "dopri5"'),
    "method is heun3": ({"method": "heun3"}, "bosh3"),
    "method is fehlberg2": ({"method": "fehlberg2"}, "adaptive_heun"),
    "method is a multistep one": ({"method": "explicit_adams"}, "one-step methods only"),
    "method is implicit": ({"method": "radauIIA5"}, "explicit methods only"),
    "method is SciPy's": ({"method": "scipy_solver"}, "DOP853"),
    "options are no dict": ({"options": 3}, "must be a dict"),
    "an option is misspelt": ({"options": {"max_steps": 3}}, 'did you mean "max_num_steps"'),
    "an option is for fixed steps": ({"options": {"step_size": 0.1}}, "euler, midpoint"),
    "an option is for adaptive steps": (
        {"method": "rk4", "options": {"safety": 0.5}},
        "has fixed steps",
    ),
    "a norm is given": ({"options": {"norm": torch.max}}, "root mean square"),
    "a first step is given": ({"options": {"first_step": 0.1}}, "leave it out"),
    "jumps are given": ({"options": {"jump_t": torch.tensor([0.5])}}, "in a second call"),
    "time is to be single": ({"options": {"dtype": torch.float32}}, "torch.float64"),
    "perturb is asked for": ({"method": "rk4", "options": {"perturb": True}}, "perturb"),
    "interpolation is linear": ({"method": "rk4", "options": {"interp": "linear"}}, "method's own order"),
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
    "the adjoint has another gradient": (ADJOINT | {"options": {"gradient": "autograd"}}, "use odeint"),
    "the adjoint has another method": (ADJOINT | {"adjoint_method": "bosh3"}, "leave adjoint_method out"),
    "the adjoint has other options": (ADJOINT | {"adjoint_options": {"max_num_steps": 3}}, "max_num_steps"),
    "the adjoint has another norm": (ADJOINT | {"adjoint_options": {"norm": torch.max}}, "seminorm"),
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


def test_a_blow_up_before_the_event_is_named():
    with pytest.raises(ncode.SolveError, match="event_fn had not changed its sign"):
        solve_with(func=lambda t, y: y * y, event_fn=lambda t, y: y + 1, t=times(0, 2).detach())


def test_an_event_without_a_derivative_gets_a_sentence_unless_no_gradient_is_wanted():
    def event_fn(t, y):
        return (y.sum() > 0.5).to(y.dtype) - 0.5

    y0, t0 = torch.ones(1, dtype=DOUBLE), torch.zeros((), dtype=DOUBLE)
    t, _ = ours.odeint_event(lambda t, y: -y, y0, t0, event_fn=event_fn)
    assert float(t) == pytest.approx(math.log(2), abs=1e-6)
    with pytest.raises(ncode.InputError, match="has no derivative"):
        ours.odeint_event(lambda t, y: -y, y0.requires_grad_(), t0, event_fn=event_fn)


def test_second_derivatives_of_an_event_get_a_sentence():
    height, speed = ball()
    t, _ = ours.odeint_event(Fall(), (height, speed), times(0.0)[0], event_fn=lambda t, y: y[0])
    with pytest.raises(ncode.InputError, match="first derivatives only"):
        torch.autograd.grad(t, height, create_graph=True)


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
