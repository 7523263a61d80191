"""Implicit methods of the torchdiffeq interface, held to closed forms, to the core and to torchdiffeq.

torchdiffeq has them in its repository, not in release 0.2.5: the tests that compare with it run where it has them.
"""

import importlib
import math
from cmath import exp
from itertools import pairwise

import pytest
import torch

import ncode
from ncode.compat import torchcde
from ncode.compat import torchdiffeq as ours

from .systems import DOUBLE, IMPLICIT_ORDERS, Counted, Field, double, gradients, start, times

GAMMA = 1 - math.sqrt(2) / 2
PADE = {  # numerator and denominator of the stability function, lowest power first
    "implicit_euler": ((1,), (1, -1)),
    "implicit_midpoint": ((1, 1 / 2), (1, -1 / 2)),
    "trapezoid": ((1, 1 / 2), (1, -1 / 2)),
    "sdirk2": ((1, 1 - 2 * GAMMA), (1, -2 * GAMMA, GAMMA**2)),
    "trbdf2": ((1, 1 - 2 * GAMMA), (1, -2 * GAMMA, GAMMA**2)),
    "radauIIA3": ((1, 1 / 3), (1, -2 / 3, 1 / 6)),
    "radauIIA5": ((1, 2 / 5, 1 / 20), (1, -3 / 5, 3 / 20, -1 / 60)),
    "gl4": ((1, 1 / 2, 1 / 12), (1, -1 / 2, 1 / 12)),
    "gl6": ((1, 1 / 2, 1 / 10, 1 / 120), (1, -1 / 2, 1 / 10, -1 / 120)),
}
every_method = pytest.mark.parametrize("method", IMPLICIT_ORDERS)


def stability(method: str, z: complex) -> complex:
    above, below = (sum(c * z**k for k, c in enumerate(row)) for row in PADE[method])
    return above / below


# --- values


@every_method
@pytest.mark.parametrize("end", [2.0, -0.5], ids=["forward", "backward"])
def test_methods_are_of_their_order(method, end):
    """On y' = -y^2 cos(t), which depends on time and is not linear: y = 1 / (1 + sin(t))."""
    errors = []
    for steps in (8, 16, 32):
        t = torch.linspace(0, end, steps + 1, dtype=DOUBLE)
        y = ours.odeint(lambda t, y: -y.square() * t.cos(), double(1.0), t, method=method)
        errors.append(abs(y[-1].item() - 1 / (1 + math.sin(end))))
    for order in (math.log2(before / after) for before, after in pairwise(errors)):
        assert abs(order - IMPLICIT_ORDERS[method]) < 0.35


