"""Steps of the torchdiffeq interface: evaluations, options, callbacks, jumps and dense output."""

import math

import pytest
import torch
from torch import nn

import ncode
from ncode.compat import torchdiffeq as ours

from .systems import ADAPTIVE, DOUBLE, FIXED, Counted, flat, start, times

theirs = pytest.importorskip("torchdiffeq")


def grid_of(kind: str) -> torch.Tensor:
    t = torch.linspace(0, 2, 9, dtype=DOUBLE)
    return {"even": t, "uneven": t**2 / 2, "backward": t.flip(0)}[kind]


# --- evaluations


@pytest.mark.parametrize("method", [*FIXED, *ADAPTIVE])
@pytest.mark.parametrize("grid", ["even", "uneven", "backward"])
@pytest.mark.parametrize("interface", ["odeint", "odeint_adjoint"])
def test_evaluations_are_as_many_as_torchdiffeqs(method, grid, interface):
    counts = []
    for library in (ours, theirs):
        field = Counted()
        # torchdiffeq controls the error of the gradient of time always, we only if t requires one.
        t = grid_of(grid).requires_grad_()
        y = getattr(library, interface)(field, start(3, 2), t, method=method, rtol=1e-4, atol=1e-5)
        forward = field.count
        y.square().sum().backward()
        counts.append((forward, field.count - forward))
    if method == "bosh3" and interface == "odeint_adjoint":  # other values between steps, so that other steps follow
        assert counts[0][0] == counts[1][0]
        assert counts[0][1] <= counts[1][1]
    else:
        assert counts[0] == counts[1]


@pytest.mark.parametrize("method", FIXED)
@pytest.mark.parametrize("options", [{"step_size": 0.3}, {"step_size": 0.25, "perturb": True}], ids=["other", "same"])
def test_evaluations_with_a_step_size_are_as_many_as_torchdiffeqs(method, options):
    fields = [Counted(), Counted()]
    for library, field in zip((ours, theirs), fields, strict=True):
        library.odeint(field, start(2), grid_of("even"), method=method, options=options)
    assert fields[0].count == fields[1].count


def test_a_cubic_evaluates_the_slope_at_the_end_of_a_step_once():
    t = torch.linspace(0, 1, 41, dtype=DOUBLE)
    fields = [Counted(), Counted()]
    for library, field in zip((ours, theirs), fields, strict=True):
        library.odeint(field, start(2), t, method="rk4", options={"step_size": 0.2, "interp": "cubic"})
    assert fields[0].count == 5 * 4 + 5 < fields[1].count


# --- options


def test_a_first_step_saves_an_evaluation_and_is_taken():
    steps, field = [], Counted()
    field.callback_step = lambda t, y, dt: steps.append(float(dt))
    ours.odeint(field, start(2), grid_of("even")[:2], options={"first_step": 0.125})
    assert steps[0] == 0.125
    assert field.count == 1 + 6 * len(steps)


@pytest.mark.parametrize("bound", [{"min_step": 0.4}, {"max_step": 0.05}])
def test_steps_keep_within_their_bounds_as_in_torchdiffeq(bound):
    results, counts = [], []
    for library in (ours, theirs):
        steps, field = [], Counted()
        field.callback_step = lambda t, y, dt: steps.append(float(dt.detach()))  # noqa: B023
        results.append(library.odeint(field, start(2).detach(), grid_of("even"), options=bound).detach())
        counts.append(steps)
    assert counts[0] == pytest.approx(counts[1], rel=1e-6)
    assert all(bound.get("min_step", 0) <= step <= bound.get("max_step", math.inf) for step in counts[0])
    torch.testing.assert_close(*results, rtol=0, atol=1e-9)


def test_a_norm_sees_the_state_as_func_does_and_sets_the_steps():
    shapes, counts = set(), []

    def norm(state):
        shapes.add(tuple(leaf.shape for leaf in state))
        return 100 * max(leaf.abs().max() for leaf in state)

    y0 = (torch.tensor(1.0, dtype=DOUBLE), torch.ones(2, 2, dtype=DOUBLE))
    for library in (ours, theirs):
        for options in ({}, {"norm": norm}):
            calls = []
            library.odeint(lambda t, y: calls.append(0) or (-y[0], y[1]), y0, torch.tensor([0.0, 1.0]), options=options)  # noqa: B023
            counts.append(len(calls))
    assert shapes == {((), (2, 2))}
    assert counts[:2] == counts[2:]
    assert counts[1] > counts[0]


