from collections.abc import Iterator
from functools import cache
from itertools import combinations_with_replacement
from math import prod

import numpy as np
import pytest
import torch
from torch import Tensor

import ncode
from ncode.solve import METHODS, Tableau

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
    assert [len(row) for row in tableau.extra_a] == [
        tableau.stages + 1 + i for i in range(len(tableau.extra_a))
    ]


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
    assert 2 * (5 + 1) - (3 + 1) == METHODS["dopri8"].error_order + 1


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
    """A logistic growth, and a rotation whose speed is the square of its radius."""
    population, point = x[:, :1], x[:, 1:]
    speed = point.square().sum(1, keepdim=True)
    turned = torch.stack([-point[:, 1], point[:, 0]], 1)
    return torch.cat([population * (1 - population), speed * turned], 1)


def autonomous_exact(t: Tensor, x0: Tensor) -> Tensor:
    growth = t.exp()
    population = x0[:, 0] * growth / (1 + x0[:, 0] * (growth - 1))
    angle = x0[:, 1:].square().sum(1) * t
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([population, cos * x0[:, 1] - sin * x0[:, 2], sin * x0[:, 1] + cos * x0[:, 2]], 1)


def time_dependent(t: Tensor, x: Tensor, theta: None) -> Tensor:
    return torch.stack([-2 * t * x[:, 0].square(), t.cos() * x[:, 1], t.exp() - x[:, 2]], 1)


def time_dependent_exact(t: Tensor, x0: Tensor) -> Tensor:
    return torch.stack(
        [
            x0[:, 0] / (1 + x0[:, 0] * t.square()),
            x0[:, 1] * t.sin().exp(),
            t.exp() / 2 + (x0[:, 2] - 0.5) * (-t).exp(),
        ],
        1,
    )


X0 = torch.tensor([[0.3, 1.2, 0.4], [0.7, -0.5, 1.1]], dtype=DOUBLE)
SYSTEMS = {
    "autonomous": (autonomous, autonomous_exact),
    "time-dependent": (time_dependent, time_dependent_exact),
}
# Numbers of steps over [0, 2] at which the error is clear of rounding and the next power of h.
STEPS = {1: (400, 800, 1600), 2: (100, 200, 400), 3: (100, 200, 400), 4: (50, 100, 200), 5: (40, 80, 160), 8: (14, 20, 28)}


def observed_order(errors: list[float], steps: tuple[int, ...]) -> float:
    return float(-np.polyfit(np.log(steps), np.log(errors), 1)[0])


@every_method
@pytest.mark.parametrize("system", SYSTEMS)
def test_the_observed_order_at_the_end_is_the_method_s(name, system):
    field, exact = SYSTEMS[system]
    steps = STEPS[METHODS[name].order]
    end = torch.full((len(X0),), 2.0, dtype=DOUBLE)
    errors = [
        float((ncode.solve(field, X0, 0.0, 2.0, method=name, dt=2 / n).x - exact(end, X0)).abs().max())
        for n in steps
    ]
    assert observed_order(errors, steps) == pytest.approx(METHODS[name].order, abs=0.2), errors


@every_method
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("how", ["saved", "called"])
def test_the_observed_order_between_steps_is_the_method_s(name, system, how):
    field, exact = SYSTEMS[system]
    steps = STEPS[METHODS[name].order]
    errors = []
    for n in steps:
        # The same places within a step at every n, or the error would jump with them.
        ts = (torch.arange(n // 4, n, n // 7)[:, None] + torch.tensor([0.21, 0.5, 0.83], dtype=DOUBLE)) * (2 / n)
        ts = ts.flatten()
        if how == "saved":
            values = ncode.solve(field, X0, 0.0, 2.0, method=name, dt=2 / n, save_at=ts).xs
        else:
            values = ncode.solve(field, X0, 0.0, 2.0, method=name, dt=2 / n, dense=True)(ts)
        wanted = torch.stack([exact(t.expand(len(X0)), X0) for t in ts], 1)
        errors.append(float((values - wanted).abs().max()))
    assert observed_order(errors, steps) == pytest.approx(METHODS[name].order, abs=0.2), errors


@every_adaptive
@pytest.mark.parametrize("system", SYSTEMS)
def test_a_tighter_tolerance_gives_a_smaller_error(name, system):
    field, exact = SYSTEMS[system]
    end = torch.full((len(X0),), 2.0, dtype=DOUBLE)
    tolerances = (1e-3, 1e-5) if METHODS[name].order < 3 else (1e-4, 1e-6, 1e-8)
    for tolerance in tolerances:
        sol = ncode.solve(field, X0, 0.0, 2.0, method=name, rtol=tolerance, atol=tolerance)
        # What is controlled is the error of a step; over this interval errors grow by less than this.
        assert float((sol.x - exact(end, X0)).abs().max()) < 100 * tolerance


@every_adaptive
def test_the_number_of_steps_grows_with_the_tolerance_as_the_order_of_the_error_says(name):
    order = METHODS[name].error_order + 1
    tolerances = (1e-5, 1e-7) if order < 3 else (1e-9, 1e-12)
    counts = [
        float(ncode.solve(autonomous, X0, 0.0, 20.0, method=name, rtol=0.0, atol=a, max_steps=10**6).stats.steps.max())
        for a in tolerances
    ]
    observed = np.log(tolerances[0] / tolerances[1]) / np.log(counts[1] / counts[0])
    assert observed == pytest.approx(order, rel=0.2)
