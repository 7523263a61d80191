"""x0 as a nested tuple, list or dict of tensors: the solution is that of the same state as one tensor, nested alike."""

import math
from typing import NamedTuple

import pytest
import torch

import ncode
from ncode import InputError, Status

from .systems import DOUBLE, GRADIENTS, close, double, gradients

TIGHT = {"rtol": 1e-8, "atol": 1e-8}
every_gradient = pytest.mark.parametrize("gradient", GRADIENTS)


class Pendulum(NamedTuple):
    angle: torch.Tensor
    speed: torch.Tensor


def swing(t, x, theta):
    """A pendulum as a dict: the speed has a dimension more than the angle."""
    return {"angle": x["speed"][:, :, 0], "more": (theta * -x["angle"].sin()[:, :, None],), "speed": x["more"][0]}


def start(batch=3):
    generator = torch.Generator().manual_seed(2)

    def random(*shape):
        return torch.randn(batch, *shape, dtype=DOUBLE, generator=generator).requires_grad_()

    return {"angle": random(2), "speed": random(2, 1), "more": (random(2, 1),)}


def joined(x):
    return torch.cat([x["angle"], x["more"][0].flatten(-2), x["speed"].flatten(-2)], -1)


def swing_joined(t, x, theta):
    angle, more, speed = x.split(2, 1)
    return torch.cat([speed, theta[:, :, 0] * -angle.sin(), more], 1)


