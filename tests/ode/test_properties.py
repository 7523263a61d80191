"""Whatever is given: a right answer, or an error of our own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from beartype import beartype
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxtyping import Float, jaxtyped
from torch import Tensor
from torch.utils import _pytree as pytree

import ncode
from ncode import InputError, SolveError, Status
from ncode.ode import METHODS

from .systems import ADAPTIVE, DOUBLE, GRADIENTS, close, column

Time = Float[Tensor, " batch"]
State = Float[Tensor, "batch *rest"]
small = st.integers(1, 3)
shapes = st.lists(small, max_size=3).map(tuple)
times = st.floats(-3.0, 3.0)
trees = st.recursive(
    shapes,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=2)
        | st.tuples(inner, inner)
        | st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=2)
    ),
    max_leaves=4,
)


def build(tree: Any, batch: int, generator: torch.Generator, dtype: torch.dtype) -> Any:
    """A control nested as the tree, whose leaves are shapes."""
    if isinstance(tree, list):
        return [build(inner, batch, generator, dtype) for inner in tree]
    if isinstance(tree, dict):
        return {name: build(inner, batch, generator, dtype) for name, inner in tree.items()}
    if all(isinstance(size, int) for size in tree):
        return torch.randn(batch, *tree, generator=generator, dtype=dtype)
    return tuple(build(inner, batch, generator, dtype) for inner in tree)


def pressure(theta: Any, x: Tensor) -> Tensor:
    """Something that depends on all leaves of a control, a number a sample with the dimensions of x."""
    leaves = [leaf.reshape(len(x), -1).mean(1) for leaf in pytree.tree_leaves(theta)]
    return column(torch.stack(leaves).sum(0), x) if leaves else torch.zeros_like(x)


def field(t: Tensor, x: Tensor, theta: Any) -> Tensor:
    return torch.tanh(x * column(t, x).cos() + (0 if theta is None else pressure(theta, x)))


def feedback(t: Tensor, x: Tensor, theta: Any) -> Any:
    mean = x.reshape(len(x), -1).mean(1)
    return pytree.tree_map(lambda leaf: column(mean, leaf) - leaf, theta)


def cost(t: Tensor, x: Tensor, theta: Any) -> Tensor:
    return x.reshape(len(x), -1).square().mean(1) + t


@dataclass
class Case:
    """A solve that must work."""

    arguments: dict[str, Any]
    batch: int
    shape: tuple[int, ...]
    count: int | None


@st.composite
def cases(draw: st.DrawFn, *, own_times: bool = True) -> Case:
    batch, shape = draw(st.integers(1, 4)), draw(shapes)
    dtype = draw(st.sampled_from([torch.float32, DOUBLE]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    theta = draw(st.none() | trees)
    theta = None if theta is None else build(theta, batch, generator, dtype)
    step = draw(st.sampled_from(["sample", "batch"]))
    per_sample = own_times and step == "sample" and draw(st.booleans())
    t0, t1 = draw(times), draw(times)
    if per_sample:
        ends = draw(st.lists(st.tuples(times, times), min_size=batch, max_size=batch))
        t0, t1 = (torch.tensor(side, dtype=DOUBLE) for side in zip(*ends, strict=True))
    dt = draw(st.none() | st.floats(0.05, 2.0))
    count = draw(st.none() | st.integers(0, 4))
    save_at = None
    if count is not None:
        inside = torch.tensor(sorted(draw(st.lists(st.floats(0, 1), min_size=count, max_size=count))), dtype=DOUBLE)
        begin, end = (torch.as_tensor(t, dtype=DOUBLE)[..., None] for t in (t0, t1))
        save_at = torch.minimum(
            torch.maximum(begin + (end - begin) * inside, torch.minimum(begin, end)), torch.maximum(begin, end)
        )
    arguments = {
        "dynamics": field,
        "x0": torch.randn(batch, *shape, generator=generator, dtype=dtype),
        "t0": t0,
        "t1": t1,
        "theta": theta,
        "feedback": feedback if theta is not None and draw(st.booleans()) else None,
        "cost": cost if draw(st.booleans()) else None,
        "save_at": save_at,
        "method": draw(st.sampled_from(list(METHODS) if dt is not None else ADAPTIVE)),
        "dt": dt,
        "step": step,
        "rtol": draw(st.sampled_from([1e-2, 1e-4])),
        "atol": draw(st.sampled_from([1e-3, 1e-5])),
    }
    return Case(arguments, batch, shape, count)


@given(cases(), st.sampled_from(GRADIENTS), st.booleans(), st.integers(1, 3))
def test_a_solution_has_the_shapes_that_it_promises(case, gradient, dense, every):
    arguments = case.arguments
    arguments["x0"].requires_grad_()
    dense = dense and gradient != "adjoint"
    sol = ncode.solve(**arguments, gradient=gradient, dense=dense, checkpoint_every=every)
    assert sol.status == (Status.OK,) * case.batch
    assert sol.x.shape == (case.batch, *case.shape)
    assert sol.x.dtype == arguments["x0"].dtype
    assert (sol.cost is None) == (arguments["cost"] is None)
    assert sol.cost is None or sol.cost.shape == (case.batch,)
    assert pytree.tree_structure(sol.theta) == pytree.tree_structure(arguments["theta"])
    total = sol.x.sum()
    if case.count is not None:
        assert sol.ts.shape == (case.batch, case.count)
        assert sol.xs.shape == (case.batch, case.count, *case.shape)
        for leaf, given_leaf in zip(*map(pytree.tree_leaves, (sol.thetas, arguments["theta"])), strict=True):
            assert leaf is None or leaf.shape == (case.batch, case.count, *given_leaf.shape[1:])
        assert sol.xs.isfinite().all()
        total = total + sol.xs.sum()
    if dense:
        middle = (torch.as_tensor(arguments["t0"], dtype=DOUBLE) + arguments["t1"]) / 2
        values = sol(middle.expand(case.batch)[:, None])
        assert values.shape == (case.batch, 1, *case.shape)
        total = total + values.sum()
    for count in (sol.stats.nfe, sol.stats.steps, sol.stats.rejected):
        assert count.shape == (case.batch,)
    total.backward()
    assert arguments["x0"].grad.isfinite().all()


@given(cases())
@settings(max_examples=25)
def test_discrete_equals_autograd_whatever_is_solved(case):
    grads = []
    for gradient in ("discrete", "autograd"):
        leaves, spec = pytree.tree_flatten(case.arguments["theta"])
        leaves = [None if leaf is None else leaf.double().requires_grad_() for leaf in leaves]
        x0 = case.arguments["x0"].double().requires_grad_()
        arguments = {**case.arguments, "x0": x0, "theta": pytree.tree_unflatten(leaves, spec)}
        sol = ncode.solve(**arguments, gradient=gradient)
        loss = sol.x.sin().sum()
        loss = loss if sol.cost is None else loss + sol.cost.square().sum()
        loss = loss if sol.xs is None else loss + sol.xs.cos().sum()
        wanted = [x0, *(leaf for leaf in leaves if leaf is not None)]
        grads.append(torch.autograd.grad(loss, wanted, allow_unused=True, materialize_grads=True))
    close(*grads, rtol=1e-9, atol=1e-11)


@given(cases(own_times=False), st.floats(-100, 100))
def test_an_autonomous_system_does_not_know_what_time_it_is(case, shift):
    arguments = {**case.arguments, "dynamics": lambda t, x, theta: x.sin(), "feedback": None, "cost": None}
    arguments |= {"x0": arguments["x0"].double(), "save_at": None, "dt": None, "method": "dopri5"}
    here = ncode.solve(**arguments)
    there = ncode.solve(**{**arguments, "t0": arguments["t0"] + shift, "t1": arguments["t1"] + shift})
    close(there.x, here.x, rtol=1e-6, atol=1e-9)


@given(cases(own_times=False))
def test_time_may_run_backward_under_a_field_that_does_too(case):
    arguments = {**case.arguments, "save_at": None, "cost": None}
    mirrored = {
        **arguments,
        "dynamics": lambda t, x, theta: -field(-t, x, theta),
        "feedback": None
        if arguments["feedback"] is None
        else lambda t, x, theta: pytree.tree_map(torch.neg, feedback(-t, x, theta)),
        "t0": -arguments["t0"],
        "t1": -arguments["t1"],
    }
    one, other = ncode.solve(**arguments), ncode.solve(**mirrored)
    close(one.x, other.x, rtol=1e-4, atol=1e-5)
    assert torch.equal(one.stats.steps, other.stats.steps)


@given(cases(own_times=False), st.randoms())
def test_the_order_of_the_batch_has_no_meaning(case, random):
    order = list(range(case.batch))
    random.shuffle(order)
    doubled = pytree.tree_map(lambda leaf: leaf if leaf is None else leaf.double(), case.arguments["theta"])
    arguments = {**case.arguments, "save_at": None, "step": "sample", "theta": doubled}
    arguments["x0"] = arguments["x0"].double()
    turned = {**arguments, "x0": arguments["x0"][order]}
    turned["theta"] = pytree.tree_map(lambda leaf: leaf if leaf is None else leaf[order], doubled)
    close(ncode.solve(**turned).x, ncode.solve(**arguments).x[order])


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=6),
    st.lists(st.floats(-1, 1), max_size=3),
    st.sampled_from(
        [torch.tensor(1.0), torch.ones(2), torch.ones(2, 2), torch.tensor([math.nan, 1.0]), torch.tensor(1j), object()]
    ),
)
ARGUMENTS = [
    "dynamics",
    "x0",
    "t0",
    "t1",
    "theta",
    "feedback",
    "cost",
    "save_at",
    "method",
    "rtol",
    "atol",
    "dt",
    "step",
    "gradient",
    "max_steps",
    "checkpoint_every",
    "keep",
]


@given(st.dictionaries(st.sampled_from(ARGUMENTS), anything, min_size=1, max_size=3))
@settings(max_examples=150)
def test_nonsense_gets_an_error_of_our_own_or_a_solution(nonsense):
    arguments = {"dynamics": field, "x0": torch.ones(2, 2), "t0": 0.0, "t1": 1.0, "max_steps": 100, **nonsense}
    try:
        shape = ncode.solve(**arguments).x.shape
    except (InputError, SolveError):
        return
    assert shape == arguments["x0"].shape


RATHER_BAD = {
    "overflows": lambda t, x, theta: (50 * x).exp(),
    "is nan below zero": lambda t, x, theta: x.log(),
    "is nan late": lambda t, x, theta: torch.where(column(t, x) > 0.5, torch.nan, x),
    "blows up": lambda t, x, theta: x**3,
    "jumps": lambda t, x, theta: 100 * torch.sign(x - 0.3),
    "is stiff": lambda t, x, theta: -1e6 * (x - column(t, x).cos()),
    "divides by zero": lambda t, x, theta: 1 / (column(t, x) - 0.5),
}


@given(
    st.sampled_from(sorted(RATHER_BAD)),
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=4),
    st.sampled_from([*ADAPTIVE]),
    st.none() | st.floats(0.01, 0.5),
    st.sampled_from(["discrete", "autograd"]),
    st.sampled_from(["sample", "batch"]),
)
@settings(max_examples=60)
def test_bad_dynamics_fail_sample_by_sample_and_leave_the_rest_alone(name, starts, method, dt, gradient, step):
    x0 = torch.tensor(starts)[:, None].requires_grad_()
    sol = ncode.solve(
        RATHER_BAD[name], x0, 0.0, 1.0, method=method, dt=dt, step=step, gradient=gradient, max_steps=60, throw=False
    )
    for i, status in enumerate(sol.status):
        assert sol.x[i].isfinite().all() == (status is Status.OK)
    attempts = sol.stats.steps + sol.stats.rejected
    assert bool((attempts <= 60).all())
    (grad,) = torch.autograd.grad(torch.where(sol.ok[:, None], sol.x, 0).sum(), x0)
    assert not grad[~sol.ok].any()


@given(cases())
@settings(max_examples=10)
def test_the_shapes_hold_under_a_runtime_type_checker(case):
    """f, g and the cost are given t, x and theta in the shapes that are written down for them."""
    batch = case.batch

    @jaxtyped(typechecker=beartype)
    def checked(t: Time, x: State, theta: Any) -> State:
        assert len(t) <= batch
        return field(t, x, theta)

    @jaxtyped(typechecker=beartype)
    def checked_cost(t: Time, x: State, theta: Any) -> Time:
        return cost(t, x, theta)

    ncode.solve(**{**case.arguments, "dynamics": checked, "cost": checked_cost})
