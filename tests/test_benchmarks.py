import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROW = {"library", "label", "variant", "seconds", "first_seconds", "nfe", "peak_bytes", "loss", "gradient_error"}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


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
    for file in (ROOT / "results").glob("bench-*.json"):
        data = json.loads(file.read_text())
        for command in (data["command"], *(found["command"] for found in data["workloads"].values())):
            assert not re.search(r"(^|\s)/", command), f"{file.name}: {command}"


def test_every_workload_is_offered():
    printed = bench("--help").stdout
    for file in (ROOT / "benchmarks" / "workloads").glob("[a-z]*.py"):
        assert file.stem.replace("_", "-") in printed


def test_the_readme_says_what_the_results_say():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.summary", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
