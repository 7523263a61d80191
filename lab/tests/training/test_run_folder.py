import json
import math
import os
import re

import pytest
from ncode_lab.training import Result, RunFolder
from ncode_lab.training import run_folder as folder_module
from ncode_lab.training.run_folder import find_unfinished

from ncode import InputError

RESULT = Result(
    "annuli", "node", "annuli", "quick", 0, {}, {"error": 0.25}, 42, 1.5, "CPU", {}, "abc", "ncode run annuli"
)


def create(tmp_path, experiment="annuli", **record):
    return RunFolder.create(tmp_path, experiment, record)


def test_a_folder_is_named_after_the_experiment_and_the_time(tmp_path):
    assert re.fullmatch(r"annuli-\d{4}-\d{2}-\d{2}-\d{6}", create(tmp_path).path.name)


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path, monkeypatch):
    class Clock(folder_module.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, 3, 4, 5)

    monkeypatch.setattr(folder_module, "datetime", Clock)
    folders = [create(tmp_path, number=number) for number in range(12)]
    for each in folders:
        each.close()
    assert [each.path.name for each in folders[:3]] == [
        "annuli-2026-01-02-030405",
        "annuli-2026-01-02-030405-2",
        "annuli-2026-01-02-030405-3",
    ]
    for number, each in enumerate(folders):
        assert json.loads((each.path / "run.json").read_text())["number"] == number
    # The twelfth is newer than the second, though it sorts before it.
    assert find_unfinished(tmp_path, "annuli") == folders[-1].path


def test_the_record_is_rewritten_whole(tmp_path):
    folder = create(tmp_path, preset="quick")
    folder.update(figures=[{"name": "flow", "caption": "A flow."}])
    folder.close()
    again = RunFolder.open(folder.path)
    assert again.record == folder.record
    assert again.record["preset"] == "quick"
    assert again.record["finished"] is None


def test_the_latest_unfinished_run_is_of_the_same_experiment_and_not_finished(tmp_path):
    assert find_unfinished(tmp_path / "none", "annuli") is None
    first, second = create(tmp_path), create(tmp_path)
    create(tmp_path, "annuli-large")
    (tmp_path / "annuli-2999-01-01-000000").mkdir()
    first.close()
    second.finish()
    assert second.record["finished"]
    assert find_unfinished(tmp_path, "annuli") == first.path
    first.finish()
    assert find_unfinished(tmp_path, "annuli") is None


def test_a_run_that_is_under_way_in_another_process_is_left_alone(tmp_path):
    older, newer = create(tmp_path), create(tmp_path)
    older.close()
    assert find_unfinished(tmp_path, "annuli") == older.path
    with pytest.raises(InputError, match=rf"is in use by process {os.getpid()} on .*: wait for it"):
        RunFolder.open(newer.path)


def test_a_run_that_fails_can_be_resumed_at_once(tmp_path):
    with pytest.raises(ZeroDivisionError), create(tmp_path) as folder:
        raise ZeroDivisionError
    assert find_unfinished(tmp_path, "annuli") == folder.path
    RunFolder.open(folder.path).finish()
    assert find_unfinished(tmp_path, "annuli") is None


def test_the_newest_run_is_found_after_the_clock_was_set_back(tmp_path, monkeypatch):
    class Clock(folder_module.datetime):
        year = 2030

        @classmethod
        def now(cls, tz=None):
            return folder_module.datetime.__base__(cls.year, 1, 2, 3, 4, 5)

    monkeypatch.setattr(folder_module, "datetime", Clock)
    create(tmp_path).close()
    Clock.year = 2026
    second = create(tmp_path)
    second.close()
    assert second.path.name < "annuli-2030"
    assert find_unfinished(tmp_path, "annuli") == second.path
    Clock.year = 2028
    third = create(tmp_path)
    third.close()
    assert find_unfinished(tmp_path, "annuli") == third.path


def test_runs_of_earlier_versions_without_a_number_are_ordered_by_their_names(tmp_path):
    for stamp in ("2024-01-01-000000", "2025-01-01-000000", "2025-01-01-000000-10", "2025-01-01-000000-9"):
        (tmp_path / f"annuli-{stamp}").mkdir()
        (tmp_path / f"annuli-{stamp}" / "run.json").write_text('{"finished": null}')
    assert find_unfinished(tmp_path, "annuli").name == "annuli-2025-01-01-000000-10"
    new = create(tmp_path)
    new.close()
    assert find_unfinished(tmp_path, "annuli") == new.path


def test_a_result_is_read_as_it_was_written_with_nan_and_all(tmp_path):
    folder = create(tmp_path)
    assert folder.result("node") is None
    folder.write_result("node", RESULT)
    assert folder.result("node") == RESULT
    folder.write_result("nan", Result(**{**RESULT.as_json(), "metrics": {"error": math.nan}}))
    assert math.isnan(folder.result("nan").metrics["error"])


def test_curves_are_written_with_six_digits_and_metrics_with_all(tmp_path):
    folder, third = create(tmp_path), 1 / 3
    curves = {"train step": [1234567], "train loss": [third * 1e-9], "train nfe": [math.nan]}
    folder.write_result("node", Result(**{**RESULT.as_json(), "metrics": {"error": third}, "curves": curves}))
    read = folder.result("node")
    assert read.metrics == {"error": third}
    assert (read.curves["train step"], read.curves["train loss"]) == ([1234567], [3.33333e-10])
    assert math.isnan(read.curves["train nfe"][0])


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 1}', '{"metrics": {}}'])
def test_a_damaged_result_is_named_and_put_aside(tmp_path, content):
    folder, said = create(tmp_path), []
    (folder.trial("node") / "result.json").write_text(content)
    assert folder.result("node", said.append) is None
    assert re.search(r"result\.json is damaged .*: the trial is run again", said[0])
    assert (folder.trial("node") / "result.damaged").read_text() == content
    folder.write_result("node", RESULT)
    assert folder.result("node", said.append) == RESULT
    assert len(said) == 1


@pytest.mark.parametrize("content", [None, "{"])
def test_a_finished_run_that_has_lost_a_result_is_unfinished(tmp_path, content):
    folder = create(tmp_path, trials=["node"])
    folder.write_result("node", RESULT)
    folder.finish()
    assert find_unfinished(tmp_path, "annuli") is None
    path = folder.path / "trials" / "node" / "result.json"
    path.unlink() if content is None else path.write_text(content)
    assert find_unfinished(tmp_path, "annuli") == folder.path


def test_what_is_no_run_folder_is_told_so(tmp_path):
    with pytest.raises(InputError, match="it is not a run folder"):
        RunFolder.open(tmp_path)


def test_remains_of_a_killed_process_are_removed_on_opening(tmp_path):
    folder = create(tmp_path)
    folder.close()
    (folder.trial("node") / ".metrics.jsonl.123.tmp").write_text("half")
    RunFolder.open(folder.path)
    assert os.listdir(folder.trial("node")) == []
