import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.slow
def test_the_reflection_prints_its_errors_and_draws_a_picture(tmp_path, monkeypatch, capsys):
    script = EXAMPLES / "reflection.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--steps", "2", "--out", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.count("mean squared error") == 3
    assert (tmp_path / "reflection.png").stat().st_size > 0


def test_the_options_end_two_neurons_and_keep_the_last_state_of_the_third(tmp_path, monkeypatch, capsys):
    script = EXAMPLES / "solver_options.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--out", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    bar, *neurons = capsys.readouterr().out.strip().split("\n")
    assert bar.endswith("88%")
    assert [line.split()[2] for line in neurons] == ["OK", "OK", "MAX_STEPS"]
    assert (tmp_path / "solver_options.png").stat().st_size > 0
    assert len(script.read_text().splitlines()) <= 60


def test_bouncing_balls_find_their_restitution(tmp_path, monkeypatch, capsys):
    script = EXAMPLES / "bouncing_balls.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--balls", "50", "--out", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    assert float(capsys.readouterr().out.rsplit(" ", 1)[1]) < 1e-9
    assert (tmp_path / "bouncing_balls.png").stat().st_size > 0
    assert len(script.read_text().splitlines()) <= 60


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cnf", "flow_matching"])
def test_a_flow_prints_its_likelihood_and_draws_a_picture(name, tmp_path, monkeypatch, capsys):
    script = EXAMPLES / f"{name}.py"
    assert len(script.read_text().splitlines()) <= 60
    monkeypatch.setattr(sys, "argv", [str(script), "--steps", "2", "--out", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    assert "log-likelihood per point -" in capsys.readouterr().out
    assert (tmp_path / f"{name}.png").stat().st_size > 0


@pytest.mark.slow
def test_infusions_move_towards_their_target(tmp_path, monkeypatch, capsys):
    script = EXAMPLES / "infusions.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--steps", "5", "--out", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    before, after = ([float(it) for it in re.findall(r"[\d.]+", part)] for part in capsys.readouterr().out.split("->"))
    assert all(b < a for a, b in zip(before, after, strict=True))
    assert (tmp_path / "infusions.png").stat().st_size > 0
    assert len(script.read_text().splitlines()) <= 60


@pytest.mark.slow
@pytest.mark.parametrize(("name", "printed"), [("neural_cde", "accuracy"), ("input_control", "error of the angle")])
def test_an_example_of_inputs_prints_its_result_and_draws_a_picture(name, printed, tmp_path, monkeypatch, capsys):
    script = EXAMPLES / f"{name}.py"
    assert len(script.read_text().splitlines()) <= 60
    monkeypatch.setattr(sys, "argv", [str(script), "--steps", "2", "--out", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    assert printed in capsys.readouterr().out
    assert (tmp_path / f"{name}.png").stat().st_size > 0


@pytest.mark.slow
def test_the_rates_of_a_stiff_reaction_move_towards_the_truth(tmp_path, monkeypatch, capsys):
    script = EXAMPLES / "stiff_chemistry.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--steps", "3", "--out", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    explicit, fitted = capsys.readouterr().out.splitlines()
    assert "because the problem is stiff" in explicit
    assert float(fitted.rsplit(" ", 1)[1]) < 1.2  # the first rate starts 2.2 times too large
    assert (tmp_path / "stiff_chemistry.png").stat().st_size > 0
    assert len(script.read_text().splitlines()) <= 60


def test_the_extensions_agree_with_closed_forms(capsys):
    runpy.run_path(str(EXAMPLES / "extending.py"), run_name="__main__")
    shown = [line[:16].strip() for line in capsys.readouterr().out.splitlines()]
    assert shown == ["method", "step-size rule", "backend", "block", "saved, loaded"]


@pytest.mark.slow
@pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo")
def test_a_training_begins_in_one_process_and_continues_in_two(tmp_path, monkeypatch, capsys):
    script = str(EXAMPLES / "train_ddp.py")
    assert len(Path(script).read_text().splitlines()) <= 80
    arguments = ["--samples", "512", "--batch-size", "64", "--save-every", "3", "--folder"]

    def one_process(folder, epochs):
        monkeypatch.setattr(sys, "argv", [script, *arguments, str(tmp_path / folder), "--epochs", str(epochs)])
        runpy.run_path(script, run_name="__main__")
        return capsys.readouterr().out.splitlines()

    whole = one_process("whole", 2)
    first = one_process("parts", 1)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command = [*launcher, script, *arguments, str(tmp_path / "parts"), "--epochs", "2"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
    assert first == whole[:1]
    label, loss = run.stdout.strip().rsplit(" ", 1)
    expected, loss_of_one = whole[1].rsplit(" ", 1)
    assert label == expected == "epoch 2: loss"
    assert float(loss) == pytest.approx(float(loss_of_one), rel=1e-2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of the exporter
def test_a_deployed_block_takes_batches_of_any_size(tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    script = EXAMPLES / "deployment.py"
    monkeypatch.setattr(sys, "argv", [str(script), "--out", str(tmp_path)])
    runpy.run_path(str(script), run_name="__main__")
    *steps, exported, onnx = capsys.readouterr().out.strip().splitlines()
    errors = [float(line.rsplit(" ", 1)[1]) for line in steps]
    assert errors == sorted(errors, reverse=True)
    assert all(float(line.rsplit(" ", 1)[1]) < 1e-5 for line in (exported, onnx))
    assert (tmp_path / "README.md").exists()
