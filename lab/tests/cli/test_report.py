import json
import os
import shutil
import subprocess

import pytest
from ncode_lab.cli import main
from ncode_lab.experiments.reflection.experiment import Reflection

FAST = ["--smoke", "--device", "cpu", "--quiet"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    main(["run", "reflection", *FAST, "--out", str(out), "--models", "node", "open-loop", "--seeds", "2"])
    return out


@pytest.mark.slow
def test_report_writes_one_page_with_the_figure_and_the_table(runs, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["report", str(runs), "--out", str(page)]) == 0
    assert capsys.readouterr().out.strip() == str(page)
    text = page.read_text()
    assert "data:image/svg+xml" in text
    assert "N-CODE open loop" in text


def test_report_of_nothing_gets_a_sentence(tmp_path, capsys):
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 2
    assert "there is no run and no result" in capsys.readouterr().err


def test_collected_results_make_the_tables_of_a_markdown_file(runs, tmp_path, capsys):
    results, file = tmp_path / "results", tmp_path / "page.md"
    assert main(["collect", str(runs), "--out", str(results)]) == 0
    assert len(list(results.rglob("*.json"))) == 4
    file.write_text("# Title\n<!-- table:reflection -->\n<!-- end -->\nend\n")
    assert main(["tables", str(file), "--results", str(results), "--check"]) == 2
    assert "differ from the results: reflection" in capsys.readouterr().err
    assert main(["tables", str(file), "--results", str(results)]) == 0
    assert main(["tables", str(file), "--results", str(results), "--check"]) == 0
    text = file.read_text()
    assert text.startswith("# Title\n<!-- table:reflection -->\n| model |")
    assert "| N-CODE open loop |" in text
    assert text.endswith("<!-- end -->\nend\n")


def test_collect_and_tables_say_which_results_are_left_out(runs, tmp_path, capsys):
    copy, results, file = tmp_path / "runs", tmp_path / "results", tmp_path / "page.md"
    shutil.copytree(runs, copy)
    damaged = sorted(copy.rglob("result.json"))[0]
    damaged.write_text('{"experiment": "refl')
    assert main(["collect", str(copy), "--out", str(results)]) == 0
    assert f"Trial {damaged.parent.name}: result.json is left out" in capsys.readouterr().err
    collected = sorted(results.rglob("*.json"))
    assert len(collected) == 3
    collected[0].write_text("{")
    file.write_text("<!-- table:reflection -->\n<!-- end -->\n")
    assert main(["tables", str(file), "--results", str(results)]) == 0
    assert f"{collected[0].name} is left out" in capsys.readouterr().err


@pytest.mark.parametrize("block", ["<!-- table:reflection, a -->\n<!-- end -->\n", "<!-- table:reflection -->\n"])
def test_the_beginning_of_a_table_that_is_none_gets_a_sentence(block, tmp_path, capsys):
    file = tmp_path / "page.md"
    file.write_text(block)
    assert main(["tables", str(file), "--results", str(tmp_path)]) == 2
    assert "starts no table: its name must have no spaces, and <!-- end --> must follow" in capsys.readouterr().err


def test_collecting_into_a_file_gets_a_sentence(runs, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["collect", str(runs), "--out", str(tmp_path / "file")]) == 1
    assert "a file is in its way; choose another folder" in capsys.readouterr().err


def hostile_result(**changes):
    about = {"experiment": "annuli", "model": "node", "dataset": "annuli", "preset": "quick", "seed": 0}
    about |= {"settings": {}, "metrics": {"error": 0.5}, "parameters": 1, "seconds": 1.0, "device": "cpu"}
    return {**about, "versions": {}, "commit": "", "command": "", **changes}


@pytest.mark.parametrize("field", ["experiment", "preset"])
@pytest.mark.parametrize(
    "name", ["../../escaped", "{tmp}/escaped", "..", "", ".hidden", "a/b", "a\\b", "a\0b", "x" * 300]
)
def test_no_name_in_a_result_leads_out_of_the_folder(field, name, tmp_path, capsys):
    source, out = tmp_path / "source", tmp_path / "inside" / "results"
    source.mkdir()
    name = name.replace("{tmp}", str(tmp_path))
    for number, result in enumerate((hostile_result(), hostile_result(**{field: name}))):
        (source / f"{number}.json").write_text(json.dumps(result))
    before = sorted(tmp_path.rglob("*"))
    assert main(["collect", str(source), "--out", str(out)]) == 2
    assert "cannot be the name of a folder" in capsys.readouterr().err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("field", ["model", "dataset"])
def test_separators_in_other_names_of_a_result_become_hyphens(field, tmp_path):
    (tmp_path / "0.json").write_text(json.dumps(hostile_result(**{field: "../../escaped"})))
    assert main(["collect", str(tmp_path / "0.json"), "--out", str(tmp_path / "results")]) == 0
    (path,) = (tmp_path / "results").rglob("*.json")
    assert path.parent == tmp_path / "results" / "annuli"
    assert "/" not in path.name


@pytest.mark.parametrize(
    "changes",
    [
        {"curves": {"train error": [0.5], "train step": []}},
        {"curves": {"train error": [0.5, 0.25], "train step": [1, 2]}, "about": {"n": "many"}},
        {"dataset": "x" * 500, "curves": {"train error": [0.5], "train step": [1]}, "settings": {"batch": 1}},
    ],
)
def test_results_that_cannot_be_drawn_are_reported_without_figures(changes, tmp_path):
    (tmp_path / "0.json").write_text(json.dumps(hostile_result(experiment="memory", **changes)))
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "0.json"), "--out", str(page)]) == 0
    assert "The figures cannot be drawn from these results" in page.read_text()


