"""Values of `solve` against references in double precision."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, event, given
from torch.utils import _pytree as pytree

import ncode
from ncode import Status

from . import reference
from .cases import DOUBLE, STIFF, Case, cases, unnested
from .promises import assert_agree, gradients, loss, outputs, solve, some

COMPLEX = torch.complex128


def double(case: Case) -> torch.dtype:
    return COMPLEX if case.dtype.is_complex else DOUBLE


def expected_of(case: Case, tolerance: float) -> tuple[reference.Reference, float]:
    """The solution, and how much an error made on the way may grow: measured with a moved start."""
    try:
        arguments = case.build(double(case))
        truth = arguments.reference(tolerance)
        arguments.x0 = arguments.x0 + 1e-5
        moved = arguments.reference(tolerance)
    except reference.Unresolved:
        assume(False)
    pairs = zip(outputs(truth).values(), outputs(moved).values(), strict=True)
    return truth, max([1.0, *(float((a - b).abs().max()) / 1e-5 for a, b in pairs if a.numel())])


def rounding(case: Case) -> float:
    return 1e-5 if case.dtype == torch.float32 else 1e-12


@some
@given(cases(fixed=False, jumps=False))  # a method may step over a jump without noticing
def test_adaptive_steps_meet_their_tolerance(case):
    event(f"{case.holder}, {case.dtype}")
    truth, growth = expected_of(case, 1e-3 * case.options["rtol"])
    solution = solve(case.build())
    assert solution.status == (Status.OK,) * case.batch
    assert_agree(outputs(solution), outputs(truth), 300 * growth * (case.options["rtol"] + rounding(case)))


@some
@given(cases(fixed=False, landings=True, far=False, single=False))
def test_adaptive_steps_that_land_on_jumps_meet_their_tolerance(case):
    truth, growth = expected_of(case, 1e-3 * case.options["rtol"])
    solution = solve(case.build())
    assert solution.status == (Status.OK,) * case.batch
    assert_agree(outputs(solution), outputs(truth), 300 * growth * (case.options["rtol"] + rounding(case)))


@some
@given(cases(fixed=True, stiff=False))
def test_fixed_steps_are_those_of_the_method(case):
    truth = case.build(double(case)).fixed_reference()
    solution = solve(case.build())
    assert solution.status == (Status.OK,) * case.batch
    assert_agree(outputs(solution), outputs(truth), 1e3 * rounding(case))


@some
@given(cases(empty=False, jumps=False))
def test_a_sample_alone_has_the_result_that_it_has_in_a_batch(case):
    case = case.changed(step="sample")
    together = outputs(solve(case.build()))
    _, growth = (None, 1.0) if "dt" in case.options else expected_of(case, 1e-2 * case.options["rtol"])
    tolerance = 1e3 * rounding(case) if "dt" in case.options else growth * 20 * (case.options["rtol"] + rounding(case))
    for row in range(case.batch):
        alone = outputs(solve(case.build(rows=[row])))
        mine = {name: value[row : row + 1] for name, value in together.items()}
        assert_agree(mine, alone, tolerance, f"sample {row}: ")


@some
@given(cases(empty=False))
def test_dense_output_agrees_with_saved_values(case):
    assume(case.saved)
    solution = solve(case.build(), dense=True)
    arguments = case.build()
    resolution = 1e-15 * abs(case.times.offset)  # of an absolute time
    assert_agree(
        {"xs": unnested(solution(arguments.ts))}, {"xs": unnested(solution.xs)}, 1e4 * rounding(case) + 10 * resolution
    )


@some
@given(cases(empty=False))
def test_other_options_do_not_change_values(case):
    """Gradients, checkpoints and dense output are a matter of the backward pass, not of values."""
    plain = outputs(solve(case.build()))
    changes = ({"gradient": "adjoint"}, {"gradient": "autograd"}, {"checkpoint_every": 3}, {"keep": "states"})
    for change in (*changes, {"dense": True}):
        trained = case.build(trained=True)
        dense_adjoint = "dense" in change
        changed = outputs(solve(trained, **change, **({"gradient": "discrete"} if dense_adjoint else {})))
        # Graphs take one more iteration of Newton's method, and dense output of stiff methods has an error of its own.
        stiff = 10 * case.options["rtol"] if case.options["method"] in STIFF and "dt" not in case.options else 0.0
        assert_agree(changed, plain, 1e3 * rounding(case) + stiff, f"{change}: ")


@some
@given(cases(fixed=False, shared=True, far=False, empty=False, jumps=False))
def test_backward_in_time_returns_to_the_start(case):
    case = replace(case, saved=None)
    case = case.changed(method="dopri8", rtol=1e-8, atol=1e-9) if case.dtype != torch.float32 else case
    there = case.build()
    middle = solve(there)
    _, growth = expected_of(case, 1e-7)
    back = case.build()
    back.x0, back.given = unnested(middle.x).detach(), (back.given[1], back.given[0])
    back.theta = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, middle.theta)
    returned = solve(back)
    start = case.build()
    assert_agree(
        {"x": unnested(returned.x)}, {"x": start.x0}, 1e4 * growth**2 * (case.options["rtol"] + rounding(case))
    )


@some
@given(cases(empty=False, jumps=False))
def test_failed_samples_are_nan_and_leave_the_others_alone(case):
    """One sample blows up; the others have the values and gradients of a batch without it."""
    assume(case.batch > 1 and case.options["step"] == "sample" and not case.dtype.is_complex)
    assume(min(abs(length) for _, length in case.times.pairs) > 0.1)
    arguments = case.build(trained=True)
    explode = torch.zeros(case.batch, dtype=DOUBLE)
    explode[-1] = 1.0
    if "dt" in case.options:  # a few fixed steps may end before the values overflow
        with torch.no_grad():
            arguments.x0[-1] = arguments.x0[-1].abs() + 1

    def with_explosion(built, mask):
        inner = built.f

        def field(t, x, theta):
            rows = mask.to(x.dtype).reshape(-1, *[1] * (x.dim() - 1))
            return inner(t, x, theta) + rows * torch.exp(1e3 * torch.where(rows > 0, x, 0.0).abs())

        built.f = field
        return built

    whole = solve(with_explosion(arguments, explode), throw=False, max_steps=3000)
    assert whole.status[-1] != Status.OK
    assert unnested(whole.x)[-1].isnan().all()
    kept = list(range(case.batch - 1))
    assert all(whole.status[row] == Status.OK for row in kept)
    others = case.build(rows=kept, trained=True)
    alone = solve(with_explosion(others, torch.zeros(case.batch - 1)))
    rest = whole_without_last(whole)
    tolerance = 1e3 * rounding(case) if "dt" in case.options else 100 * case.options["rtol"]
    assert_agree(outputs(rest), outputs(alone), tolerance)
    mine, expected = gradients(loss(rest), arguments.leaves), gradients(loss(alone), others.leaves)
    per_sample = {name for name, leaf in expected.items() if leaf.shape != arguments.leaves[name].shape}
    mine = {name: value[:-1] if name in per_sample else value for name, value in mine.items()}
    assert_agree(mine, expected, 100 * tolerance, "gradient of ")


def whole_without_last(solution):
    """A solution without its last sample."""
    kept = {name: value[:-1] for name, value in outputs(solution).items()}
    theta = [value for name, value in kept.items() if name.startswith("theta")]
    return reference.Reference(kept["x"], theta, kept.get("cost"), kept.get("xs"))


@some
@given(cases(empty=False))
def test_failures_raise_by_default(case):
    arguments = case.build()
    arguments.f = lambda t, x, theta: x * float("nan")
    moves = [bool(a != b) for a, b in zip(arguments.t0, arguments.t1, strict=True)]
    if not any(moves):
        assert unnested(solve(arguments).x).isfinite().all()
        return
    with pytest.raises(ncode.SolveError) as caught:
        solve(arguments)
    assert caught.value.samples == [row for row, moving in enumerate(moves) if moving]
