"""The page that maps the paper to commands, pages and files."""

import re
import shlex
from pathlib import Path

import pytest
from ncode_lab.cli.run import chosen_preset, parse, take_experiment
from ncode_lab.training import RunOptions

LAB = Path(__file__).parents[1]
PAGE = LAB / "pages" / "paper-map.md"
TEXT = PAGE.read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("| ")]
ITEMS = [row for row in ROWS if row[0] != "in the paper"]
COMMANDS = sorted({command for row in ITEMS for command in re.findall(r"`([^`]+)`", row[2])})
FIGURES = {*map(str, range(1, 9)), *(f"A.{number}" for number in range(1, 13))}


def numbers(kind):
    """The numbers of figures, tables or equations that rows name, with those between the ends of a range."""
    found = set()
    for row in ITEMS:
        for text in re.findall(rf"{kind}s? ((?:A\.)?\d+(?:(?: to | and )\d+)?)", row[0]):
            if "A." in text or text.isdigit():
                found.add(text)
            else:
                first, last = map(int, re.split(r" to | and ", text))
                found |= set(map(str, range(first, last + 1)))
    return found


def test_every_figure_table_and_equation_is_there():
    assert numbers("figure") == FIGURES
    assert numbers("table") == {"1", "2", "A.1"}
    assert numbers("equation") == set(map(str, range(1, 20)))


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.startswith("ncode run")])
def test_its_commands_are_understood(command):
    kind, arguments = take_experiment(shlex.split(command)[2:], "run")
    given = parse(kind.preset(chosen_preset(arguments)), RunOptions(), arguments)
    assert isinstance(given.settings, kind)


def test_other_commands_name_files_that_exist():
    others = [shlex.split(each) for each in COMMANDS if not each.startswith("ncode run")]
    assert [words[0] for words in others] == ["python"]
    assert all((LAB.parent / words[1]).is_file() for words in others)


def test_every_item_names_a_page_and_a_file_that_exist():
    for row in ITEMS:
        links = re.findall(r"\]\(([^)]+)\)", " ".join(row))
        files = [(PAGE.parent / link).resolve() for link in links]
        assert all(file.is_file() for file in files), row
        assert any(file.suffix == ".py" for file in files), row
        assert (
            row[0].startswith(("equation", "appendix"))
            or "this page" in row
            or any(file.suffix == ".md" for file in files)
        ), row


def test_the_page_is_in_the_list_of_pages():
    assert "(paper-map.md)" in (LAB / "pages" / "README.md").read_text(encoding="utf-8")
