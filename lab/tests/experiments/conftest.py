import json

import pytest
from ncode_lab.experiments import run
from ncode_lab.experiments.coding.autoencode import Autoencode
from ncode_lab.training import RunOptions


@pytest.fixture(scope="session")
def options(tmp_path_factory):
    return RunOptions(out=tmp_path_factory.mktemp("runs"), device="cpu", quiet=True)


@pytest.fixture(scope="session")
def source(options):
    """A run of autoencode whose models other experiments use."""
    settings = {**Autoencode.presets["smoke"], "latent": 9, "models": ("auton-code", "vae")}
    return run(Autoencode(**settings), "smoke", options)


@pytest.fixture(scope="session")
def results():
    """Reads the results of a run, by model."""

    def read(folder):
        found = [json.loads(path.read_text()) for path in folder.glob("trials/*/result.json")]
        return {result["model"]: result for result in found}

    return read
