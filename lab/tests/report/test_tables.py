import math
import re
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ncode_lab.report import as_html, as_markdown, make_table, replace_block, stale_blocks, summary_markdown
from ncode_lab.training import Column, Reported

from ncode import InputError

from .runs import record, result

ERROR = Column("error", "error, %", 1, 100.0)
NAMES = st.text(min_size=1, max_size=12)


def cells(line):
    """The cells of a line of Markdown, read as GitHub reads it: a pipe behind a backslash is text."""
    return re.split(r"(?<!\\)(?:\\\\)*\|", line.strip().strip("|"))


def lines(*arguments):
    return as_markdown(make_table(*arguments)).splitlines()


@given(st.lists(st.floats(0, 1), min_size=2, max_size=5))
def test_seeds_become_mean_and_standard_deviation(errors):
    row = make_table(
        [result(seed=seed, error=error) for seed, error in enumerate(errors)], [Column("error", "", 3)]
    ).rows[0]
    mean, spread = statistics.fmean(errors), statistics.stdev(errors)
    assert row.seeds == len(errors)
    if mean == 0 or mean >= 5e-4:
        assert row.cells[0].ours == f"{mean:.3f} ± {spread:.3f}"


def test_one_seed_has_no_spread():
    assert "±" not in as_markdown(make_table([result(), result("anode")], [ERROR]))


def test_rows_come_problem_by_problem_in_the_order_of_first_appearance():
    results = [result(model, dataset) for model in ("node", "anode") for dataset in ("spirals", "annuli")]
    order = [(row.dataset, row.model) for row in make_table(results, [ERROR]).rows]
    assert order == [("spirals", "NODE"), ("spirals", "ANODE"), ("annuli", "NODE"), ("annuli", "ANODE")]


def test_the_papers_number_stands_beside_ours_in_the_same_unit():
    paper = [Reported("node", "annuli", "error", 0.333, "Read off a figure.")]
    head, _, node, anode, _, note = lines([result(), result("anode")], [ERROR], paper)
    assert head == "| model | error, % | paper | seeds | parameters |"
    assert "25.0 | 33.3" in node
    assert note.endswith("Read off a figure.")
    assert note.split()[0] in node
    assert "25.0 | – |" in anode


def test_no_column_is_kept_for_a_paper_that_has_no_number():
    assert lines([result()], [ERROR], [Reported("node", "other", "error", 0.1)])[0].count("paper") == 0


def test_what_the_paper_ran_and_we_did_not_is_said():
    paper = [Reported("lstm", "annuli", "error", 0.5), Reported("lstm", "elsewhere", "error", 0.5)]
    assert lines([result()], [ERROR], paper)[-1] == "| LSTM | – | 50.0 | not run | – |"


def test_a_model_that_we_ran_with_other_settings_is_not_said_to_be_missing():
    paper = [Reported(model, "annuli", "error", 0.5) for model in ("node", "lstm")]
    paper += [Reported("lstm", "annuli, epochs 3", "error", 0.5)]
    results = [result("anode"), result("node", "annuli, epochs 3")]
    table = make_table(results, [ERROR], paper)
    assert [(row.model, row.dataset, row.seeds) for row in table.rows] == [
        ("ANODE", "annuli", 1),
        ("LSTM", "annuli", 0),
        ("NODE", "annuli, epochs 3", 1),
    ]


def test_a_metric_that_some_seeds_lack_says_of_how_many_it_is():
    results = [result(seed=0), result(seed=1), result(seed=2, metrics={})]
    assert "25.0 ± 0.0 (2 of 3)" in as_markdown(make_table(results, [ERROR]))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_seed_that_is_not_finite_is_not_averaged_away(bad):
    assert "not finite" in as_markdown(make_table([result(seed=0), result(seed=1, error=bad)], [ERROR]))


def test_small_numbers_are_not_rounded_to_nothing():
    assert "3.1×10⁻⁶" in as_markdown(make_table([result(error=3.1e-8)], [ERROR]))


def test_titles_of_earlier_versions_are_replaced():
    text = summary_markdown(record(columns=[["nfe", "evaluations a solve"]]), [result(metrics={"nfe": 14.0})])
    assert "| evaluations per solve |" in text
    assert "| 14.00 |" in text


def test_all_metrics_are_shown_where_no_columns_are_given():
    assert [c.metric for c in make_table([result(), result(metrics={"nfe": 1.0})]).columns] == ["error", "nfe"]


@given(NAMES, NAMES, NAMES)
def test_no_name_breaks_a_table_of_markdown(model, other, title):
    table = lines([result(model), result(other, "spirals")], [Column("error", title)])
    assert len(table) == 4
    assert {len(cells(line)) for line in table} == {5}


@given(NAMES, NAMES)
def test_no_name_becomes_html(model, title):
    html = as_html(make_table([result(f"<b>{model}")], [Column("error", f"<i>{title}")]), f"<u>{title}")
    assert not re.search("<[biu]>", html)


@given(st.text(), st.text())
def test_a_replaced_block_is_not_stale_and_the_rest_is_untouched(before, after):
    text = f"{before}\n<!-- table:a -->\nold\n<!-- end -->\n{after}"
    table = as_markdown(make_table([result("<!-- end -->")], [ERROR]))
    new = replace_block(text, "a", table)
    assert stale_blocks(text, {"a": table})[:1] == ["a"]
    assert new.startswith(before)
    assert new.endswith(after)
    assert stale_blocks(new, {"a": table}) == []
    assert replace_block(new, "a", table) == new


def test_a_block_that_no_table_is_known_for_is_stale():
    text = "<!-- table:a -->\n1\n<!-- end -->\n<!-- table:b -->\n2\n<!-- end -->"
    assert stale_blocks(text, {"a": "1"}) == ["b"]


def test_a_missing_block_is_named_with_the_nearest():
    with pytest.raises(InputError, match=r"<!-- table:anuli -->.*did you mean 'annuli'"):
        replace_block("<!-- table:annuli -->\n<!-- end -->", "anuli", "")
    with pytest.raises(InputError, match="no block"):
        stale_blocks("", {"annuli": ""})
