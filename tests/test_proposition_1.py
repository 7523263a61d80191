import ast
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

SCRIPT = Path(__file__).parents[1] / "examples" / "proposition_1.py"


def _functions():
    """The functions of the script, without the training that follows them."""
    tree = ast.parse(SCRIPT.read_text("utf-8"))
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    names = {"torch": torch}
    exec(compile(tree, str(SCRIPT), "exec"), names)
    return names


EXAMPLE = _functions()


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=20))
def test_the_best_increasing_fit_is_isotonic_regression(values):
    y = torch.tensor(values, dtype=torch.float64)
    fit = EXAMPLE["increasing_fit"](y)
    torch.testing.assert_close(fit, torch.from_numpy(isotonic_regression(y.numpy()).x.copy()))


def test_the_bound_of_a_decreasing_line_is_its_variance():
    x = torch.linspace(-1, 1, 100)
    assert EXAMPLE["bound"](-0.5 * x) == pytest.approx(0.25 * float(x.var(correction=0)), rel=1e-4)


def test_the_bound_of_the_fold_is_the_one_computed_by_hand():
    # The best fit to |x| is constant up to sqrt(2) - 1, and x beyond.
    assert EXAMPLE["bound"](torch.linspace(-1, 1, 2001).abs()) == pytest.approx(0.0572, rel=1e-2)
