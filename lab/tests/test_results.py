"""Pages must agree with the result files."""

import json
import re
from pathlib import Path

import pytest
from ncode_lab.cli import main
from ncode_lab.training import Result

LAB = Path(__file__).parents[1]
PAGES = [LAB.parent / "README.md", LAB / "README.md", *sorted((LAB / "pages").glob("*.md"))]
RESULTS = sorted(LAB.glob("results/*/*.json"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: "-".join(page.parts[-2:]))
def test_tables_are_what_the_results_say(page, capsys):
    status = main(["tables", str(page), "--results", str(LAB / "results"), "--check"])
    assert status == 0, capsys.readouterr().err


def test_there_are_results():
    assert RESULTS


def test_every_result_says_how_it_was_made():
    for path in RESULTS:
        result = Result.from_json(json.loads(path.read_text(encoding="utf-8")))
        assert result.experiment == path.parent.name
        assert result.commit not in ("", "unknown"), path
        assert "dirty" not in result.commit, path
        assert result.command.startswith("ncode run "), path
        assert result.metrics, path
        assert result.versions["torch"], path
        texts = [*result.command.split(), *(value for value in result.settings.values() if isinstance(value, str))]
        assert not any(Path(text).is_absolute() for text in texts), f"{path} names a path of a machine"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: "-".join(page.parts[-2:]))
def test_pictures_and_links_lead_somewhere(page):
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert "://" in link or (page.parent / link).exists(), link
