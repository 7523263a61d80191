import runpy
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[1] / "examples" / "autoencoder.py"


def test_the_autoencoder_prints_its_error_and_draws_a_picture(tmp_path, monkeypatch, capsys):
    options = ["--steps", "2", "--components", "5", "--drawn", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *options])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert capsys.readouterr().out.count("mean squared error") == 1
    assert (tmp_path / "autoencoder.png").stat().st_size > 0