def test_perturb_moves_the_ends_of_steps_inwards():
    seen = {}
    for library in (ours, theirs):
        ts = seen[library] = []
        field = lambda t, y: ts.append(t.item()) or -y  # noqa: E731, B023
        for t in ([0.0, 1.0], [1.0, 0.0]):
            library.odeint(
                field, torch.ones(2), torch.tensor(t), method="rk4", options={"step_size": 0.5, "perturb": True}
            )
    assert seen[ours] == pytest.approx(seen[theirs], abs=1e-7)
    assert not {0.0, 0.5, 1.0} & set(seen[ours])


class Jump(nn.Module):
    """A field that jumps at t = 0.5, in either direction of time."""

    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.tensor(0.5, dtype=DOUBLE))
        self.count = 0

    def forward(self, t, y):
        self.count += 1
        return -self.rate * y if t < 0.5 else y**2


@pytest.mark.parametrize("method", ["dopri5", "bosh3", "adaptive_heun"])
@pytest.mark.parametrize("backward", [False, True])
def test_jumps_cost_and_give_what_they_do_in_torchdiffeq(method, backward):
    t = torch.tensor([1.0, 0.5, 0.0] if backward else [0.0, 0.5, 1.0], dtype=DOUBLE)
    results, counts = [], []
    for library in (ours, theirs):
        func = Jump()
        options = {"jump_t": torch.tensor([0.5], dtype=DOUBLE), "step_t": torch.tensor([0.25, 1.0, 0.0], dtype=DOUBLE)}
        y0 = torch.tensor([0.3, 0.4], dtype=DOUBLE, requires_grad=True)
        y = library.odeint(func, y0, t, method=method, rtol=1e-5, atol=1e-6, options=options)
        counts.append(func.count)
        results.append(flat([y, *torch.autograd.grad(y[-1].sum(), (y0, func.rate))]))
    assert counts[0] == counts[1]
    torch.testing.assert_close(*results, rtol=0, atol=1e-4)
    without = Jump()
    ours.odeint(without, y0, t, method=method, rtol=1e-5, atol=1e-6)
    assert counts[0] < without.count


def test_gradients_of_times_before_and_behind_a_jump_agree_with_finite_differences():
    def solve(t, rate):
        func = lambda t, y: rate * y * t if t < 0.5 else -y  # noqa: E731
        options = {"jump_t": torch.tensor([0.5], dtype=DOUBLE)}
        return ours.odeint(func, torch.ones(1, dtype=DOUBLE), t, rtol=1e-10, atol=1e-10, options=options)

    rate = torch.tensor(0.7, dtype=DOUBLE, requires_grad=True)
    assert torch.autograd.gradcheck(solve, (times(0.1, 0.3, 0.8, 1.0), rate), eps=1e-5, atol=1e-5)


@pytest.mark.parametrize("method", [*FIXED, *ADAPTIVE, "tsit5"])
def test_gradients_agree_with_finite_differences(method):
    field = Counted()

    def solve(y0, t, w, b):
        with_tensors = lambda t, y: torch.func.functional_call(field, {"w": w, "b": b}, (t, y))  # noqa: E731
        # A fixed number of steps: finite differences would see that it changes.
        options = {"step_size": 0.2} if method in FIXED else {"first_step": 0.2, "min_step": 0.2, "max_step": 0.2}
        return ours.odeint(with_tensors, y0, t, method=method, options=options)

    inputs = (start(2), times(0.0, 0.33, 0.71), field.w, field.b)
    assert torch.autograd.gradcheck(solve, inputs, atol=1e-6)


