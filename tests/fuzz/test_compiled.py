"""`compile="inductor"` against the eager backend. Graphs are traced, not compiled: all but rounding can err there."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from .cases import ITERATED, cases
from .promises import assert_agree, examples, gradients, loss, outputs, solve
from .test_solve import rounding

# Tracing takes a second.
few = settings(
    max_examples=examples(2, share=60),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@few
@given(cases(empty=False), st.sampled_from(["discrete", "adjoint", "autograd"]))
def test_compiled_solves_are_those_of_the_eager_backend(case, gradient):
    assume(case.options["method"] not in ITERATED)
    results = []
    for compile in (False, "inductor"):
        arguments = case.build(trained=True)
        solution = solve(arguments, gradient=gradient, compile=compile)
        results.append((outputs(solution), gradients(loss(solution), arguments.leaves)))
    (values, slopes), (compiled_values, compiled_slopes) = results
    tolerance = rounding(case) if "dt" in case.options else rounding(case) + case.options["rtol"]
    assert_agree(compiled_values, values, 1e3 * tolerance)
    assert_agree(compiled_slopes, slopes, 1e4 * tolerance, "gradient of ")
