import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize(
    ("name", "options", "errors"), [("reflection", [], 3), ("autoencoder", ["--drawn", "--components", "5"], 1)]
)
def test_an_example_prints_its_errors_and_draws_a_picture(name, options, errors, tmp_path, monkeypatch, capsys):
    script = EXAMPLES / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--steps", "2", "--out", str(tmp_path), *options])
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.count("mean squared error") == errors
    assert (tmp_path / f"{name}.png").stat().st_size > 0
