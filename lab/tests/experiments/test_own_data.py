"""Data of the user in runs: what is recorded, saved and refused."""

import json
import shutil

import numpy as np
import pytest
import torch
from ncode_lab.cli import main
from ncode_lab.data import draw_shapes

from ncode.block import from_pretrained


@pytest.fixture
def shapes(tmp_path):
    drawn = draw_shapes(160, generator=0, side=16)
    chosen = drawn.labels < 3
    np.savez(tmp_path / "shapes.npz", images=drawn.images[chosen].numpy(), labels=drawn.labels[chosen].numpy())
    return tmp_path / "shapes.npz"


def run(name, data, out, *words):
    fast = ["--smoke", "--device", "cpu", "--quiet", "--dataset", str(data), "--out", str(out)]
    return main(["run", name, *fast, *words])


def record(out):
    (path,) = out.glob("*/run.json")
    return path, json.loads(path.read_text())


def test_a_saved_autoencoder_of_own_images_loads_where_the_images_are_not(shapes, tmp_path):
    assert run("autoencode", shapes, tmp_path / "runs", "--models", "auton-code", "--width", "0.05", "--save") == 0
    about = record(tmp_path / "runs")[1]["data"]
    assert (about["image shape"], about["classes"], len(about["sha256"])) == ([3, 16, 16], 3, 64)
    shapes.unlink()
    (folder,) = (tmp_path / "runs").rglob("pretrained")
    model = from_pretrained(folder, allow_imports=["ncode_lab"])
    assert model(torch.rand(2, 3, 16, 16)).shape == (2, 3, 16, 16)


def test_a_run_is_not_resumed_with_other_data(shapes, tmp_path, capsys):
    words = ("--models", "ae", "--width", "0.05")
    assert run("autoencode", shapes, tmp_path / "runs", *words) == 0
    path, before = record(tmp_path / "runs")
    path.write_text(json.dumps({**before, "finished": None}))
    resume = ["run", "autoencode", "--resume", "--quiet", "--device", "cpu", "--out", str(tmp_path / "runs")]
    shutil.copy(shapes, tmp_path / "kept.npz")
    np.savez(shapes, images=np.random.default_rng(0).random((40, 16, 16, 3)), labels=np.arange(40) % 3)
    assert main(resume) == 2
    assert "the data have changed since" in capsys.readouterr().err
    shutil.copy(tmp_path / "kept.npz", shapes)
    assert main(resume) == 0


@pytest.mark.parametrize(
    ("name", "words", "sentence"),
    [
        ("classification", (), "has no labels: a classifier needs at least two classes"),
        ("cluster", (), "has no classes that clusters could match"),
        ("autoencode", (), "images of {} are 10 x 12, and autoencoders need squares: --image-size 10 crops them"),
        ("autoencode", ("--image-size", "7"), "at least 8; --image-size 8 resizes them"),
        (
            "autoencode",
            ("--image-size", "18", "--channels", "3"),
            "must be a multiple of 4, at least 8; --image-size 16",
        ),
        ("interpolate", ("--image-size", "8"), "6 pairs need 12 test images; there are 4"),
        ("generate", ("--image-size", "8"), "a mixture of 8 components needs at least as many codes"),
    ],
)
def test_data_that_do_not_suit_an_experiment_are_refused_before_a_folder_is_made(
    name, words, sentence, tmp_path, capsys
):
    data = tmp_path / "plain.npz"
    np.savez(data, images=np.random.default_rng(0).random((20, 10, 12)))
    assert run(name, data, tmp_path / "runs", *words) == 2
    assert sentence.format(data) in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_one_class_is_not_enough_to_classify(tmp_path, capsys):
    np.savez(tmp_path / "one.npz", images=np.random.default_rng(0).random((20, 8, 8)), labels=np.zeros(20, int))
    assert run("classification", tmp_path / "one.npz", tmp_path / "runs") == 2
    assert "has one class: a classifier needs at least two classes" in capsys.readouterr().err


def test_a_function_named_by_a_file_runs_only_if_the_user_names_it_too(tmp_path, capsys, monkeypatch):
    (tmp_path / "noise_module.py").write_text(
        "import numpy as np\ndef noise():\n    return {'images': np.random.default_rng(0).random((40, 8, 8))}\n"
    )
    monkeypatch.chdir(tmp_path)
    assert run("autoencode", "noise_module:noise", "runs", "--models", "ae", "--width", "0.05") == 0
    path, before = record(tmp_path / "runs")
    path.write_text(json.dumps({**before, "finished": None}))
    resume = ["run", "autoencode", "--resume", "--quiet", "--device", "cpu"]
    assert main(resume) == 2
    assert "noise_module:noise, which is code: to run it, give --dataset" in capsys.readouterr().err
    source = ["run", "interpolate", "--smoke", "--source", str(path.parent)]
    with pytest.raises(SystemExit):
        main(source)
    assert "which is code: to run it" in capsys.readouterr().err
    assert main([*resume, "--dataset", "noise_module:noise"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classification", "generate", "cluster", "interpolate"])
def test_every_experiment_with_images_takes_those_of_the_user(name, tmp_path):
    drawn = draw_shapes(300, generator=0, side=16)
    images = torch.einsum("nchw->nhwc", drawn.images).numpy()
    np.savez(tmp_path / "shapes.npz", images=images, labels=drawn.labels.numpy() % 4)
    words = (
        ("--models", "ncode", "--shrink", "2") if name == "classification" else ("--models", "ae", "--width", "0.05")
    )
    assert run(name, tmp_path / "shapes.npz", tmp_path / "runs", *words, "--save") == 0
    (result,) = [json.loads(path.read_text()) for path in tmp_path.glob("runs/*/trials/*/pretrained/../result.json")]
    assert result["dataset"].startswith("shapes (own data)")
    assert result["settings"]["dataset"] == "shapes.npz"
    (page,) = tmp_path.glob("runs/*/summary.md")
    assert "shapes" in record(tmp_path / "runs")[1]["data"]["name"]
    assert page.is_file()
