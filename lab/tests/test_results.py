"""What the pages of this repository say must be what the result files say."""

import json
from pathlib import Path

import pytest
from ncode_lab.cli import main
from ncode_lab.training import Result

ROOT = Path(__file__).parents[1]
PAGES = [ROOT.parent / "README.md", *sorted((ROOT / "pages").glob("*.md"))]
RESULTS = sorted(ROOT.glob("results/*/*.json"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_what_the_results_say(page, capsys):
    status = main(["tables", str(page), "--results", str(ROOT / "results"), "--check"])
    assert status == 0, capsys.readouterr().err


def test_there_are_results():
    assert RESULTS


def test_every_result_says_how_it_came_about():
    for path in RESULTS:
        result = Result(**json.loads(path.read_text(encoding="utf-8")))
        assert result.experiment == path.parent.name
        assert result.commit not in ("", "unknown"), path
        assert "dirty" not in result.commit, path
        assert result.command.startswith("ncode run "), path
        assert result.metrics, path
        assert result.versions["torch"], path
        words = [*result.command.split(), *(value for value in result.settings.values() if isinstance(value, str))]
        assert not any(Path(word).is_absolute() for word in words), f"{path} names a path of a machine"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pictures_and_links_lead_somewhere(page):
    import re

    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert "://" in link or (page.parent / link).exists(), link
