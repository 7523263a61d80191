"""The model card beside saved weights."""

import pytest
import torch
from torch import nn

import ncode
from ncode.models import AutoNCODE, Classifier, PlasticMemory

pytest.importorskip("safetensors")


class Trunk(nn.Linear):
    def __init__(self):
        super().__init__(2, 3)


def card(model, folder, **notes):
    ncode.save_pretrained(model, folder / "my model", notes or None)
    return (folder / "my model" / "README.md").read_text()


def classifier():
    f = ncode.dynamics.ConvBlock(1, filters=2)
    model = Classifier(ncode.NCODE(f, method="rk4", dt=0.5), (1, 6, 6), classes=3, value_range=(-1.0, 1.0))
    return model.set_normalisation(torch.tensor([0.25]), torch.tensor([0.5]))


def autoencoder():
    encoder, decoder = nn.Sequential(nn.Flatten(), nn.Linear(36, 8)), nn.Sequential(nn.Linear(4, 36))
    return AutoNCODE(encoder, decoder, width=8, latent=4, horizon=5.0)


def test_it_says_how_to_load_how_it_is_solved_and_what_the_author_adds(tmp_path):
    block = ncode.NCODE(ncode.dynamics.MLP(2), ncode.OpenLoop(nn.Linear(2, 3)), rtol=1e-5)
    text = card(block, tmp_path, Score="3 of 4\nright")
    assert text.startswith("---\nlibrary_name: torch-ncode\n")
    assert 'model = ncode.from_pretrained("my model")' in text
    assert "dx/dt = MLP(t, x, theta), theta = gamma(x0)" in text
    assert "t from 0.0 to 1.0, method='dopri5', rtol=1e-05" in text
    assert "- **Score**: 3 of 4 right\n" in text
    assert f"torch-ncode {ncode.__version__}" in text


def test_a_name_of_its_own_says_where_the_model_will_be_and_its_last_part_is_the_title(tmp_path):
    block = ncode.NCODE(ncode.dynamics.MLP(2))
    block.save_pretrained(tmp_path / ".x.tmp", name="runs/a/springs")
    text = (tmp_path / ".x.tmp" / "README.md").read_text()
    assert "\n# springs\n" in text
    assert 'ncode.from_pretrained("runs/a/springs")' in text
    assert ".tmp" not in text
    with pytest.raises(ncode.InputError, match="name must be a text"):
        ncode.save_pretrained(block, tmp_path / "y", name=3)


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (classifier, ["images (batch, 1, 6, 6), uint8, or floats from -1 to 1", "mean [0.25]", "[0.5]", "(batch, 3)"]),
        (autoencoder, ["floats from 0 to 1", "4 numbers per image", "x(5)", "NCODE `block`"]),
        (lambda: PlasticMemory(5), ["(batch, P, 5)", "mu * x x^T"]),
        (lambda: nn.Sequential(ncode.NCODE(ncode.dynamics.MLP(2)), nn.Linear(2, 1)), ["NCODE `0`"]),
    ],
)
def test_a_model_names_its_input_and_its_scaling(make, parts, tmp_path):
    text = card(make(), tmp_path)
    assert [part for part in parts if part not in text] == []


def test_the_line_that_loads_names_the_packages_to_allow(tmp_path):
    block = ncode.NCODE(ncode.dynamics.MLP(2), ncode.OpenLoop(Trunk()))
    package = Trunk.__module__.partition(".")[0]
    assert f'ncode.from_pretrained("my model", allow_imports=["{package}"])' in card(block, tmp_path)


def test_a_card_of_the_author_is_left_as_it_is_and_an_older_one_of_ours_is_replaced(tmp_path):
    block = ncode.NCODE(ncode.dynamics.MLP(2))
    assert "rk4" not in card(block, tmp_path)
    assert "rk4" in card(block.with_options(method="rk4", dt=0.5), tmp_path)
    (tmp_path / "my model" / "README.md").write_text("by hand")
    assert card(block, tmp_path) == "by hand"


def test_notes_that_are_no_text_are_refused(tmp_path):
    with pytest.raises(ncode.InputError, match="a dict of texts by title"):
        card(ncode.NCODE(ncode.dynamics.MLP(2)), tmp_path, Score=0.97)
