"""Trainings with several processes on the CPU; worker.py has what each of them does."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ncode.distributed import load_checkpoint

from .worker import GRADIENTS, KILLED, SAVED, STEPS, Model, Net, Training, data, train

fcntl = pytest.importorskip("fcntl")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"),
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork processes"),
]


def launch(folder, ranks, *scenarios):
    """Run scenarios; writes the exit codes of all ranks, and what they printed on stderr."""
    command = [sys.executable, str(Path(__file__).with_name("worker.py")), str(folder), str(ranks), *scenarios]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, start_new_session=True, **streams)
    try:
        output, errors = process.communicate(timeout=240)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    (folder / f"codes-{ranks}.json").write_text(output or "[]")
    (folder / f"errors-{ranks}.txt").write_text(errors)


@pytest.fixture(scope="session")
def found(tmp_path_factory):
    """What the ranks of all scenarios found: a function of a scenario and a number of ranks.

    As torch takes seconds to start, everything is done by two launches, once for all processes of pytest-xdist.
    """
    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / "distributed"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "codes-2.json").exists():
            launch(folder, 4, "weights", "failures", "interrupted")
            launch(folder, 2, "weights", "sharded_block", "compilation", "resumed")

    def look(scenario, ranks):
        paths = [folder / f"{scenario}-{ranks}-{rank}.pt" for rank in range(ranks)]
        assert all(path.exists() for path in paths), (folder / f"errors-{ranks}.txt").read_text()
        return [torch.load(path) for path in paths]

    look.folder = folder
    return look


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_train_to_the_weights_of_one_process(ranks, found):
    of_ranks = found("weights", ranks)
    for gradient in GRADIENTS:
        start, alone = Net().state_dict(), Net.trained_by(gradient)
        train(alone, data(8), gradient)
        constant = {"frozen", "unused"} if alone.branches else {"frozen", "unused", "some"}
        assert {name for name, value in alone.state_dict().items() if torch.equal(value, start[name])} == constant
        for of_rank in of_ranks:
            trained = [name for name in of_rank if name.startswith(gradient) and "handed" not in name]
            assert len(trained) == 4
            for name in trained:
                close(of_rank[name], alone.state_dict())
            handed = of_rank[f"{gradient}, handed over"]
            assert handed == dict.fromkeys(start.keys() - constant, 4)  # once in each of four steps


def test_a_block_is_sharded_as_a_whole_and_other_ways_are_refused(found):
    alone = Model()
    alone(data(8))[0].sum().div(8).backward()
    expected = {name: parameter.grad for name, parameter in alone.named_parameters()}
    for of_rank in found("sharded_block", 2):
        close(of_rank["model"], expected)
        close(of_rank["block and model"], expected)
        for case in ("solve is not forward", "a controller"):
            assert 'register_fsdp_forward_method(module, "solve")' in of_rank[case]
        for case in ("dynamics", "dynamics under DDP"):
            assert of_rank[case].startswith("the dynamics communicate with other ranks")


def test_a_failure_on_one_rank_is_a_status_or_an_error_on_all(found):
    alone = Model()
    alone(data(8))[0].sum().mul(2 / 4).backward()  # DDP takes the mean over ranks, here of two steps
    expected = {name: parameter.grad for name, parameter in alone.named_parameters()}
    for rank, of_rank in enumerate(found("failures", 4)):
        assert of_rank["all_ok"] == [False, False, False, False, False, True]
        assert list(of_rank["error"]) == [1]
        assert of_rank["error"][1].startswith("SolveError: 1 of 2 samples did not reach t1")
        assert of_rank["cause"] == ("SolveError" if rank == 1 else "NoneType")
        assert of_rank["next"]
        close(of_rank["gradients"], expected)


def test_ranks_wait_for_one_that_compiles_if_they_are_warmed_up(found):
    for of_rank in found("compilation", 2):
        assert of_rank["warm True"] == "trained"
        assert of_rank["warm False"] == "RuntimeError"  # without it the all-reduce times out
        assert of_rank["unchanged"]
        assert of_rank["gradients"] == [None, None]
        assert of_rank["errors on ranks"] == [0]


def test_when_a_rank_is_killed_the_others_end_with_an_error(found):
    whole = found("whole", 4)
    nfe = [[int(step.sum()) for step in of_rank["nfe"]] for of_rank in whole]
    assert nfe[0] != nfe[1]  # ranks that take different numbers of steps do not wait for each other
    codes = json.loads((found.folder / "codes-4.json").read_text())
    assert codes == [1, 1, -signal.SIGKILL, 1], (found.folder / "errors-4.txt").read_text()


def test_an_interrupted_training_resumes_on_other_numbers_of_ranks(found):
    whole = found("whole", 4)[0]
    alone = Training()
    alone.run(0, STEPS)
    close(alone.model.state_dict(), whole["weights"])

    for of_rank in found("resumed", 2):
        for name in ("ddp", "fsdp"):
            assert of_rank[f"{name} step"] == SAVED < KILLED < STEPS
            close(of_rank[name], whole["weights"])
            assert torch.equal(of_rank[f"{name} costs"], whole["costs"])

    again = Training()
    assert load_checkpoint(found.folder / "checkpoints", **again.state) == SAVED
    again.run(SAVED, STEPS)
    close(again.model.state_dict(), whole["weights"])


def test_a_checkpoint_of_a_sharded_model_loads_into_a_plain_one(found):
    found("resumed", 2)
    plain, whole = Training(), found("whole", 4)[0]
    assert load_checkpoint(found.folder / "sharded", **plain.state) == STEPS
    close(plain.model.state_dict(), whole["weights"])
    assert torch.equal(plain.sampler.state_dict()["next_costs"], whole["costs"])


def test_random_numbers_continue_on_the_same_number_of_ranks_and_are_new_on_another(found):
    drawn = []
    for of_rank in found("resumed", 2):
        assert torch.equal(of_rank["drawn"], of_rank["drawn again"])
        drawn.append(of_rank["drawn"])
    for _ in range(2):
        load_checkpoint(found.folder / "random", nn.Linear(1, 1))
        drawn.append(torch.rand(3))
    assert torch.equal(drawn[2], drawn[3])
    assert len({tuple(numbers.tolist()) for numbers in drawn}) == 3
