"""A run that is killed, stopped or damaged goes on, and ends with the same bits."""

import errno
import json
import os
import signal
import subprocess
import time

import pytest
from ncode_lab.training import Progress, RunError, Stopped
from ncode_lab.training.checkpoint import WEIGHTS
from safetensors.torch import load_file

from ncode import InputError

from .tiny import Tiny, context_at, logged, same, script, train


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The weights of a run that was never interrupted."""
    return train(tmp_path_factory.mktemp("whole"))


@pytest.mark.slow
def test_killed_at_every_moment_it_ends_with_the_same_weights_and_metrics(tmp_path):
    done = subprocess.run(**script("crash", tmp_path), capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["wrong"] == []
    assert told["moments"] > 30


@pytest.mark.slow
def test_killed_from_outside_then_stopped_by_ctrl_c_it_ends_with_the_same_weights(tmp_path):
    steps, checkpoints = 40, tmp_path / "checkpoints" / "model"

    def life(pause, wait_for=None, number=None):
        setting = json.dumps({"folder": str(tmp_path), "steps": steps, "pause": pause})
        process = subprocess.Popen(**script("tiny", setting), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 120
        while wait_for and not (checkpoints / wait_for).exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if number:
            process.send_signal(number)
        return process.communicate(timeout=120), process.returncode

    _, code = life(0.1, "step-000006", signal.SIGKILL)
    assert code == -signal.SIGKILL
    (_, told), code = life(0.1, "step-000014", signal.SIGINT)
    assert code == 130
    assert "stopped after step" in told
    assert "--resume" in told
    assert "Traceback" not in told
    (_, told), code = life(0.0)
    assert code == 0, told
    assert told == ""
    weights = train(tmp_path / "whole", steps=steps)
    assert same(load_file(tmp_path / "kept" / "weights.safetensors"), weights)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_lets_the_step_finish_and_writes_a_checkpoint(tmp_path, capsys, number, whole):
    asked = {2: lambda: os.kill(os.getpid(), number)}
    with pytest.raises(Stopped) as stopped:
        train(tmp_path, at_step=asked, options={"save_every": 0})
    assert stopped.value.code == 130
    assert os.listdir(tmp_path / "checkpoints" / "model") == ["step-000003"]
    assert "stopped after step 3 of 6; resume with: ncode" in capsys.readouterr().err
    assert same(train(tmp_path), whole)


def test_a_signal_in_the_last_evaluation_is_not_lost(tmp_path, whole):
    class Asked(Tiny):
        def evaluate(self, model):
            if len(self.seen) == self.steps:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().evaluate(model)

    with pytest.raises(Stopped):
        context_at(tmp_path).fit(Asked())
    context, task = context_at(tmp_path), Tiny()
    assert same(context.fit(task).state_dict(), whole)
    assert task.seen == []
    assert context.final["error"] > 0


def test_a_second_ctrl_c_stops_at_once_and_handlers_are_given_back(tmp_path):
    before = signal.getsignal(signal.SIGINT)

    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, at_step={4: twice})
    assert signal.getsignal(signal.SIGINT) is before


def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_is_used(tmp_path, capsys, whole):
    train(tmp_path)
    (tmp_path / "checkpoints" / "model" / "step-000006" / WEIGHTS).write_bytes(b"damaged")
    context, task = context_at(tmp_path), Tiny()
    model = context.fit(task)
    assert task.seen == [4, 5]
    assert "step-000006 is damaged" in capsys.readouterr().err
    assert same(model.state_dict(), whole)


def test_a_full_disk_stops_the_run_which_goes_on_when_there_is_room(tmp_path, monkeypatch, whole):
    real = os.fsync

    def full(handle):
        if (tmp_path / "checkpoints" / "model" / "step-000004").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="No space left on device"):
        train(tmp_path)
    monkeypatch.undo()
    assert (tmp_path / "checkpoints" / "model" / "step-000004").is_dir()
    assert same(train(tmp_path), whole)


def test_metrics_are_cut_back_to_the_checkpoint(tmp_path):
    train(tmp_path / "whole")
    with pytest.raises(ZeroDivisionError):
        train(tmp_path / "broken", at_step={5: lambda: 1 / 0})
    assert logged(tmp_path / "broken")[-1]["step"] == 5
    with open(tmp_path / "broken" / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "ki')
    train(tmp_path / "broken")
    assert logged(tmp_path / "broken") == logged(tmp_path / "whole")


def test_a_fit_that_had_finished_is_loaded_and_all_that_follows_is_the_same(tmp_path):
    import torch

    lives = []
    for _ in range(2):
        context, task = context_at(tmp_path), Tiny()
        model = context.fit(task)
        lives.append((model.state_dict(), context.final, context.parameters, torch.rand(3).tolist()))
        assert not model.training
    assert task.seen == []
    assert same(lives[0][0], lives[1][0])
    assert lives[0][1:] == lives[1][1:]


def test_seconds_are_those_of_all_lives(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("ncode_lab.training.progress.time.perf_counter", lambda: now[0])

    def life(begins, at_step=None):
        now[0] = begins
        context = context_at(tmp_path)
        for name in ("encoder", "decoder"):
            now[0] += 10
            context.fit(Tiny(at_step={3: lambda: 1 / 0} if name == at_step else None), name)
        now[0] += 1
        return context.seconds

    with pytest.raises(ZeroDivisionError):
        life(1000.0, at_step="decoder")
    # 20 s up to the last checkpoint of the decoder, and this life.
    assert life(5000.0) == 20 + 21
    # One that has nothing left to train.
    assert life(9000.0) == 20 + 20 + 21


def test_other_settings_than_the_checkpoint_was_made_with_are_told_so(tmp_path):
    train(tmp_path)
    with pytest.raises(InputError, match="holds step 6 of a run that now has 4 steps"):
        train(tmp_path, steps=4)
    with pytest.raises(InputError, match="does not fit the model"):
        train(tmp_path, noisy=False)


def test_checkpoints_come_by_the_clock_unless_told(tmp_path, monkeypatch):
    monkeypatch.setattr("ncode_lab.training.loop.SECONDS_BETWEEN_CHECKPOINTS", -1.0)
    train(tmp_path, options={"save_every": 0}, progress=Progress(quiet=True))
    assert sorted(os.listdir(tmp_path / "checkpoints" / "model")) == ["step-000005", "step-000006"]