def test_a_table_goes_stale_when_a_result_changes(runs, tmp_path):
    results, file = tmp_path / "results", tmp_path / "page.md"
    main(["collect", str(runs), "--out", str(results)])
    file.write_text("<!-- table:reflection -->\n<!-- end -->\n")
    main(["tables", str(file), "--results", str(results)])
    changed = next(results.rglob("*.json"))
    result = json.loads(changed.read_text())
    result["metrics"]["error"] += 1
    changed.write_text(json.dumps(result))
    assert main(["tables", str(file), "--results", str(results), "--check"]) == 2


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_scripts_know_commands_and_options(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("reflection", "sweep", "--resume", "--steps"))


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_accepts_its_completion_script(capsys):
    main(["completion", "bash"])
    check = subprocess.run(["bash", "-n"], input=capsys.readouterr().out, text=True, capture_output=True)
    assert (check.returncode, check.stderr) == (0, "")


def test_a_misspelt_shell_gets_the_nearest(capsys):
    assert main(["completion", "bsh"]) == 2
    assert 'did you mean "bash"?' in capsys.readouterr().err


@pytest.mark.slow
def test_the_demo_ends_with_the_path_of_its_page(tmp_path, capsys):
    assert main(["demo", "--smoke", "--quiet", "--out", str(tmp_path)]) == 0
    page = capsys.readouterr().out.strip().splitlines()[-1]
    assert page == str(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert all(f">{title}: " in text for title in ("Reflection", "Annuli", "Memory"))
    assert 'href="explorer.html"' in text
    assert (tmp_path / "explorer.html").is_file()


@pytest.mark.slow
def test_report_draws_what_results_alone_can_show_and_knows_their_experiment(tmp_path):
    out = tmp_path / "runs"
    main(["run", "memory", *FAST, "--out", str(out), "--models", "ncode"])
    main(["collect", str(out), "--out", str(tmp_path / "results")])
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "results"), "--out", str(page)]) == 0
    text = page.read_text()
    assert "Memory: bit patterns" in text
    assert text.count("data:image/svg+xml") == 1


def test_redrawn_figures_have_the_models_in_the_order_of_tables(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(Reflection, "redraw", classmethod(lambda cls, results: seen.extend(results) or []))
    for model in ("closed-loop", "node", "open-loop"):
        (tmp_path / f"{model}.json").write_text(json.dumps(hostile_result(experiment="reflection", model=model)))
    assert main(["report", str(tmp_path), "--out", str(tmp_path / "page.html")]) == 0
    assert [result.model for result in seen] == ["node", "open-loop", "closed-loop"]


def test_a_report_says_which_models_were_not_trained_to_the_end(tmp_path):
    falling = {"train error": [0.5 - 0.01 * step for step in range(20)], "train step": list(range(20))}
    about = {"dataset": "n=100 patterns=2 degradation=0.5", "settings": {"batch": 8}, "curves": falling}
    about |= {"about": {"n": 100, "patterns": 2, "degradation": 0.5}}
    (tmp_path / "0.json").write_text(json.dumps(hostile_result(experiment="memory", model="ode-rnn", **about)))
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path), "--out", str(page)]) == 0
    assert "ODE-RNN, not trained to the end" in page.read_text()


def test_models_of_a_table_stand_as_the_settings_name_them_whatever_else_is_said_about_a_result(runs, tmp_path):
    results, file = tmp_path / "results", tmp_path / "page.md"
    main(["collect", str(runs), "--out", str(results)])
    for path in results.rglob("*.json"):
        result = json.loads(path.read_text())
        result["about"] = {"more": 2.0 if result["model"] == "node" else 1.0}
        path.write_text(json.dumps(result))
    file.write_text("<!-- table:reflection -->\n<!-- end -->\n")
    assert main(["tables", str(file), "--results", str(results)]) == 0
    rows = [line.split(" | ")[0] for line in file.read_text().splitlines()[3:-1]]
    assert rows == ["| NODE", "| N-CODE open loop"]


@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("command", ["report", "explorer"])
def test_pages_replace_no_link_and_no_pipe(command, kind, runs, tmp_path, capsys):
    page, kept = tmp_path / "page.html", tmp_path / "kept.html"
    kept.write_text("kept")
    page.symlink_to(kept) if kind == "link" else os.mkfifo(page)
    assert main([command, *[str(runs)] * (command == "report"), "--out", str(page)]) == 2
    assert "which would be replaced: give" in capsys.readouterr().err
    assert page.is_symlink() if kind == "link" else page.is_fifo()
    assert kept.read_text() == "kept"
