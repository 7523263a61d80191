import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist

plt = pytest.importorskip("matplotlib.pyplot")

EXAMPLES = Path(__file__).parents[1] / "examples"
GALLERY = runpy.run_path(str(EXAMPLES / "save_pictures.py"))["gallery"]()
FAST = {"bouncing_balls", "solver_options"}  # the others train something
# Each shows one capability of the library; the others in the gallery are applications, or reproduce the paper.
CAPABILITIES = (
    "bouncing_balls",
    "cnf",
    "flow_matching",
    "infusions",
    "input_control",
    "neural_cde",
    "solver_options",
    "stiff_chemistry",
)

# What each script of the gallery shows, as a check of its variables. A script is deterministic on one machine; the
# thresholds leave room for other versions of torch.
CLAIMS: dict[str, Callable[[dict], bool]] = {
    "annuli": lambda it: it["wrong"]["NODE"] > 0.002 and it["wrong"]["N-CODE open loop"] == 0,
    "auto_ncode": lambda it: it["unexplained"] < 0.1,
    "bouncing_balls": lambda it: bool(it["errors"][-1].max() < 1e-9),
    "classifier": lambda it: it["curves"]["N-CODE open loop"][-1] > 0.9,
    "cnf": lambda it: abs(it["found"] + float(it["entropy"].mean())) < 0.2,
    "flow_matching": lambda it: it["found"] > it["plain"] + 0.5,
    "hybrid_physics": lambda it: it["error"][it["LEARNED"]] < 0.1 < 1 < it["error"][it["KNOWN"]] and it["gap"] < 0.2,
    "infusions": lambda it: bool((it["after"].cost < 0.8 * it["before"].cost).all()),
    "input_control": lambda it: it["error"] < 0.2,
    "latent_ode": lambda it: it["share"][0] < 0.15 and it["share"][1] < 0.35,
    "memory": lambda it: it["errors"]["trained plastic N-CODE"][3] < 0.02 and it["wrong"] < 15,
    "neural_cde": lambda it: it["accuracy"] > 0.95,
    "optimal_control": lambda it: bool(it["height"][it["best"], -20:].mean() > 0.9),
    "parameter_fit": lambda it: it["error"] < 0.05 and int(it["reached"].sum()) > 40,
    "proposition_1": lambda it: all(
        node >= 0.99 * bound > 5 * open_loop
        for bound, node, open_loop in zip(it["bounds"], *list(it["errors"].values())[:2], strict=True)
    ),
    "reflection": lambda it: it["errors"].pop("NODE") > 0.3 and max(it["errors"].values()) < 5e-3,
    "solver_options": lambda it: [status.name for status in it["sol"].status] == ["OK", "OK", "MAX_STEPS"],
    "state_tracking": lambda it: bool(it["right"]["exact flow"][-100:].mean() > 0.8 > 5 * it["right"]["GRU"][-1]),
    "stiff_chemistry": lambda it: it["error"] < 5e-2 and "stiff" in it["explicit"].status[0].sentence,
    "vanderpol": lambda it: it["ahead"]["dynamic control"] < 1e-3 < 1 < it["ahead"]["constant control"],
}


def test_every_script_of_the_gallery_has_a_claim():
    assert set(GALLERY) == set(CLAIMS)


@pytest.mark.parametrize("name", [pytest.param(it, marks=() if it in FAST else pytest.mark.slow) for it in GALLERY])
def test_a_script_of_the_gallery_draws_one_picture_and_shows_what_it_claims(name, monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(plt.get_fignums()))
    plt.switch_backend("agg")
    plt.close("all")  # what other tests have left open
    try:
        with plt.rc_context():
            variables = runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
            plt.gcf().canvas.draw()
    finally:
        plt.close("all")
    assert [len(figures) for figures in shown] == [1]
    assert capsys.readouterr().out.strip()
    assert CLAIMS[name](variables)


@pytest.mark.parametrize("name", GALLERY)
def test_a_script_of_the_gallery_is_short_and_reads_as_a_page(name):
    text = (EXAMPLES / f"{name}.py").read_text("utf-8")
    title, underline, blank, *_ = text.removeprefix('"""').splitlines()
    assert underline == "=" * len(title)
    assert blank == ""
    assert len(text.splitlines()) <= 80
    assert text.count("\n# %%\n# ") == text.count("# %%") >= 2
    assert text.endswith("\nplt.show()\n")
    imported = {
        line.split()[1].partition(".")[0] for line in text.splitlines() if line.startswith(("import ", "from "))
    }
    assert imported - set(sys.stdlib_module_names) <= {"torch", "matplotlib", "ncode"}


@pytest.mark.parametrize("name", CAPABILITIES)
def test_a_capability_is_shown_in_at_most_60_lines(name):
    assert name in GALLERY
    assert len((EXAMPLES / f"{name}.py").read_text("utf-8").splitlines()) <= 60


def test_pictures_are_saved_without_a_display(tmp_path, monkeypatch, capsys):
    script = EXAMPLES / "save_pictures.py"
    monkeypatch.setattr(plt, "show", plt.show)  # the script replaces it
    monkeypatch.setattr(sys, "argv", [str(script), "solver_options", "--out", str(tmp_path / "new")])
    runpy.run_path(str(script), run_name="__main__")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["solver_options.png"]
    assert "solver_options: " in capsys.readouterr().out


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
    assert one_process("whole", 2) == [f"training is complete (step 16); delete {tmp_path / 'whole'} to start anew"]
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
