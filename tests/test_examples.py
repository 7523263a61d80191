import runpy
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_reflection_prints_three_errors_and_draws_a_picture(tmp_path, monkeypatch, capsys):
    script = EXAMPLES / "reflection.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--steps", "2", "--out", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    printed = capsys.readouterr().out
    assert printed.count("mean squared error") == 3
    assert (tmp_path / "reflection.png").stat().st_size > 0
