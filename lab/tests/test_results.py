"""Pages must agree with the result files."""

import json
import re
from pathlib import Path

import pytest
from ncode_lab.cli import main
from ncode_lab.training import Result, Trial

LAB = Path(__file__).parents[1]
PAGES = [LAB.parent / "README.md", LAB / "README.md", *sorted((LAB / "pages").glob("*.md"))]
RESULTS = sorted(LAB.glob("results/*/*.json"))
CHOICES = sorted(LAB.glob("results/choices/[!m]*/*.json"))  # of autoencoders
CHOICES_OF_MEMORY = sorted(LAB.glob("results/choices/memory/*.json"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: "-".join(page.parts[-2:]))
def test_tables_are_what_the_results_say(page, capsys):
    status = main(["tables", str(page), "--results", str(LAB / "results"), "--check"])
    assert status == 0, capsys.readouterr().err


def test_there_are_results():
    assert RESULTS


def read(path):
    return Result.from_json(json.loads(path.read_text(encoding="utf-8")))


def test_choices_of_the_same_name_have_the_same_settings():
    shared = ("code_noise", "texture", "shift", "still", "epochs", "validate", "flips", "schedule", "batch", "lr")
    own = {"auton-code": ("nonzeros", "norm", "gain", "start"), "vae": ("beta",)}
    found = {}
    for path in CHOICES:
        result = read(path)
        assert path.name == f"{result.preset}-{Trial(result.model, result.dataset, result.seed).name}.json"
        names = (*shared, *own.get(result.model, ()))
        settings = {name: result.settings[name] for name in names}
        assert found.setdefault((result.model, result.dataset), settings) == settings, path
    assert len(found) == 17
    # The same for all models that have it: a label says whether images were shifted, and for how long.
    for (_, label), settings in found.items():
        assert f"shift {abs(settings['shift'])}, still {settings['still']:g}," in label


def test_choices_of_memory_are_named_by_what_was_chosen():
    for path in CHOICES_OF_MEMORY:
        settings = read(path).settings
        assert f"query-time-{settings['query_time']:g}-episodes-{settings['episodes']}-seed" in path.name
    assert CHOICES_OF_MEMORY


def test_every_result_says_how_it_was_made():
    for path in RESULTS:
        result = read(path)
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
