"""`compile="kernel"` against the eager backend, over random fields that have a kernel."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, event, given, settings

import ncode
from ncode.ode import METHODS
from ncode.ode.kernel.build import compiler

from .cases import cases
from .promises import assert_agree, drops_coarse_times, examples, gradients, loss, outputs, solve
from .test_solve import rounding

few = settings(
    max_examples=examples(4, share=5),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.slow
@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@few
@given(cases(empty=False))
def test_a_kernel_solves_as_the_eager_backend_does(case):
    assume(case.batch > 1 and case.options.get("step") != "batch")
    assume(case.options["method"] in (*METHODS, "rosenbrock23", "rodas5p"))
    given = {**case.build(trained=True).solve, "gradient": "discrete", "save_steps": False, "compile": True}
    with drops_coarse_times():
        why = ncode.explain(**given)
    event(why.why_not.get("kernel", "a kernel"))
    assume(why.backend == "kernel")
    results = []
    for compile in ("kernel", False):
        arguments = case.build(trained=True)
        solution = solve(arguments, gradient="discrete", save_steps=False, compile=compile)
        assert solution.stats.backend == compile or not compile
        results.append((outputs(solution), gradients(loss(solution), arguments.leaves)))
    (compiled_values, compiled_slopes), (values, slopes) = results
    tolerance = rounding(case) if "dt" in case.options else rounding(case) + case.options["rtol"]
    assert_agree(compiled_values, values, 1e3 * tolerance)
    assert_agree(compiled_slopes, slopes, 1e4 * tolerance, "gradient of ")
