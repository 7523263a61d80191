"""`--save` in every experiment."""

import json
import re
import shutil
from dataclasses import replace

import pytest
import torch
from ncode_lab.cli import main
from ncode_lab.experiments import EXPERIMENTS, find, run
from ncode_lab.training import RunError, RunOptions
from ncode_lab.training.built_model import BuiltModel
from ncode_lab.training.checkpoint import read_checkpoint
from safetensors import SafetensorError

import ncode
from ncode.block import NCODE, from_pretrained
from ncode.dynamics import MLP

from ..training.tiny import context_at, same

# Models that other classes implement.
MODELS = {
    "reflection": ("open-loop", "closed-loop"),
    "annuli": ("anode",),
    "vanderpol": ("constant", "dynamic"),
    "tracking": ("skew", "diagonal-wide", "lstm"),
    "memory": ("ncode", "data-control", "ode-rnn", "lstm", "lstm-miconi"),
    "classification": ("ncode", "gamma-alone"),
    "autoencode": ("auton-code", "ae", "vae", "sparse"),
}


def smoke(name):
    settings = find(name).preset("smoke")
    return replace(settings, models=MODELS.get(name, settings.models[:1]))


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_saves_its_trained_weights_and_knows_the_names_of_its_metrics(name, tmp_path):
    path = run(smoke(name), "smoke", RunOptions(out=tmp_path, device="cpu", quiet=True, save=True))
    for file in (path / "trials").glob("*/result.json"):
        assert json.loads(file.read_text())["metrics"].keys() <= set(smoke(name).metrics)
    trained = {place.parent for place in (path / "trials").glob("*/checkpoints")}
    assert len(trained) == len(smoke(name).models)
    for trial in trained:
        model = from_pretrained(trial / "pretrained", allow_imports=["ncode_lab"])
        saved = (model.model if isinstance(model, BuiltModel) else model).state_dict()
        if name == "annuli":  # saved as a Sequential, which needs no class of the lab
            saved = {key.replace("0.", "block.", 1).replace("1.", "read_out.", 1): saved[key] for key in saved}
        assert same(saved, read_checkpoint(max((trial / "checkpoints" / "model").iterdir())).weights), trial.name


def test_the_printed_line_loads_what_was_saved(tmp_path, capsys):
    words = ["run", "reflection", "--smoke", "--device", "cpu", "--out", str(tmp_path / "it's"), "--models", "node"]
    assert main([*words, "--save"]) == 0
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("saved: ")]
    block = eval(line.removeprefix("saved: "), {"ncode": ncode})
    assert block(torch.zeros(2, 1)).shape == (2, 1)


def test_the_card_of_a_saved_model_names_the_final_folder_and_its_line_loads_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["run", "reflection", "--smoke", "--device", "cpu", "--models", "node", "--quiet"]
    assert main([*words, "--save"]) == 0
    (file,) = tmp_path.glob("runs/*/trials/*/pretrained/README.md")
    text = file.read_text(encoding="utf-8")
    assert ".tmp" not in text
    assert "\n# pretrained\n" in text
    names = {}
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], names)
    assert names["model"](torch.zeros(2, 1)).shape == (2, 1)


def test_an_experiment_that_trains_nothing_refuses_to_save(tmp_path, capsys):
    words = ["run", "cluster", "--smoke", "--device", "cpu", "--out", str(tmp_path), "--models", "--save"]
    assert main(words) == 2
    assert "these settings of cluster train no model: leave --save out" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_resumed_run_saves_if_it_was_asked_to_at_first_and_names_what_it_did_not_save(tmp_path, capsys):
    words = ["run", "reflection", "--device", "cpu", "--quiet", "--out", str(tmp_path)]
    main([*words, "--smoke", "--save", "--models", "node", "open-loop"])
    (path,) = tmp_path.iterdir()
    record = json.loads((path / "run.json").read_text())
    (path / "run.json").write_text(json.dumps({**record, "finished": None}))
    (path / "trials" / "node-reflection-seed-0" / "result.json").unlink()
    for trial in ("node", "open-loop"):
        shutil.rmtree(path / "trials" / f"{trial}-reflection-seed-0" / "pretrained")
    assert main([*words, "--resume"]) == 0
    assert (path / "trials" / "node-reflection-seed-0" / "pretrained" / "config.json").is_file()
    assert "open-loop-reflection-seed-0 was finished without --save" in capsys.readouterr().err


def test_a_full_disk_while_a_model_is_saved_keeps_the_model_saved_before(tmp_path, monkeypatch):
    context, model = context_at(tmp_path, save=True), NCODE(MLP(2))
    context.save_model(model)
    before = {file.name: file.read_bytes() for file in (tmp_path / "pretrained").iterdir()}

    def full(*_, **__):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    with monkeypatch.context() as patch:
        patch.setattr("safetensors.torch.save_file", full)
        patch.setattr("safetensors.torch.save", full)
        with pytest.raises(RunError, match=r"pretrained could not be written: .*No space left.*--resume"):
            context.save_model(NCODE(MLP(3)))
    assert {file.name: file.read_bytes() for file in (tmp_path / "pretrained").iterdir()} == before
    assert [each.name for each in tmp_path.iterdir()] == ["pretrained"]
