import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.slow
def test_the_reflection_prints_its_errors_and_draws_a_picture(tmp_path, monkeypatch, capsys):
    script = EXAMPLES / "reflection.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--steps", "2", "--out", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.count("mean squared error") == 3
    assert (tmp_path / "reflection.png").stat().st_size > 0


def test_the_extensions_agree_with_closed_forms(capsys):
    runpy.run_path(str(EXAMPLES / "extending.py"), run_name="__main__")
    shown = [line[:16].strip() for line in capsys.readouterr().out.splitlines()]
    assert shown == ["method", "step-size rule", "backend", "block", "saved, loaded"]
