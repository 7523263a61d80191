import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
ROW = {"library", "label", "variant", "seconds", "first_seconds", "nfe", "peak_bytes", "loss", "gradient_error"}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.slow
def test_a_quick_run_writes_what_a_reader_needs(tmp_path):
    path = tmp_path / "bench.json"
    done = bench("--quick", "--no-compile", "--only", "mlp-flow", "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(path.read_text())
    assert data["device"] == "cpu"
    assert data["seed"] == 0
    assert data["threads"] == 1
    assert data["command"].startswith("python -m benchmarks --quick")
    assert {"python", "torch", "ncode"} <= set(data["versions"])

    (workload,) = data["workloads"].values()
    libraries = {row["library"] for row in workload["rows"]}
    for peer in ("torchdiffeq", "torchode", "diffrax"):
        assert (peer in libraries) == (find_spec(peer) is not None)
        assert (peer in workload["skipped"]) == (peer not in libraries)
    assert "ncode" in libraries
    assert not workload["failed"]
    for row in workload["rows"]:
        assert set(row) >= ROW
        assert row["gradient_error"] < 0.1
        assert row["nfe"]["forward"] > 0
        assert row["peak_bytes"] > 0
        assert f"| {row['library']}" in done.stdout


@pytest.mark.slow
def test_a_quick_comparison_of_eager_steps_writes_what_a_reader_needs(tmp_path):
    pytest.importorskip("torchdiffeq")
    path = tmp_path / "eager.json"
    command = [sys.executable, "-m", "benchmarks.eager", "--quick", "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(path.read_text())
    assert {"command", "seed", "versions", "device_name"} <= set(data)
    assert [(it["problem"], it["atol"]) for it in data["problems"]] == [
        (name, atol) for name in ("mlp-flow", "plain-node") for atol in (1e-6, 1e-3)
    ]
    for problem in data["problems"]:
        for row in problem["rows"]:
            assert row["seconds"] > 0
            assert row["error"] < 0.1
            assert row["gradient_error"] < 0.1


@pytest.mark.slow
def test_a_quick_comparison_of_the_drop_in_writes_what_a_reader_needs(tmp_path):
    pytest.importorskip("torchdiffeq")
    path = tmp_path / "compat.json"
    arguments = ["--quick", "--only", "small", "--methods", "rk4", "dopri5", "--json", str(path)]
    command = [sys.executable, "-m", "benchmarks.compat", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(path.read_text())
    assert {"command", "seed", "versions", "device_name", "geometric_mean", "worst"} <= set(data)
    found = {(case["method"], case["grid"], case["gradient"]) for case in data["cases"]}
    grids, gradients = ("even", "uneven", "event"), ("none", "odeint", "odeint_adjoint")
    assert found == {(method, grid, it) for method in ("rk4", "dopri5") for grid in grids for it in gradients}
    for case in data["cases"]:
        assert sum(case["evaluations"]["ncode"]) == sum(case["evaluations"]["torchdiffeq"])
        assert min(case["seconds"].values()) > 0


@pytest.mark.slow
def test_a_quick_comparison_of_flows_agrees_with_torchdiffeq(tmp_path):
    pytest.importorskip("torchdiffeq")
    path = tmp_path / "cnf.json"
    command = [sys.executable, "-m", "benchmarks.cnf", "--quick", "--json", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(path.read_text())
    assert {"seed", "versions", "device_name", "tolerance"} <= set(data)
    assert all(problem["command"].startswith("python -m benchmarks.cnf --quick") for problem in data["problems"])
    assert [problem["field"] for problem in data["problems"]] == ["example", "layers", "time"]
    for problem in data["problems"]:
        for row in problem["rows"]:
            assert row["error_of_bits"] < 1e-3
            assert row["relative_error_of_gradient"] < 1e-2
            assert row["largest_error_of_samples"] < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["convolutions", "linear-flow", "plastic"])
def test_a_workload_of_our_own_structure_agrees_with_its_reference(workload, tmp_path):
    path = tmp_path / "bench.json"
    done = bench("--quick", "--no-compile", "--only", workload, "--peers", "torchdiffeq", "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(path.read_text())["workloads"].values()
    assert not found["failed"]
    ours = [row for row in found["rows"] if row["library"] == "ncode"]
    assert len(ours) > 1
    for row in ours:
        assert row["error"] < 1e-2
        assert row["peak_bytes"] > 0
    if find_spec("torchdiffeq") is not None:
        assert {aim["peer"].split(", ")[0] for aim in found["aims"]} == {"torchdiffeq"}
        assert any(row["label"] == "as the paper writes it" for row in found["rows"])
    wrong = {row["label"] for row in found["rows"] if row["wrong_gradient"]}
    assert wrong <= ({"as the paper writes it", "adjoint"} if workload == "linear-flow" else set())
    for label in wrong:
        assert f"WRONG GRADIENT torchdiffeq, {label}: its relative error is" in done.stdout
    if workload == "convolutions":
        assert re.search(r"ncode, eager: the floor for \d+\.\d evaluations is .* ms in float32", done.stdout)


@pytest.fixture(scope="module")
def whole_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "results" / "bench-solver-cpu.json"
    done = bench("--quick", "--no-compile", "--only", "cifar-epoch", "--json", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
    return path


@pytest.mark.slow
def test_the_whole_classifier_has_the_same_loss_and_gradient_whoever_solves_it(whole_model):
    (found,) = json.loads(whole_model.read_text())["workloads"].values()
    assert not found["failed"]
    rows = {(row["library"], row["label"]): row for row in found["rows"]}
    ours = {("ncode", "eager"), ("ncode", "eager, one step size")}
    peers = {
        ("torchdiffeq", "as the paper writes it"),
        ("torchdiffeq", "backprop"),
        ("torchdiffeq + ncode", "backprop"),
    }
    assert set(rows) == (ours | peers if find_spec("torchdiffeq") is not None else ours)
    for row in rows.values():
        assert row["loss"] == pytest.approx(found["reference_loss"], rel=1e-3)
        assert row["gradient_error"] < 0.02
        assert row["nfe"]["forward"] > 0
        assert row["peak_bytes"] is None
    if find_spec("torchdiffeq") is not None:
        paper = rows["torchdiffeq", "as the paper writes it"]
        assert paper["nfe"]["backward"] > 0
        for row in rows.values():
            assert row["more"]["/ paper"] == pytest.approx(row["seconds"] / paper["seconds"])


@pytest.mark.slow
def test_the_table_of_the_whole_classifier_has_a_line_a_row(whole_model, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import summary

    monkeypatch.setattr(summary, "ROOT", whole_model.parents[1])
    data = json.loads(whole_model.read_text())
    table = summary.epochs()
    assert "batch 2, 3 x 8 x 8, float32" in table
    for row in data["workloads"]["cifar-epoch"]["rows"]:
        assert f"| {row['library']}, {row['label']} | {row['seconds'] * 1e3:.1f} |" in table
    assert "MiB" not in table  # nothing was measured there
    del data["workloads"]["cifar-epoch"]
    path = whole_model.with_name("bench-solver-cuda.json")
    path.write_text(json.dumps({**data, "device": "cuda", "device_name": "a GPU"}))
    assert "**a GPU**" in summary.epochs()
    assert "(`results/bench-solver-cuda.json`): not measured" in summary.epochs()
    path.unlink()


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.1, "0.1 (aim 0.2, reached)"), (0.3, "0.3 (aim 0.2, **not reached**)")]
)
def test_an_aim_is_judged_by_the_fastest_rows(seconds, words, monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.aims import verdict
    from benchmarks.contest import Aim

    def row(library, label, seconds, **more):
        return {"library": library, "label": label, "seconds": seconds, **more}

    rows = [
        row("ncode", "eager", 0.9),
        row("ncode", "compiled", seconds),
        row("ncode", "compiled, TF32 convolutions", 1e-6),
        row("ncode", "by magic", 1e-6, apart="magic"),
        row("peer", "slow", 2.0),
        row("peer", "fast", 1.0),
        row("peer + ncode", "fast", 1e-6),
    ]
    measured = {"rows": rows, "failed": {"peer, wrong": "the loss is 2 and should be 1"}}
    assert verdict(Aim("", "peer", 0.2), measured) == words
    assert verdict(Aim("eager", "peer", 0.5, row="slow"), measured) == "0.45 (aim 0.5, reached)"
    assert verdict(Aim("", "peer", 0.2, row="wrong"), measured) == "no ratio (aim 0.2): the peer's answer was refused"
    assert verdict(Aim("", "another", 0.2), measured) == "not measured (aim 0.2)"
    assert verdict(Aim("", "peer", 0.2), None) == "not measured (aim 0.2)"


def test_a_row_that_is_slow_takes_three_turns_and_not_all(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import measure
    from benchmarks.contest import Entry, Runner
    from benchmarks.measure import Row, alternate

    monkeypatch.setattr(measure, "gc", SimpleNamespace(collect=lambda: None))  # slow in a process with many objects

    def row():
        return Row(Entry("peer", "row", {}), "", Runner(lambda: None, None, None, None), first=0.0)

    slow, usual = row(), row()
    alternate([slow], repeats=7, turn=0.0, patience=0.0)
    alternate([usual], repeats=7, turn=0.0)
    assert len(slow.times) == 3
    assert len(usual.times) == 7


def test_a_wrong_loss_is_refused(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.contest import Contest, Entry, Outcome, Runner
    from benchmarks.measure import Row, disagreement

    idle = Runner(lambda: None, lambda found: found, lambda: None, lambda: None)
    contest = Contest([], Outcome(2.3, []))
    off = Row(Entry("peer", "row", {}), "", idle, first=0.0, loss=2.4, gradient_error=0.0)
    assert disagreement(off, contest) == "the loss is 2.4 and should be 2.3"
    near = Row(Entry("peer", "row", {}), "", idle, first=0.0, loss=2.301, gradient_error=0.0)
    assert disagreement(near, contest) is None


def test_a_wrong_gradient_is_refused_unless_its_workload_reports_it(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.contest import Contest, Entry, Outcome, Runner
    from benchmarks.measure import Row, disagreement
    from benchmarks.report import notes

    def row(label, gradient_error):
        idle = Runner(lambda: None, lambda found: found, lambda: None, lambda: None)
        return Row(Entry("peer", label, {}), "", idle, first=0.0, loss=1.0, gradient_error=gradient_error)

    contest = Contest([], Outcome(1.0, []), reported=("adjoint",))
    assert disagreement(row("backprop", 0.01), contest) is None
    assert "relative error is 11" in str(disagreement(row("backprop", 11.0), contest))
    assert "relative error is nan" in str(disagreement(row("backprop", float("nan")), contest))
    assert disagreement(row("adjoint", 11.0), contest) is None
    printed = notes([row("adjoint", 11.0), row("backprop", 0.01)], {}, contest, "cpu")
    assert [line for line in printed if line] == ["WRONG GRADIENT peer, adjoint: its relative error is 11"]


def test_results_name_no_machine_s_folders():
    for file in (ROOT / "results").rglob("*.json"):
        commands = re.findall(r'^ *"command": "(.*)"', file.read_text(), re.MULTILINE)
        assert commands, f"{file.name} does not say which command wrote it"
        for command in commands:
            assert not re.search(r"(^|\s)/", command), f"{file.name}: {command}"


def test_every_workload_is_offered():
    printed = bench("--help").stdout
    for file in (ROOT / "benchmarks" / "workloads").glob("[a-z]*.py"):
        assert file.stem.replace("_", "-") in printed


@pytest.mark.slow
def test_the_readme_says_what_the_results_say():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.summary", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_the_benchmark_of_balanced_batches_records_epochs_and_draws_them(tmp_path):
    record, plot = tmp_path / "balance.json", tmp_path / "balance.svg"
    command = [sys.executable, "-m", "benchmarks.balance", "--quick", "--data", "annuli", "--epochs", "2"]
    command += ["--json", str(record), "--plot", str(plot)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=300, capture_output=True)
    data = json.loads(record.read_text())
    (found,) = data["workloads"].values()
    assert found["command"].startswith("python -m benchmarks.balance --quick")
    assert {"commit", "seed", "device", "device_name", "versions"} <= set(found)
    assert len(found["epochs"]) == 2
    assert {row["ranks"] for row in found["efficiency"]} == {8, 16, 32, 64}
    assert all(0 < row[kind]["efficiency"] <= 1 for row in found["efficiency"] for kind in ("sum", "largest"))
    assert plot.read_text().startswith("<?xml")

    # The recorded epochs give the same numbers again.
    subprocess.run([*command, "--recorded"], cwd=ROOT, check=True, timeout=300, capture_output=True)
    assert json.loads(record.read_text()) == data


@pytest.mark.slow
def test_events_are_compared_with_solves_that_are_told_when_and_with_other_libraries():
    rows = ["ncode", "ncode, told", "diffrax, checkpointed", "diffrax, forward mode", "torchdiffeq"]
    command = [sys.executable, "-m", "benchmarks.events", "--balls", "3", "--turns", "1", "--rows", *rows]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=True)
    found = json.loads(done.stdout)
    assert found["ratios"]["ncode, told"] > 0
    for name, row in found["rows"].items():
        if name == "ncode, told":
            continue
        # torchdiffeq bisects to its atol.
        least = 1e-6 if name == "torchdiffeq" else 1e-8
        assert max(row["error_of_times"], row["error_of_gradients"]) < least, name


@pytest.mark.slow
def test_gradients_of_the_stiff_benchmark_agree_with_differences():
    command = [sys.executable, "-m", "benchmarks.stiff", "--batch", "2", "--turns", "1", "--ours", "rodas5p", "--peers"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=True)
    assert json.loads(done.stdout)["rows"]["ncode, rodas5p"]["gradient_error"] < 1e-5
