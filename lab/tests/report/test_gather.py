import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ncode_lab.report import gather, write_report
from ncode_lab.training import Column, Reported

from ncode import InputError

from .runs import draw, record, result, write_run

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_a_run_folder_is_read_whole(tmp_path):
    paper = [Reported("node", "annuli", "error", 0.3)]
    write_run(tmp_path / "run", [result("open-loop"), result("node")], [("flow", "The flow.")], paper=paper)
    (run,) = gather([tmp_path / "run"])
    assert [one.model for one in run.results] == ["open-loop", "node"]
    assert run.columns == (Column("error", "error, %", 1, 100.0), Column("nfe", "NFE", 0, 1.0))
    assert run.paper == tuple(paper)
    assert [(d.name, d.caption, len(d.files)) for d in run.drawings] == [("flow", "The flow.", 2)]
    assert run.notes == ()
    assert not run.unfinished


def test_a_folder_of_runs_holds_them_all(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name, [result()])
    assert [run.name for run in gather([tmp_path])] == ["a", "b"]


def test_an_unfinished_run_is_reported_as_such_with_what_is_there(tmp_path):
    folder = write_run(tmp_path / "run", [result()], finished=None, trials=["node-annuli-seed-0", "late"])
    draw(folder / "figures", "early")
    (run,) = gather([folder])
    assert run.unfinished
    assert "has not finished. Finished trials: 1 of 2." in run.notes[0]
    assert any("late" in note for note in run.notes)
    assert len(run.results) == len(run.drawings) == 1


def test_a_run_without_its_record_still_has_its_trials(tmp_path):
    folder = write_run(tmp_path / "run", [result()])
    (folder / "run.json").unlink()
    (run,) = gather([folder])
    assert "run.json is missing" in " ".join(run.notes)
    assert run.results == (result(),)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"model": "node"}', '{"seed": NaN', "[" * 100_000])
def test_a_damaged_result_is_named_and_the_others_are_read(tmp_path, text):
    folder = write_run(tmp_path / "run", [result("node"), result("anode")])
    (folder / "trials" / "node-annuli-seed-0" / "result.json").write_text(text)
    (run,) = gather([folder])
    assert [one.model for one in run.results] == ["anode"]
    assert any("node-annuli-seed-0" in note for note in run.notes)


@pytest.mark.parametrize(
    "changes",
    [
        {"metrics": {"error": 10**400}},
        {"metrics": {"error": "0.5"}},
        {"metrics": [0.5]},
        {"seconds": 10**400},
        {"curves": [1, 2]},
        {"curves": {"train loss": "text"}},
        {"curves": {"train loss": ["text"]}},
        {"curves": {"train loss": [[]]}},
        {"curves": {"train loss": [10**400]}},
    ],
)
def test_a_result_with_a_value_of_the_wrong_kind_is_left_out(tmp_path, changes):
    folder = write_run(tmp_path / "run", [result("node"), result("anode")])
    file = folder / "trials" / "node-annuli-seed-0" / "result.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    (run,) = gather([folder])
    assert [one.model for one in run.results] == ["anode"]
    assert "node-annuli-seed-0: result.json is left out: not a result" in run.notes[0]


def test_a_file_larger_than_the_limit_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setenv("NCODE_READ_LIMIT", "1")
    folder = write_run(tmp_path / "run", [result("node"), result("anode")])
    file = folder / "trials" / "node-annuli-seed-0" / "result.json"
    file.write_text(file.read_text() + " " * (2 << 20))
    (run,) = gather([folder])
    assert [one.model for one in run.results] == ["anode"]
    assert "more than 1 MiB" in run.notes[0]


@pytest.mark.parametrize("about", [{"n": 10**400}, {"n": -(10**400)}, {"n": None}, {"n": [1]}])
def test_results_with_odd_numbers_about_them_are_sorted(tmp_path, about):
    for number, one in enumerate((result(about=about), result("anode", about={"n": 2}))):
        (tmp_path / f"{number}.json").write_text(json.dumps(one.as_json()))
    assert len(gather([tmp_path])[0].results) == 2


def test_a_figure_that_is_missing_is_named(tmp_path):
    folder = write_run(tmp_path / "run", [result()], [("flow", "The flow.")])
    for path in (folder / "figures").iterdir():
        path.unlink()
    assert gather([folder])[0].notes == ("The figure flow is missing.",)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(record())) | st.just("trials"), ANYTHING)
def test_no_record_stops_a_report(tmp_path, key, value):
    folder = tmp_path / "run"
    if not folder.exists():
        write_run(folder, [result()], [("flow", "The flow.")])
    (folder / "run.json").write_text(json.dumps(record(**{key: value})))
    assert "25.0" in write_report([folder], tmp_path / "page.html").read_text() or key == "columns"


def test_loose_results_are_grouped_by_experiment_and_preset(tmp_path):
    ones = [result(), result(seed=1), result(preset="quick"), result(experiment="memory")]
    for i, one in enumerate(ones):
        place = tmp_path / one.experiment
        place.mkdir(exist_ok=True)
        (place / f"{i}.json").write_text(json.dumps(one.as_json()))
    about = {"annuli": {"title": "Two annuli", "columns": [Column("error", "error, %", 1, 100.0)]}}
    runs = gather([tmp_path], about)
    assert [(run.name, run.text("preset"), len(run.results)) for run in runs] == [
        ("annuli", "paper", 2),
        ("annuli", "quick", 1),
        ("memory", "paper", 1),
    ]
    assert runs[0].text("title") == "Two annuli"
    assert runs[0].columns[0].scale == 100.0
    assert not any(run.unfinished for run in runs)
    assert len(gather([tmp_path / "annuli" / "0.json"])[0].results) == 1


def test_loose_results_stand_in_the_order_of_the_experiments_models(tmp_path):
    for model in ("anode", "ncode", "node", "other"):
        (tmp_path / f"{model}.json").write_text(json.dumps(result(model=model).as_json()))
    run = gather([tmp_path], {"annuli": {"models": ["ncode", "node", "anode"]}})[0]
    assert [one.model for one in run.results] == ["ncode", "node", "anode", "other"]


def test_the_same_seed_twice_is_noted(tmp_path):
    for i in range(2):
        (tmp_path / f"{i}.json").write_text(json.dumps(result().as_json()))
    assert "more than one result of NODE on annuli with seed 0" in gather([tmp_path])[0].notes[0]


def test_a_loose_file_that_is_no_result_is_named(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(result().as_json()))
    (tmp_path / "b.json").write_text("{}")
    assert "b.json is left out: not a result: experiment, model, dataset, ... missing" in gather([tmp_path])[0].notes[0]
    with pytest.raises(InputError, match="no result that can be read"):
        gather([tmp_path / "b.json"])


def test_bad_paths_get_a_sentence(tmp_path):
    write_run(tmp_path / "annuli-1", [result()])
    with pytest.raises(InputError, match=r"did you mean .*annuli-1"):
        gather([tmp_path / "anuli-1"])
    with pytest.raises(InputError, match="no run and no result"):
        gather([tmp_path / "annuli-1" / "figures"])
    with pytest.raises(InputError, match="put it in brackets"):
        gather(str(tmp_path))
    with pytest.raises(InputError, match="nothing to report"):
        gather([])


def test_a_trial_cannot_point_outside_its_run(tmp_path):
    write_run(tmp_path / "other", [result("secret")])
    folder = write_run(tmp_path / "run", [result()], trials=["../../other/trials/secret-annuli-seed-0"])
    assert [one.model for one in gather([folder])[0].results] == ["node"]
