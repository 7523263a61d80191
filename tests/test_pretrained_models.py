"""The models in the folder pretrained/ load in one line, and have the scores that their cards state."""

import math
import re
import runpy
from pathlib import Path

import pytest
import torch

import ncode
from ncode.models import AutoNCODE, Classifier

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "pretrained"
NAMES = ("reflection", "annuli", "mnist-classifier", "mnist-autoncode")

if not FOLDER.exists():  # as in a source distribution
    pytest.skip("there is no folder pretrained/", allow_module_level=True)
safetensors = pytest.importorskip("safetensors.torch")


def score(name):
    """The score in a model card, and the numbers in it."""
    (line,) = re.findall(r"- \*\*Score\*\*: (.*)", (FOLDER / name / "README.md").read_text(encoding="utf-8"))
    return line, [float(number.replace(",", "")) for number in re.findall(r"\d[\d.,]*(?:e-\d+)?", line)]


@pytest.fixture(scope="module")
def digits():
    return safetensors.load_file(FOLDER / "digits.safetensors")


def rings(low, high):
    radius, angle = torch.meshgrid(torch.linspace(low, high, 16), torch.arange(64) * math.tau / 64, indexing="ij")
    return torch.stack([radius * angle.cos(), radius * angle.sin()], -1).reshape(-1, 2)


def test_the_reflection():
    block, x = ncode.NCODE.from_pretrained(FOLDER / "reflection"), torch.linspace(-1, 1, 201)[:, None]
    error = (block(x) + x).square().mean().item()
    assert error == pytest.approx(score("reflection")[1][0], rel=0.2)
    assert error < 1e-4


def test_the_annuli():
    block = ncode.NCODE.from_pretrained(FOLDER / "annuli")
    right = (block(rings(0.0, 0.5))[:, 0] < 0).sum() + (block(rings(1.0, 1.5))[:, 0] > 0).sum()
    assert right == score("annuli")[1][0] == 2048


def test_the_classifier(digits):
    model = Classifier.from_pretrained(FOLDER / "mnist-classifier")
    right = int((model(digits["images"]).argmax(1) == digits["labels"]).sum())
    percent, _, on_digits, count = score("mnist-classifier")[1]
    assert (right, len(digits["labels"])) == (on_digits, count)
    assert percent > 97
    torch.testing.assert_close(model(digits["images"] / 255), model(digits["images"]), atol=1e-4, rtol=1e-4)
    with pytest.raises(ncode.InputError, match="divide bytes by 255"):
        model(digits["images"].float())


def test_the_autoencoder(digits):
    model = AutoNCODE.from_pretrained(FOLDER / "mnist-autoncode")
    images = digits["images"] / 255
    error = (model(images) - images).square().mean().item()
    assert error == pytest.approx(score("mnist-autoncode")[1][2], rel=0.02)
    assert error < 0.02
    fixed = model.with_options(method="rk4", dt=0.25)
    torch.testing.assert_close(fixed(images), model(images), atol=1e-3, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_the_table_has_the_score_and_the_size_of_each_model(name):
    table = (FOLDER / "README.md").read_text(encoding="utf-8")
    (row,) = [line for line in table.splitlines() if line.startswith(f"| [{name}]")]
    _, _, _, stated, size, command, _ = (cell.strip() for cell in row.split("|"))
    assert stated == score(name)[0]
    assert float(size.split()[0]) == pytest.approx(
        sum(file.stat().st_size for file in (FOLDER / name).iterdir()) / 1000, rel=0.1
    )
    assert command in (FOLDER / name / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NAMES)
def test_the_line_of_a_card_loads_the_model_from_the_root_of_the_clone(name, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", (FOLDER / name / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(ROOT)
    names = {}
    exec(code, names)
    assert not names["model"].training


@pytest.mark.parametrize("name", NAMES)
def test_the_script_would_write_the_card_that_is_there(name, tmp_path):
    text = (FOLDER / name / "README.md").read_text(encoding="utf-8")
    notes = {title: line for title, line in re.findall(r"- \*\*(.*?)\*\*: (.*)", text) if title in ("Task", "Score")}
    save = runpy.run_path(str(FOLDER / "make.py"))["save"]
    save(ncode.from_pretrained(FOLDER / name), tmp_path, name, notes)
    again = (tmp_path / name / "README.md").read_text(encoding="utf-8")
    versions = re.compile(r"- \*\*Versions\*\*.*")
    assert versions.sub("", again) == versions.sub("", text)


def test_all_models_together_are_small():
    assert sum(file.stat().st_size for file in FOLDER.rglob("*") if file.is_file()) < 5e6


def test_the_code_of_the_page_runs(monkeypatch, tmp_path, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", (FOLDER / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "page.py").write_text(code)
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(tmp_path / "page.py"))
    reflected, signs, right = capsys.readouterr().out.splitlines()
    assert re.search(r"-0\.(49|50)", reflected)
    assert re.search(r"\[-\d.*, +\d", signs)
    assert right.startswith("tensor(")