@every_gradient
@pytest.mark.parametrize("span", [1.0, -1.0])
@pytest.mark.parametrize("options", [TIGHT, {"method": "rk4", "dt": 0.1}, {"step": "batch", **TIGHT}])
def test_values_and_gradients_are_those_of_one_tensor(gradient, span, options):
    ts = torch.tensor([0.0, 0.3, 1.0], dtype=DOUBLE) * span

    def run(nested):
        x0, theta = start(), double(0.5, 1.0, 2.0)[:, :, None].requires_grad_()
        f, begin = (swing, x0) if nested else (swing_joined, joined(x0))
        cost = lambda t, x, theta: (x["angle"] if nested else x[:, :2]).square().sum(1)  # noqa: E731
        sol = ncode.solve(f, begin, 0.0, span, theta=theta, save_at=ts, cost=cost, gradient=gradient, **options)
        x, xs = (joined(sol.x), joined(sol.xs)) if nested else (sol.x, sol.xs)
        loss = x.sin().sum() + xs.cos().sum() + sol.cost.sum()
        inputs = {"angle": x0["angle"], "speed": x0["speed"], "more": x0["more"][0], "theta": theta}
        return x.detach(), xs.detach(), sol.stats.nfe, gradients(loss, inputs)

    close(run(True), run(False), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("gradient", ["discrete", "autograd"])
def test_dense_output_is_nested_too(gradient):
    x0, theta = start(), double(1.0, 1.0, 1.0)[:, :, None]
    sol = ncode.solve(swing, x0, 0.0, 1.0, theta=theta, dense=True, gradient=gradient, **TIGHT)
    plain = ncode.solve(swing_joined, joined(x0), 0.0, 1.0, theta=theta, dense=True, gradient=gradient, **TIGHT)
    at = torch.tensor([0.1, 0.7], dtype=DOUBLE)
    assert sol(at)["speed"].shape == (3, 2, 2, 1)
    close(joined(sol(at)), plain(at), rtol=1e-9)
    close(joined(sol(0.5)), plain(0.5), rtol=1e-9)
    leaf = x0["angle"]
    close(
        torch.autograd.grad(joined(sol(0.5)).sum(), leaf, retain_graph=True),
        torch.autograd.grad(plain(0.5).sum(), leaf, retain_graph=True),
    )


@every_gradient
def test_feedback_receives_the_nest_and_drives_a_nested_control(gradient):
    def run(nested):
        a, b = double(1.0, 2.0).requires_grad_(), double(0.5, -1.0).requires_grad_()
        rate = double(0.1, 0.2).requires_grad_()
        if nested:
            f = lambda t, x, theta: (-theta["rate"] * x[1], x[0])  # noqa: E731
            g = lambda t, x, theta: {"rate": x[0].tanh()}  # noqa: E731
            sol = ncode.solve(f, (a, b), 0.0, 1.0, theta={"rate": rate}, feedback=g, gradient=gradient, **TIGHT)
            end = torch.cat([*sol.x, sol.theta["rate"]], 1)
        else:
            f = lambda t, x, theta: torch.cat([-theta * x[:, 1:], x[:, :1]], 1)  # noqa: E731
            g = lambda t, x, theta: x[:, :1].tanh()  # noqa: E731
            begin = torch.cat([a, b], 1)
            sol = ncode.solve(f, begin, 0.0, 1.0, theta=rate, feedback=g, gradient=gradient, **TIGHT)
            end = torch.cat([sol.x, sol.theta], 1)
        return end.detach(), gradients(end.square().sum(), {"a": a, "b": b, "rate": rate})

    close(run(True), run(False), rtol=1e-9, atol=1e-10)


def test_a_named_tuple_stays_one_also_compiled(traced):
    x0 = Pendulum(double(0.1, 1.0), double(0.0, 0.0))

    def f(t, x, theta):
        return Pendulum(x.speed, -x.angle.sin())

    eager, compiled = (ncode.solve(f, x0, 0.0, 1.0, compile=compile, **TIGHT).x for compile in (False, "inductor"))
    assert isinstance(compiled, Pendulum)
    close(compiled, eager)
    assert traced


def test_failures_events_callbacks_and_padded_times_know_the_nest():
    seen = []

    def f(t, x, theta):
        return {"a": x["a"].square(), "b": -x["b"]}

    x0 = {"a": double(0.1, 2.0), "b": double(1.0, 1.0)}
    half = ncode.Event(lambda t, x, theta: x["b"][:, 0] - 0.9, terminal=False, reset=lambda t, x, theta: x)
    sol = ncode.solve(
        f,
        x0,
        0.0,
        1.0,
        save_at=[[0.25, math.nan], [0.25, 1.0]],
        events=half,
        throw=False,
        keep_last=True,
        max_steps=60,
        callback=lambda t, x, accepted: seen.append(x),
    )
    assert sol.status[0] == Status.OK
    assert sol.status[1] != Status.OK
    assert sol.x["a"].isfinite().all()
    assert sol.xs["b"].isnan()[..., 0].tolist() == [[False, True], [False, True]]
    assert sol.events[0].xs["b"].shape == (2, 1, 1)
    close(sol.events[0].xs["b"][:, 0], double(0.9, 0.9), rtol=1e-6)
    assert set(seen[0]) == {"a", "b"}
    assert seen[-1]["a"].shape == (2, 1)


def test_tolerances_are_for_all_or_nested_alike():
    x0 = {"fast": double(1.0, 2.0), "slow": double(1.0, 2.0)}

    def f(t, x, theta):
        return {"fast": 20 * (20 * t).cos()[:, None] * torch.ones_like(x["fast"]), "slow": -x["slow"]}

    def steps(**options):
        return ncode.solve(f, x0, 0.0, 1.0, **options).stats.steps.tolist()

    same = {"fast": 1e-6, "slow": 1e-6}
    assert steps(rtol=1e-6, atol=same) == steps(rtol=same, atol=1e-6) == steps(rtol=1e-6, atol=1e-6)
    assert steps(rtol=1e-6, atol=torch.full((2, 1), 1e-6)) == steps(rtol=1e-6, atol=1e-6)
    loose = {"fast": torch.tensor([[1e3], [1e-6]]), "slow": 1e-6}
    first, second = steps(rtol=1e-6, atol=loose)
    assert first < second == steps(rtol=1e-6, atol=1e-6)[1]
    with pytest.raises(InputError, match="nested as x0 is"):
        steps(rtol={"fast": 1e-3})
    with pytest.raises(InputError, match=r"rtol\['fast'\] must be at least 0"):
        steps(rtol={"fast": -1.0, "slow": 1.0})


@pytest.mark.parametrize("nest", [list, tuple])
def test_a_state_that_is_a_list_has_a_tolerance_per_part(nest):
    """Two components each: a list of two numbers is not one tolerance per component."""

    def steps(**options):
        x0 = [torch.ones(2, 2, dtype=DOUBLE), torch.ones(2, 2, dtype=DOUBLE)]
        field = lambda t, x, theta: [-x[0], -50 * t[:, None] * x[1].cos()]  # noqa: E731
        return ncode.solve(field, x0, 0.0, 1.0, **options).stats.steps.tolist()

    loose = steps(rtol=nest([1e-6, 1e3]), atol=nest([1e-6, torch.tensor([1e3, 1e3])]))
    assert loose == steps(rtol=nest([1e-6, torch.full((2, 1), 1e3)]), atol=nest([1e-6, [1e3, 1e3]]))
    assert loose < steps(rtol=1e-6, atol=1e-6) == steps(rtol=nest([1e-6] * 2), atol=torch.full((2,), 1e-6))
    with pytest.raises(InputError, match="nested as x0 is"):
        steps(rtol=nest([1e-6] * 3))


def test_stiff_methods_take_nests():
    x0 = {"a": double(1.0, 2.0), "b": (double(0.0, 1.0),)}

    def f(t, x, theta):
        return {"a": -100 * (x["a"] - x["b"][0]), "b": (-x["b"][0],)}

    stiff, explicit = (ncode.solve(f, x0, 0.0, 1.0, method=method, **TIGHT).x for method in ("rodas5p", "dopri5"))
    close(stiff, explicit, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("x0", "text"),
    [
        ((), "x0 holds no tensor"),
        ({"a": 1.0}, r"x0 must be a tensor .* given dict, in which x0\['a'\] is float"),
        ([[1.0, 2.0]], r"given list, in which x0\[0\]\[0\] is float"),
        ((torch.ones(2, 1), torch.ones(3, 1)), r"x0\[1\] has 3 samples and x0\[0\] 2"),
        ((torch.ones(2, 1), torch.ones(2, 1, dtype=DOUBLE)), "one precision"),
        ((torch.ones(2, 1), torch.ones(2, 1, dtype=torch.int64)), r"x0\[1\] must be of a floating or complex dtype"),
        ((torch.ones(2, 1), torch.full((2, 1), math.nan)), "x0 is not finite in 2 of 2 samples"),
    ],
)
def test_nests_that_cannot_be_solved_are_refused(x0, text):
    with pytest.raises(InputError, match=text):
        ncode.solve(lambda t, x, theta: x, x0, 0.0, 1.0)


@pytest.mark.parametrize("wrong", [lambda x: x["a"], lambda x: {"a": x["a"]}, lambda x: (x["a"], x["b"])])
def test_dynamics_that_return_another_nest_are_refused(wrong):
    x0 = {"a": double(1.0), "b": double(1.0)}
    with pytest.raises(InputError, match=r"the dynamics returned .* nested as x0 is, [({\[].*Tensor"):
        ncode.solve(lambda t, x, theta: wrong(x), x0, 0.0, 1.0)
    with pytest.raises(InputError, match=r"the dynamics returned shape \(1, 2\)"):
        ncode.solve(lambda t, x, theta: {"a": x["a"], "b": torch.ones(1, 2, dtype=DOUBLE)}, x0, 0.0, 1.0)


def test_a_solution_prints_the_shapes_of_its_nest():
    sol = ncode.solve(lambda t, x, theta: x, {"a": torch.ones(2, 3)}, 0.0, 1.0)
    assert repr(sol).startswith("Solution: x {'a': (2, 3)}")


def test_an_empty_batch_is_nested_too():
    sol = ncode.solve(lambda t, x, theta: x, (torch.ones(0, 3), torch.ones(0, 2)), 0.0, 1.0, save_at=[0.5])
    assert [leaf.shape for leaf in sol.x] == [(0, 3), (0, 2)]
    assert [leaf.shape for leaf in sol.xs] == [(0, 1, 3), (0, 1, 2)]
