"""Gradients of `solve` against references, and against one another."""

from __future__ import annotations

import torch
from hypothesis import assume, event, given
from hypothesis import strategies as st

from .cases import ITERATED, Case, cases, unnested
from .promises import assert_agree, gradients, loss, outputs, solve, some
from .test_solve import double, expected_of, rounding


def gradient_of(case: Case, extra: bool = False, **options):
    """The gradient of a loss of all outputs, by name; `extra`: also of dense output in the middle."""
    arguments = case.build(trained=True)
    solution = solve(arguments, **options, **({"dense": True} if extra else {}))
    value = loss(solution)
    if extra:
        middle = ((arguments.t0 + arguments.t1) / 2).detach()[:, None]
        dense = unnested(solution(middle))
        value = value + (dense.real if dense.is_complex() else dense).double().cos().sum()
    return gradients(value, arguments.leaves)


@some
@given(cases(), st.booleans(), st.integers(1, 3), st.sampled_from(["graph", "states", 10_000]))
def test_discrete_gradients_are_those_of_backpropagation(case, dense, every, keep):
    """Both differentiate the same accepted steps; stages that are iterated, up to where the iteration ended."""
    event(case.holder)
    iterated = 0.05 * case.options["rtol"] if case.options["method"] in ITERATED and "dt" not in case.options else 0.0
    expected = gradient_of(case, dense, gradient="autograd")
    mine = gradient_of(case, dense, gradient="discrete", checkpoint_every=every, keep=keep)
    assert_agree(mine, expected, 1e4 * rounding(case) + iterated)


@some
@given(cases(fixed=True, stiff=False), st.sampled_from(["discrete", "autograd"]))
def test_gradients_of_fixed_steps_are_those_of_the_method(case, gradient):
    arguments = case.build(double(case), trained=True)
    expected = gradients(loss(arguments.fixed_reference()), arguments.leaves)
    assert_agree(gradient_of(case, gradient=gradient), expected, 1e4 * rounding(case))


@some
@given(cases(fixed=False, far=False, jumps=False, single=False))
def test_adjoint_gradients_are_those_of_the_flow(case):
    case = case.changed(rtol=1e-8, atol=1e-9, method="dopri5")
    _, growth = expected_of(case, 1e-8)
    arguments = case.build(double(case), trained=True)
    expected = gradients(loss(arguments.reference(1e-10)), arguments.leaves)
    assert_agree(gradient_of(case, gradient="adjoint"), expected, 1e-4 * growth**2)


@some
@given(cases(fixed=False, far=False, jumps=False, single=False))
def test_discrete_gradients_approach_those_of_the_flow(case):
    case = case.changed(rtol=1e-8, atol=1e-9, method="dopri5")
    _, growth = expected_of(case, 1e-8)
    arguments = case.build(double(case), trained=True)
    expected = gradients(loss(arguments.reference(1e-10)), arguments.leaves)
    assert_agree(gradient_of(case, gradient="discrete"), expected, 1e-4 * growth**2)


@some
@given(cases(empty=False, jumps=False))
def test_samples_have_the_gradients_that_they_have_alone(case):
    assume(case.batch > 1)
    case = case.changed(step="sample")
    whole = gradient_of(case)
    parts = []
    for row in range(case.batch):
        arguments = case.build(rows=[row], trained=True)
        parts.append((gradients(loss_of_row(case, solve(arguments), row), arguments.leaves), arguments))
    for name, value in whole.items():
        pieces = [part[name] for part, _ in parts]
        per_sample = name.startswith(("x0", "theta", "t0", "t1", "save_at")) or pieces[0].shape != value.shape
        expected = torch.cat(pieces) if per_sample else torch.stack(pieces).sum(0)
        if per_sample and expected.shape != value.shape:
            continue  # a tensor with one row per sample in a batch of one, shared otherwise
        tolerance = 1e4 * rounding(case) if "dt" in case.options else 1e3 * case.options["rtol"]
        assert_agree({name: value}, {name: expected}, tolerance)


def loss_of_row(case: Case, solution, row: int):
    """The part of the loss of the whole batch that belongs to one sample."""
    total = torch.zeros((), dtype=torch.float64)
    for i, (_, value) in enumerate(sorted(outputs(solution).items())):
        count = value.numel() * case.batch
        weights = torch.linspace(0.5, 1.5, max(count, 1), dtype=torch.float64)[:count]
        weights = weights.reshape(case.batch, -1)[row] if count else weights
        real = value.real + value.imag if value.is_complex() else value
        total = total + ((0.5 + 0.1 * i) * weights * real.reshape(-1).double().sin()).sum()
    return total
