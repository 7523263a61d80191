"""Coefficients of stiff methods: order conditions, stability, and bad input. The steps are tested in test_stiff.py."""

import numpy as np
import pytest

from ncode import InputError
from ncode.ode.implicit_tableau import STIFF_METHODS, DirkTableau, RosenbrockTableau

from .test_tableau import Tree, density, trees

ROSENBROCK = [name for name, it in STIFF_METHODS.items() if isinstance(it, RosenbrockTableau)]
DIRK = [name for name, it in STIFF_METHODS.items() if isinstance(it, DirkTableau)]
L_STABLE = [name for name in STIFF_METHODS if name != "trapezoid"]


def lower(rows, size: int) -> np.ndarray:
    matrix = np.zeros((size, size))
    for i, row in enumerate(rows):
        matrix[i, : len(row)] = row
    return matrix


def matrices(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """alpha, beta and the map from weights of increments to weights of slopes.

    In Hairer and Wanner's notation (section IV.7): k = h f(z + alpha k) + h J gamma k with beta = alpha + gamma, and
    u = gamma k. A diagonally implicit method has alpha = beta.
    """
    tableau = STIFF_METHODS[name]
    if isinstance(tableau, DirkTableau):
        a = lower(tableau.a, tableau.stages)
        return a, a, np.eye(tableau.stages)
    gamma = np.linalg.inv(np.eye(tableau.stages) / tableau.gamma - lower(tableau.coupling, tableau.stages))
    alpha = lower(tableau.a, tableau.stages) @ gamma
    return alpha, alpha + gamma, gamma


def stage_weights(tree: Tree, alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Elementary weights: a node with one child has J in front, so that beta replaces alpha there."""
    inner = beta if len(tree) == 1 else alpha
    weights = np.ones(len(alpha))
    for child in tree:
        weights = weights * (inner @ stage_weights(child, alpha, beta))
    return weights


def defect(name: str, weights: np.ndarray, order: int, sigma: float = 1.0) -> float:
    alpha, beta, to_slopes = matrices(name)
    b = np.array(weights) @ to_slopes
    return max(abs(b @ stage_weights(tree, alpha, beta) - sigma**order / density(tree)) for tree in trees(order))


@pytest.mark.parametrize("name", STIFF_METHODS)
def test_the_order_conditions_of_all_rooted_trees_hold(name):
    tableau = STIFF_METHODS[name]
    for order in range(1, tableau.order + 1):
        assert defect(name, tableau.b, order) < 1e-12
    assert defect(name, tableau.b, tableau.order + 1) > 1e-7


@pytest.mark.parametrize("name", [n for n, it in STIFF_METHODS.items() if it.adaptive])
def test_error_weights_are_the_difference_to_a_method_of_another_order(name):
    tableau = STIFF_METHODS[name]
    other = np.array(tableau.b) - np.array(tableau.error)
    # rosenbrock23 advances with order 2 and estimates with order 3; the others advance with the higher order.
    embedded = 3 if name == "rosenbrock23" else tableau.error_order
    for order in range(1, embedded + 1):
        assert defect(name, other, order) < 1e-12
    assert defect(name, other, embedded + 1) > 1e-6
    assert tableau.error_order == min(tableau.order, embedded)


@pytest.mark.parametrize("name", STIFF_METHODS)
@pytest.mark.parametrize("sigma", [0.1, 0.5, 0.93, 1.0])
def test_dense_output_satisfies_the_order_conditions_everywhere(name, sigma):
    tableau = STIFF_METHODS[name]
    weights = np.array(tableau.dense) @ sigma ** np.arange(1, len(tableau.dense[0]) + 1)
    for order in range(1, max(tableau.order - 1, 1) + 1):
        assert defect(name, weights, order, sigma) < 1e-12
    if sigma == 1.0:
        np.testing.assert_allclose(weights, tableau.b, atol=1e-13)


@pytest.mark.parametrize("name", STIFF_METHODS)
def test_nodes_and_weights_of_time_are_sums_of_rows(name):
    tableau = STIFF_METHODS[name]
    alpha, _, to_slopes = matrices(name)
    np.testing.assert_allclose(alpha.sum(1), tableau.c, atol=1e-13)
    if isinstance(tableau, RosenbrockTableau):
        np.testing.assert_allclose(to_slopes.sum(1), tableau.d, atol=1e-13)


def stability(name: str, weights: np.ndarray, z: complex) -> complex:
    """What a step with z = h lambda multiplies x by."""
    _, beta, to_slopes = matrices(name)
    slopes = np.linalg.solve(np.eye(len(beta)) - z * beta, z * np.ones(len(beta), dtype=complex))
    return 1 + np.array(weights) @ to_slopes @ slopes


@pytest.mark.parametrize("name", STIFF_METHODS)
def test_methods_are_a_stable(name):
    b = STIFF_METHODS[name].b
    sizes = np.logspace(-3, 6, 200)
    on_axis = [abs(stability(name, b, 1j * y)) for y in sizes]
    inside = [abs(stability(name, b, r * np.exp(1j * angle))) for r in sizes for angle in np.linspace(1.6, np.pi, 7)]
    assert max(on_axis) <= 1 + 1e-9
    assert max(inside) <= 1 + 1e-9


@pytest.mark.parametrize("name", L_STABLE)
def test_methods_are_l_stable(name):
    assert abs(stability(name, STIFF_METHODS[name].b, -1e6)) < 1e-4
    assert abs(stability(name, STIFF_METHODS[name].b, -1e9)) < 1e-6


@pytest.mark.parametrize("name", STIFF_METHODS)
def test_dense_output_of_a_stiff_component_stays_as_small_as_its_ends(name):
    tableau = STIFF_METHODS[name]
    for sigma in np.linspace(0, 1, 21):
        weights = np.array(tableau.dense) @ sigma ** np.arange(1, len(tableau.dense[0]) + 1)
        assert abs(stability(name, weights, -1e6)) < 1.3


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"b": (1.0, 0.0, 0.0)}, r"with 2 nodes c needs 2 rows b; given 3"),
        ({"a": ((0.0,), (0.5,))}, r"rows a must have 1 to 2 weights; given \[1, 1\]"),
        ({"a": ((0.1,), (0.5, 0.5))}, r"the rows of a end in \[0.1, 0.5\]; expected one number gamma"),
        ({"a": ((0.0,), (0.4, 0.5))}, r"row a\[1\] sums to 0.9; expected 1"),
        ({"order": 0}, r"order of a DirkTableau must be at least 1"),
    ],
)
def test_a_wrong_tableau_is_refused(changes, sentence):
    right = {"order": 2, "c": (0.0, 1.0), "a": ((0.0,), (0.5, 0.5)), "b": (0.5, 0.5), "dense": ((0.5,), (0.5,))}
    with pytest.raises(InputError, match=sentence):
        DirkTableau("wrong", **{**right, **changes})
