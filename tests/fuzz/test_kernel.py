"""`compile="kernel"` against the eager backend, over random fields; those that have no kernel must say why."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, event, given, settings

import ncode
from ncode.ode.kernel.build import compiler

from .cases import cases
from .promises import assert_agree, gradients, loss, outputs, solve
from .test_solve import rounding

few = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@few
@given(cases(empty=False))
def test_a_kernel_solves_as_the_eager_backend_or_says_why_not(case):
    assume(case.batch > 1 and case.options.get("step") != "batch" and case.saved is None)
    results = []
    for compile in ("kernel", False):
        arguments = case.build(trained=True)
        try:
            solution = solve(arguments, gradient="discrete", compile=compile)
        except ncode.InputError as error:
            assert "does not fit: " in str(error) or not compile
            event(str(error))
            return
        results.append((outputs(solution), gradients(loss(solution), arguments.leaves)))
    event("a kernel")
    (compiled_values, compiled_slopes), (values, slopes) = results
    tolerance = rounding(case) if "dt" in case.options else rounding(case) + case.options["rtol"]
    assert_agree(compiled_values, values, 1e3 * tolerance)
    assert_agree(compiled_slopes, slopes, 1e4 * tolerance, "gradient of ")
