from ncode_lab.report import summary_markdown
from ncode_lab.training import Reported

from .runs import record, result


def test_a_summary_has_title_command_table_figures_and_environment():
    about = record(paper=[Reported("node", "annuli", "error", 0.3)], figures=[{"name": "flow", "caption": "The flow."}])
    text = summary_markdown(about, [result(seed=0), result(seed=1, error=0.35)])
    assert text.startswith("# Two annuli\n")
    for part in (
        "    ncode run annuli --paper",
        "| NODE | 30.0 ± 7.1 | 30.0 | – | 2 | 354 |",
        "![The flow.](figures/flow.png)",
        "- torch: 2.13",
        "- device: CPU",
    ):
        assert part in text.splitlines()


def test_a_summary_says_when_trials_are_missing_and_only_then():
    names = ["node-annuli-seed-0", "node-annuli-seed-1"]
    assert "Finished trials: 1 of 2." in summary_markdown(record(trials=names), [result()])
    assert "no results yet" in summary_markdown(record(trials=names), [])
    whole = summary_markdown(record(trials=names, finished=None), [result(seed=0), result(seed=1)])
    assert "finished" not in whole
