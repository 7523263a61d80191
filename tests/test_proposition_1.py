import runpy
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

SCRIPT = Path(__file__).parents[1] / "examples" / "proposition_1.py"
EXAMPLE = runpy.run_path(str(SCRIPT))


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=20))
def test_the_best_increasing_fit_is_isotonic_regression(values):
    y = torch.tensor(values, dtype=torch.float64)
    fit = EXAMPLE["increasing_fit"](y)
    torch.testing.assert_close(fit, torch.from_numpy(isotonic_regression(y.numpy()).x.copy()))


def test_the_bound_of_a_decreasing_line_is_its_variance():
    x = torch.linspace(-1, 1, 100)[:, None]
    assert EXAMPLE["bound"](-0.5 * x) == pytest.approx(0.25 * float(x.var(correction=0)), rel=1e-4)


def test_the_bound_of_the_fold_is_the_one_of_the_docstring():
    x = torch.linspace(-1, 1, 2001)[:, None]
    assert EXAMPLE["bound"](x.abs()) == pytest.approx(0.0572, rel=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x(0) (1 - t)", "|x(0)|"])
def test_open_and_closed_loops_come_below_the_bound_that_holds_a_node(name):
    reached = EXAMPLE["run"](name, steps=40, seed=0)
    bound = reached.pop("no NODE below")
    assert reached["NODE"] > bound
    assert max(reached["open-loop N-CODE"], reached["closed-loop N-CODE"]) < 0.6 * bound


def test_the_script_prints_a_line_for_each_map(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--steps", "1"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert capsys.readouterr().out.count("no NODE below") == 3