@every_method
@pytest.mark.parametrize("z", [-1e6, -3.0, 0.4 + 2j, -20 + 300j])
def test_one_step_multiplies_by_the_stability_function(method, z):
    y0 = torch.tensor([1.0, 2.0j], dtype=torch.complex128)
    y = ours.odeint(lambda t, y: z * y, y0, double(0.0, 1.0), method=method)[-1]
    torch.testing.assert_close(y, stability(method, z) * y0, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("method", ["implicit_euler", "sdirk2", "trbdf2", "radauIIA3", "radauIIA5"])
def test_a_stiff_decay_follows_its_slow_solution_with_large_steps(method):
    """Explicit methods need steps below 2e-6 here, and grow beyond all numbers with these."""

    def func(t, y):
        return -1e6 * (y - t.cos()) - t.sin()

    t = torch.linspace(0, 3, 31, dtype=DOUBLE)
    y = ours.odeint(func, double(2.0), t, method=method)
    torch.testing.assert_close(y[5:, 0], t[5:].cos(), rtol=0, atol=1e-4)
    assert not ours.odeint(func, double(2.0), t, method="rk4").isfinite().all()


@pytest.mark.parametrize("method", ["implicit_euler", "trapezoid"])
def test_methods_of_the_core_give_its_values(method):
    field, y0 = Field(), start(1, 2).detach()
    y = ours.odeint(field, y0, torch.linspace(0, 1, 6, dtype=DOUBLE), method=method)[-1]
    reference = ncode.solve(lambda t, x, theta: field(t[0], x), y0, 0.0, 1.0, method=method, dt=0.2)
    torch.testing.assert_close(y, reference.x, rtol=0, atol=1e-12)


@every_method
def test_a_complex_func_that_is_not_holomorphic_is_solved(method):
    y0, t = torch.tensor([1.2 + 0j], dtype=torch.complex128), torch.linspace(0, 1, 41, dtype=DOUBLE)
    y = ours.odeint(lambda t, y: 1j * y * y.abs().square(), y0, t, method=method)
    bound = {1: 0.1, 2: 1e-3}.get(IMPLICIT_ORDERS[method], 1e-5)
    torch.testing.assert_close(y[-1], y0 * exp(1.44j), rtol=0, atol=bound)


@every_method
def test_a_tuple_is_solved_as_the_tensor_of_its_elements(method):
    field, t = Field(), times(0.0, 0.3, 1.0)
    y0 = start(2)

    def parts(t, y):
        return field(t, torch.cat([y[0], y[1].reshape(1)])).split(1)

    whole = ours.odeint(field, y0, t, method=method)
    first, second = ours.odeint(parts, (y0[:1], y0[1].reshape(1, 1)), t, method=method)
    assert second.shape == (3, 1, 1)
    torch.testing.assert_close(torch.cat([first, second[:, 0]], 1), whole, rtol=0, atol=1e-14)


@every_method
def test_step_size_and_grid_constructor_set_the_steps(method):
    field, y0, t = Field(), start(2).detach(), double(0.0, 0.5, 1.0)
    reference = ours.odeint(field, y0, torch.linspace(0, 1, 5, dtype=DOUBLE), method=method)[::2]
    for options in (
        {"step_size": 0.25},
        {"grid_constructor": lambda f, y, t: torch.linspace(0, 1, 5, dtype=DOUBLE)},
    ):
        y = ours.odeint(field, y0, t, method=method, options=options)
        torch.testing.assert_close(y, reference, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("interp", "bound"), [("linear", 1e-1), ("cubic", 1e-4)])
def test_values_between_steps_are_interpolated(interp, bound):
    t = torch.linspace(0, 1, 8, dtype=DOUBLE)
    options = {"step_size": 0.25, "interp": interp}
    y = ours.odeint(lambda t, y: -y, double(1.0), t, method="radauIIA5", options=options)[:, 0]
    error = (y - (-t).exp()).abs().max()
    assert error < bound
    assert (error > 1e-3) == (interp == "linear")


@every_method
@pytest.mark.parametrize("end", [1.0, -1.0])
@pytest.mark.parametrize("perturb", [True, False])
def test_a_jump_at_the_end_of_a_step_is_seen_from_within(method, end, perturb):
    """As in torchdiffeq also without perturb, which is for the start of a step."""

    def func(t, y):
        after = t >= 0.5 if end > 0 else t <= -0.5
        return torch.where(after, 3.0, 1.0).to(y)[None]

    t = double(0.0, 0.5 * math.copysign(1, end), end)
    y = ours.odeint(func, double(0.0), t, method=method, options={"perturb": perturb})[:, 0]
    torch.testing.assert_close(y * math.copysign(1, end), double(0.0, 0.5, 2.0), rtol=0, atol=1e-12)


def test_events_end_a_solve():
    y0 = double(2.0).requires_grad_()
    options = {"step_size": 0.05, "interp": "cubic"}
    for interface in (ours.odeint, ours.odeint_adjoint):
        t, _ = ours.odeint_event(
            lambda t, y: -y,
            y0,
            double(0.0),
            event_fn=lambda t, y: y - 1.0,
            odeint_interface=interface,
            method="gl6",
            options=options,
        )
        torch.testing.assert_close(t, double(math.log(2.0))[0], rtol=0, atol=1e-8)
        (slope,) = torch.autograd.grad(t, y0)
        torch.testing.assert_close(slope, double(0.5), rtol=0, atol=1e-6)


def test_single_precision_follows_double():
    field, y0, t = Field(), start(3, 2).detach(), double(0.0, 0.5, 1.0)
    for method in IMPLICIT_ORDERS:
        y = ours.odeint(field.double(), y0, t, method=method)
        single = ours.odeint(field.float(), y0.float(), t, method=method)
        assert single.dtype == torch.float32
        torch.testing.assert_close(single.double(), y, rtol=0, atol=1e-5)


def test_a_slope_without_a_graph_beside_one_with_a_graph_gives_the_same_values():
    t = torch.linspace(0, 1, 11, dtype=DOUBLE)
    state = (double(1.0), double(0.5))
    whole = ours.odeint(lambda t, y: (-y[0] * y[1], -y[1] + y[0]), state, t, method="radauIIA3")
    cut = ours.odeint(lambda t, y: (-y[0] * y[1], (-y[1] + y[0]).detach()), state, t, method="radauIIA3")
    torch.testing.assert_close(cut, whole, rtol=0, atol=1e-10)


def test_torchcde_takes_them_too():
    x = torch.linspace(0, 1, 5, dtype=DOUBLE)[:, None] * double(1.0, 2.0)
    path = torchcde.LinearInterpolation(torchcde.linear_interpolation_coeffs(x[None]))
    z = torchcde.cdeint(
        path,
        lambda t, z: -z[..., None].expand(1, 1, 2),
        torch.ones(1, 1, dtype=DOUBLE),
        path.interval,
        adjoint=False,
        method="gl6",
        options={"step_size": 0.5},
    )
    torch.testing.assert_close(z[0, -1, 0], double(math.exp(-3.0))[0], rtol=1e-4, atol=0)


# --- what gets a sentence


def solve_with(func=lambda t, y: -y, y0=None, method="radauIIA5", interface=ours.odeint, **more):
    return interface(func, torch.ones(2) if y0 is None else y0, torch.tensor([0.0, 1.0]), method=method, **more)


BAD = {
    "half precision": ({"y0": torch.ones(2).half()}, r"32 and 64 bits only; given y0 of torch.float16: use y0\.float"),
    "half precision backward": (
        {"y0": torch.ones(2).half(), "method": "rk4", "adjoint_method": "gl4", "interface": ours.odeint_adjoint},
        "32 and 64 bits only",
    ),
    "no graph": ({"func": lambda t, y: -y.detach()}, "need the Jacobian of func"),
    "out=": ({"func": lambda t, y: torch.neg(y.detach(), out=torch.empty(2))}, "need the Jacobian of func"),
    "max_iters is 0": ({"options": {"max_iters": 0}}, 'options\\["max_iters"\\] must be at least 1; given 0'),
    "max_iters is a fraction": ({"options": {"max_iters": 2.5}}, "max_iters"),
    "step_size is negative": ({"options": {"step_size": -1.0}}, "step_size"),
    "two grids": ({"options": {"step_size": 0.1, "grid_constructor": lambda f, y, t: t}}, "exclude each other"),
    "an event without a step size": ({"event_fn": lambda t, y: y}, "step_size"),
    "a misspelt name": ({"method": "radauIIA4"}, 'did you mean "radauIIA'),
    "func returns another shape": ({"func": lambda t, y: y[:1]}, r"shape \(1,\)"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_a_sentence_when(case):
    changes, sentence = BAD[case]
    with pytest.raises(ncode.InputError, match=sentence):
        solve_with(**changes)


def test_dense_output_asks_for_an_adaptive_method():
    with pytest.raises(ncode.InputError, match='adaptive steps; given "gl4"'):
        ours.odeint_dense(lambda t, y: -y, torch.ones(1), 0.0, 1.0, method="gl4")


def test_inference_mode_gets_a_sentence_and_no_grad_works():
    with torch.inference_mode(), pytest.raises(ncode.InputError, match="use no_grad"):
        solve_with()
    with torch.no_grad():
        assert not solve_with(y0=torch.ones(2, requires_grad=True)).requires_grad


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # by jacfwd
@pytest.mark.parametrize("transform", ["vmap", "grad", "jacfwd"])
def test_transforms_of_torch_func_get_a_sentence(transform):
    with pytest.raises(ncode.InputError, match=r"torch\.func"):
        getattr(torch.func, transform)(lambda y: solve_with(y0=y).sum())(torch.ones(2))


def test_autocast_gets_a_sentence_unless_it_changes_nothing():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(ncode.InputError, match=r'torch\.autocast\("cpu", enabled=False\)'):
            solve_with()
        y = solve_with(y0=double(1.0, 2.0))
    torch.testing.assert_close(y, solve_with(y0=double(1.0, 2.0)), rtol=0, atol=0)


FAILED = {
    "no solution": ({"func": lambda t, y: 1 + y * y, "method": "implicit_euler"}, "NEWTON_FAILED"),
    "too few iterations": ({"func": lambda t, y: -(y**3), "options": {"max_iters": 1}}, "max_iters"),
    "a singular matrix": ({"func": lambda t, y: y, "method": "implicit_euler"}, "SINGULAR_MATRIX"),
    "values that are not finite": ({"func": lambda t, y: y / 0}, "NOT_FINITE"),
}


@pytest.mark.parametrize("case", FAILED)
def test_a_failed_step_raises_where_torchdiffeq_warns_with(case):
    changes, sentence = FAILED[case]
    with pytest.raises(ncode.SolveError, match=sentence) as raised:
        solve_with(**changes)
    assert isinstance(raised.value, AssertionError)


def test_options_that_they_do_not_have_warn():
    for method, option in (("gl4", "safety"), ("rk4", "max_iters")):
        with pytest.warns(UserWarning, match=f'"{method}" does not have'):
            solve_with(method=method, options={option: 1})


def test_callback_step_is_called_once_per_step():
    class Watched(Counted):
        steps = 0

        def callback_step(self, t, y, dt):
            self.steps += 1

    field = Watched()
    ours.odeint(field, start(2), double(0.0, 1.0), method="trbdf2", options={"step_size": 0.25})
    assert field.steps == 4


# --- torchdiffeq itself, where it has them


def load_theirs():
    theirs = pytest.importorskip("torchdiffeq")
    if "radauIIA5" not in importlib.import_module("torchdiffeq._impl.odeint").SOLVERS:
        pytest.skip("this torchdiffeq has no implicit methods")
    return theirs


@every_method
@pytest.mark.parametrize("interface", ["odeint", "odeint_adjoint"])
@pytest.mark.parametrize("t", [(0.0, 0.4, 1.0), (1.0, 0.3, -0.5)], ids=["forward", "backward"])
def test_values_and_gradients_are_torchdiffeqs(method, interface, t):
    """To the tolerance of its iteration. The nodes of its gl4 are wrong, so that func must not depend on time."""
    theirs = load_theirs()

    class Steady(Field):
        def forward(self, t, y):
            return super().forward(torch.ones_like(t) if method == "gl4" else t, y)

    field, y0, t = Steady(), start(3, 2), times(*t)
    options = {"step_size": 0.1, "max_iters": 50}
    y, reference = (getattr(it, interface)(field, y0, t, method=method, options=options) for it in (ours, theirs))
    torch.testing.assert_close(y, reference, rtol=0, atol=2e-8)
    inputs = (y0, *field.parameters())
    torch.testing.assert_close(gradients(y, *inputs), gradients(reference, *inputs), rtol=0, atol=1e-5)
