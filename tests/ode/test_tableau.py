from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations_with_replacement
from math import prod

import numpy as np
import pytest
import torch
from torch import Tensor

import ncode
from ncode.ode import METHODS, Tableau

from .systems import DOUBLE

# A rooted tree is the sorted tuple of the trees that hang from its root.
Tree = tuple["Tree", ...]

every_method = pytest.mark.parametrize("name", METHODS)
every_adaptive = pytest.mark.parametrize("name", [n for n, tableau in METHODS.items() if tableau.adaptive])


@cache
def trees(order: int) -> list[Tree]:
    """All rooted trees with this many nodes."""

    def forests(nodes: int, largest: int) -> Iterator[tuple[Tree, ...]]:
        if nodes == 0:
            yield ()
        for size in range(min(nodes, largest), 0, -1):
            for count in range(1, nodes // size + 1):
                for rest in forests(nodes - count * size, size - 1):
                    for same in combinations_with_replacement(trees(size), count):
                        yield (*same, *rest)

    return list(forests(order - 1, order - 1))


def nodes(tree: Tree) -> int:
    return 1 + sum(map(nodes, tree))


def density(tree: Tree) -> int:
    return nodes(tree) * prod(map(density, tree))


def stage_weights(tree: Tree, a: np.ndarray) -> np.ndarray:
    """The elementary weight of each stage."""
    return prod([a @ stage_weights(child, a) for child in tree], start=np.ones(len(a)))


def whole_matrix(tableau: Tableau) -> np.ndarray:
    """The matrix of all slopes: stages, the end slope, and the extra ones of dense output."""
    rows = [*tableau.a, tableau.b, *tableau.extra_a]
    matrix = np.zeros((len(rows), len(rows)))
    for i, row in enumerate(rows):
        matrix[i, : len(row)] = row
    return matrix


def defect(tableau: Tableau, weights: np.ndarray, order: int, sigma: float = 1.0) -> float:
    """How far weights are from integrating all trees of one order over [0, sigma]."""
    a = whole_matrix(tableau)
    full = np.zeros(len(a))
    full[: len(weights)] = weights
    return max(abs(full @ stage_weights(tree, a) - sigma**order / density(tree)) for tree in trees(order))


def test_there_are_as_many_rooted_trees_as_cayley_counted():
    assert [len(trees(order)) for order in range(1, 9)] == [1, 1, 2, 4, 9, 20, 48, 115]


@every_method
def test_rows_of_a_sum_to_c(name):
    tableau = METHODS[name]
    for c, row in zip((*tableau.c, *tableau.extra_c), (*tableau.a, *tableau.extra_a), strict=True):
        assert sum(row) == pytest.approx(c, abs=1e-13)


@every_method
def test_a_stage_uses_only_slopes_before_it(name):
    tableau = METHODS[name]
    assert [len(row) for row in tableau.a] == list(range(tableau.stages))
    assert [len(row) for row in tableau.extra_a] == [tableau.stages + 1 + i for i in range(len(tableau.extra_a))]


@every_method
def test_the_order_conditions_of_all_rooted_trees_hold(name):
    tableau = METHODS[name]
    for order in range(1, tableau.order + 1):
        assert defect(tableau, np.array(tableau.b), order) < 1e-13 * tableau.stages**2
    assert defect(tableau, np.array(tableau.b), tableau.order + 1) > 1e-7 if tableau.order < 8 else True


@every_adaptive
def test_error_weights_are_the_difference_of_two_methods(name):
    tableau = METHODS[name]
    # dopri8 combines estimates of orders 5 and 3 into one of order 7: E5^2 / sqrt(E5^2 + 0.01 E3^2).
    orders = {5: tableau.error, 3: tableau.error_low} if name == "dopri8" else {tableau.error_order: tableau.error}
    for embedded, row in orders.items():
        assert sum(row) == pytest.approx(0.0, abs=1e-14)
        other = np.zeros(max(len(row), tableau.stages))
        other[: tableau.stages] = tableau.b
        other[: len(row)] -= row
        for order in range(1, embedded + 1):
            assert defect(tableau, other, order) < 1e-12
        assert defect(tableau, other, embedded + 1) > 1e-6, "the estimate is blind to the error it measures"


def test_the_two_estimates_of_dopri8_combine_to_its_error_order():
    assert METHODS["dopri8"].error_order + 1 == 2 * (5 + 1) - (3 + 1)


@every_method
def test_dense_output_ends_where_the_step_ends(name):
    tableau = METHODS[name]
    at_end = np.array(tableau.dense).sum(1)
    expected = np.zeros(len(at_end))
    expected[: tableau.stages] = tableau.b
    # dopri8's interpolant has coefficients of several hundred, so its sums keep fewer digits.
    np.testing.assert_allclose(at_end, expected, atol=1e-12 if name == "dopri8" else 1e-14)


@every_method
@pytest.mark.parametrize("sigma", [0.1, 0.37, 0.5, 0.93])
def test_dense_output_satisfies_the_order_conditions_everywhere(name, sigma):
    tableau = METHODS[name]
    powers = np.array([sigma ** (q + 1) for q in range(len(tableau.dense[0]))])
    weights = np.array(tableau.dense) @ powers
    # An error of h^p made once weighs as much as errors of h^(p+1) made at each step.
    for order in range(1, max(tableau.order - 1, 1) + 1):
        assert defect(tableau, weights, order, sigma) < 1e-11


def autonomous(t: Tensor, x: Tensor, theta: None) -> Tensor:
    """A logistic growth, a double well, and a rotation whose speed is the square of its radius."""
    population, well, point = x[:, :1], x[:, 1:2], x[:, 2:]
    turned = torch.stack([-point[:, 1], point[:, 0]], 1)
    speed = point.square().sum(1, keepdim=True)
    return torch.cat([3 * population * (1 - population), 2 * (well - well**3), speed * turned], 1)


def autonomous_exact(t: Tensor, x0: Tensor) -> Tensor:
    growth = (3 * t).exp()
    population = x0[:, 0] * growth / (1 + x0[:, 0] * (growth - 1))
    well = x0[:, 1] / (x0[:, 1] ** 2 + (1 - x0[:, 1] ** 2) * (-4 * t).exp()).sqrt()
    angle = x0[:, 2:].square().sum(1) * t
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([population, well, cos * x0[:, 2] - sin * x0[:, 3], sin * x0[:, 2] + cos * x0[:, 3]], 1)


def time_dependent(t: Tensor, x: Tensor, theta: None) -> Tensor:
    return (3 * t).cos()[:, None] * (1 + x.square()) / 2


def time_dependent_exact(t: Tensor, x0: Tensor) -> Tensor:
    return (x0.atan() + (3 * t).sin()[:, None] / 6).tan()


# Sizes and numbers of steps at which the error is clear both of rounding and of the next power of h.
SYSTEMS = {
    "autonomous": (autonomous, autonomous_exact, [[0.2, 0.1, 0.9, 0.2], [0.4, -0.3, -0.5, 0.8]]),
    "time-dependent": (time_dependent, time_dependent_exact, [[0.3], [0.6]]),
}
STEPS = {
    1: (100, 200, 400),
    2: (100, 200, 400),
    3: (100, 200, 400),
    4: (50, 100, 200),
    5: (40, 80, 160),
    8: (18, 24, 32),
}


def exactly(exact: Callable[[Tensor, Tensor], Tensor], ts: Tensor, x0: Tensor) -> Tensor:
    """The exact solution at these times, (batch, T, size)."""
    flat = exact(ts.repeat(len(x0)), x0.repeat_interleave(len(ts), 0))
    return flat.unflatten(0, (len(x0), len(ts)))


def observed_order(errors: list[float], steps: tuple[int, ...]) -> float:
    return float(-np.polyfit(np.log(steps), np.log(errors), 1)[0])


@pytest.mark.slow
@every_method
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("where", ["at the end of steps", "saved between steps", "called between steps"])
def test_the_observed_order_is_the_method_s(name, system, where):
    field, exact, start = SYSTEMS[system]
    x0 = torch.tensor(start, dtype=DOUBLE)
    steps = STEPS[METHODS[name].order]
    errors = []
    for n in steps:
        # The same places within a step at every n, or the error would jump with them.
        places = [1.0] if where == "at the end of steps" else [0.21, 0.5, 0.83]
        starts = torch.arange(n, dtype=DOUBLE)[:, None]
        ts = (starts + torch.tensor(places, dtype=DOUBLE)).flatten() * (2 / n)
        called = where == "called between steps"
        sol = ncode.solve(field, x0, 0.0, 2.0, method=name, dt=2 / n, dense=called, save_at=None if called else ts)
        errors.append(float(((sol(ts) if called else sol.xs) - exactly(exact, ts, x0)).abs().max()))
    assert observed_order(errors, steps) == pytest.approx(METHODS[name].order, abs=0.2), errors


@pytest.mark.slow
@every_adaptive
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_error_follows_the_tolerance(name, system):
    field, exact, start = SYSTEMS[system]
    x0 = torch.tensor(start, dtype=DOUBLE)
    ts = torch.linspace(0, 2, 21, dtype=DOUBLE)
    tolerances = (1e-3, 1e-5) if METHODS[name].order < 3 else (1e-4, 1e-6, 1e-8)
    for tolerance in tolerances:
        sol = ncode.solve(field, x0, 0.0, 2.0, method=name, rtol=tolerance, atol=tolerance, save_at=ts)
        # What is controlled is the error of one step: over all of them it adds up, but to no more than this.
        assert float((sol.xs - exactly(exact, ts, x0)).abs().max()) < 300 * tolerance


@pytest.mark.slow
@every_adaptive
def test_the_number_of_steps_grows_with_the_tolerance_as_the_order_of_the_error_says(name):
    order = METHODS[name].error_order + 1
    tolerances = (1e-4, 1e-6) if order < 4 else (1e-8, 1e-12)
    x0 = torch.tensor(SYSTEMS["autonomous"][2][:1], dtype=DOUBLE)
    counts = [
        float(ncode.solve(autonomous, x0, 0.0, 5.0, method=name, rtol=0.0, atol=a).stats.steps) for a in tolerances
    ]
    observed = np.log(tolerances[0] / tolerances[1]) / np.log(counts[1] / counts[0])
    assert observed == pytest.approx(order, rel=0.2)