# --- callbacks


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("method", ["rk4", "dopri5"])
def test_callbacks_are_told_what_they_are_told_in_torchdiffeq(nested, backward, method):
    seen = {}
    for library in (ours, theirs):
        told = seen[library] = []

        class Func(nn.Module):
            def forward(self, t, y):
                return (torch.sin(9 * y[0] + t),) if nested else torch.sin(9 * y + t)

            def callback_step(self, t, y, dt):
                told.append(("step", t, y[0] if nested else y, dt))  # noqa: B023

        func = Func()
        if method == "dopri5":
            func.callback_accept_step = lambda t, y, dt: told.append(("accept", t, y[0] if nested else y, dt))  # noqa: B023
            func.callback_reject_step = lambda t, y, dt: told.append(("reject", t, y[0] if nested else y, dt))  # noqa: B023
        y0 = torch.ones(2, dtype=DOUBLE)
        t = torch.tensor([1.0, 0.5, 0.0] if backward else [0.0, 0.5, 1.0], dtype=DOUBLE)
        library.odeint(func, (y0,) if nested else y0, t, method=method, rtol=1e-3, atol=1e-3)
    assert [kind for kind, *_ in seen[ours]] == [kind for kind, *_ in seen[theirs]]
    for (_, *mine), (_, *other) in zip(seen[ours], seen[theirs], strict=True):
        for a, b in zip(mine, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_callbacks_that_fixed_steps_do_not_have_warn():
    field = Counted()
    field.callback_accept_step = lambda t, y, dt: None
    with pytest.warns(UserWarning, match="callback_accept_step of func"):
        ours.odeint(field, start(2), grid_of("even"), method="rk4")


def test_callbacks_of_the_adjoint_are_called_in_backward():
    field, seen = Counted(), []
    field.callback_step_adjoint = lambda t, y, dt: seen.append([leaf.shape for leaf in y])
    y = ours.odeint_adjoint(field, start(3, 2), grid_of("even"), method="rk4")
    assert not seen
    y.sum().backward()
    assert seen == 8 * [[(), (3, 2), (3, 2), (2, 2), (2,)]]


# --- odeint_dense


@pytest.mark.parametrize("end", [2.0, -2.0])
@pytest.mark.parametrize("method", ["dopri5", "dopri8", "tsit5"])
def test_dense_output_is_that_of_odeint(end, method):
    field, y0 = Counted(), start(3, 2)
    t = torch.linspace(0, end, 7, dtype=DOUBLE)
    dense = ours.odeint_dense(field, y0, torch.tensor(0.0), torch.tensor(end), method=method)
    y = ours.odeint(field, y0, t, method=method)
    torch.testing.assert_close(dense(t), y, rtol=0, atol=1e-12)
    torch.testing.assert_close(dense(t[3]), y[3], rtol=0, atol=1e-12)
    (mine,), (other,) = (torch.autograd.grad(it.square().sum(), field.w) for it in (dense(t[3].item()), y[3]))
    torch.testing.assert_close(mine, other, rtol=0, atol=1e-12)


def test_dense_output_is_torchdiffeqs():
    ends = torch.tensor(0.0, dtype=DOUBLE), torch.tensor(2.0, dtype=DOUBLE)
    mine, other = (library.odeint_dense(Counted(), start(2), *ends) for library in (ours, theirs))
    for time in (0.0, 0.3, 1.7):
        at = torch.tensor(time, dtype=DOUBLE)
        torch.testing.assert_close(mine(at), other(at), rtol=0, atol=1e-9)


def test_dense_output_of_a_tuple_and_its_refusals():
    y0 = (torch.ones(2), torch.zeros(()))
    dense = ours.odeint_dense(lambda t, y: (-y[0], y[0].sum()), y0, 0.0, 1.0)
    assert [leaf.shape for leaf in dense(0.5)] == [(2,), ()]
    assert [leaf.shape for leaf in dense(torch.tensor([0.5, 1.0]))] == [(2, 2), (2,)]
    with pytest.raises(ncode.InputError, match="reaches from 0 to 1; given"):
        dense(1.5)
    with pytest.raises(ncode.InputError, match="adaptive steps; given"):
        ours.odeint_dense(lambda t, y: y, y0[0], 0.0, 1.0, method="rk4")


def test_odeint_dense_evaluates_again_in_backward_if_asked_to():
    evaluations, scale = [0], torch.ones(2, requires_grad=True)

    def field(t, y):
        evaluations[0] += 1
        return -scale * y

    dense = ours.odeint_dense(field, torch.ones(2), 0.0, 1.0, options={"gradient": "discrete"})
    forward = evaluations[0]
    dense(torch.tensor([0.3, 0.5])).sum().backward()
    assert evaluations[0] > forward
    assert bool((scale.grad < 0).all())


def test_odeint_dense_takes_a_number_or_a_vector_of_times():
    dense = ours.odeint_dense(lambda t, y: -y, torch.ones(2), 0.0, 1.0)
    assert dense(torch.empty(0)).shape == (0, 2)
    with pytest.raises(ncode.InputError, match=r"a number or a tensor \(T,\); given shape \(2, 3\)"):
        dense(torch.rand(2, 3))


def test_the_gradient_option_of_odeint_is_refused_for_the_adjoint():
    for name in ("options", "adjoint_options"):
        with pytest.raises(ncode.InputError, match=f'{name}.*"gradient".*is for odeint'):
            ours.odeint_adjoint(
                lambda t, y: -y, torch.ones(2), torch.tensor([0.0, 1.0]), **{name: {"gradient": "discrete"}}
            )
