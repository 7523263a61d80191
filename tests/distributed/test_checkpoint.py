import pytest
import torch
from torch import nn

import ncode
from ncode.distributed import RankError, load_checkpoint, save_checkpoint


@pytest.fixture
def training():
    model = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), nn.Linear(3, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def step():
        optimizer.zero_grad()
        model(torch.randn(8, 2)).square().mean().backward()
        optimizer.step()
        schedule.step()

    step()
    return {"model": model, "optimizer": optimizer, "schedule": schedule}, step


def copy(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_a_training_continues_as_if_it_had_not_been_interrupted(training, tmp_path):
    state, step = training
    save_checkpoint(tmp_path, 1, **state)
    runs = []
    for _ in range(2):
        for _ in range(3):
            step()
        runs.append((copy(state["model"]), state["schedule"].get_last_lr()))
        assert load_checkpoint(tmp_path, **state) == 1
    torch.testing.assert_close(runs[0], runs[1], rtol=0, atol=0)


def test_weights_load_without_the_optimiser(training, tmp_path):
    state, step = training
    save_checkpoint(tmp_path, 1, **state)
    saved = copy(state["model"])
    step()
    load_checkpoint(tmp_path, state["model"])
    torch.testing.assert_close(copy(state["model"]), saved, rtol=0, atol=0)


def test_a_new_optimiser_is_restored_even_if_there_are_gradients(training, tmp_path):
    state, _ = training
    save_checkpoint(tmp_path, 1, **state)
    new = torch.optim.AdamW(state["model"].parameters())
    state["model"](torch.randn(8, 2)).sum().backward()
    load_checkpoint(tmp_path, state["model"], new)
    torch.testing.assert_close(new.state_dict()["state"], state["optimizer"].state_dict()["state"], rtol=0, atol=0)


def test_an_incomplete_checkpoint_does_not_count(training, tmp_path):
    state, step = training
    save_checkpoint(tmp_path, 1, **state)
    saved = copy(state["model"])
    step()
    save_checkpoint(tmp_path, 2, **state)
    (tmp_path / "step-0000000002" / ".metadata").unlink()  # as if the process had been killed before
    assert load_checkpoint(tmp_path, **state) == 1
    torch.testing.assert_close(copy(state["model"]), saved, rtol=0, atol=0)
    save_checkpoint(tmp_path, 2, **state)
    assert load_checkpoint(tmp_path, **state) == 2


def test_old_checkpoints_are_removed(training, tmp_path):
    state, _ = training
    (tmp_path / "step-notes").mkdir()
    for step in (1, 5, 20, 300):
        save_checkpoint(tmp_path, step, **state, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-0000000020", "step-0000000300", "step-notes"]


def test_an_older_step_is_not_saved_over_a_later_one(training, tmp_path):
    state, _ = training
    save_checkpoint(tmp_path, 10, **state)
    with pytest.raises(RankError, match="has a checkpoint of a later step, step-0000000010: resume it"):
        save_checkpoint(tmp_path, 5, **state)
    assert load_checkpoint(tmp_path, **state) == 10


def test_without_a_checkpoint_a_training_begins_at_step_0(training, tmp_path):
    state, _ = training
    before = copy(state["model"])
    assert load_checkpoint(tmp_path / "missing", **state) == 0
    torch.testing.assert_close(copy(state["model"]), before, rtol=0, atol=0)


def test_the_number_of_steps_is_checked(training, tmp_path):
    with pytest.raises(ncode.InputError, match="step must be at least 1; given 0"):
        save_checkpoint(tmp_path, 0, **training[0])
