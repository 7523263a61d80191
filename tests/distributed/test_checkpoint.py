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


def cut(checkpoint):
    file = checkpoint / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


DAMAGES = {
    "cut": cut,
    "empty": lambda checkpoint: (checkpoint / "__0_0.distcp").write_bytes(b""),
    "lost": lambda checkpoint: (checkpoint / "__0_0.distcp").unlink(),
    "junk": lambda checkpoint: (checkpoint / ".metadata").write_bytes(50 * b"junk"),
    "no metadata": lambda checkpoint: (checkpoint / ".metadata").write_bytes(b""),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_the_checkpoint_before_a_damaged_one_is_loaded_with_a_warning(damage, training, tmp_path):
    state, step = training
    save_checkpoint(tmp_path, 1, **state)
    saved = copy(state["model"]), state["schedule"].get_last_lr()
    step()
    save_checkpoint(tmp_path, 2, **state)
    damage(tmp_path / "step-0000000002")
    said = r"step-0000000002 is damaged \(.+\): it is now damaged-step-0000000002, and step-0000000001 is loaded"
    with pytest.warns(UserWarning, match=said) as warned:
        assert load_checkpoint(tmp_path, **state) == 1
    assert warned[0].filename == __file__
    torch.testing.assert_close((copy(state["model"]), state["schedule"].get_last_lr()), saved, rtol=0, atol=0)
    save_checkpoint(tmp_path, 2, **state)
    assert load_checkpoint(tmp_path, **state) == 2


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_checkpoint_without_another_is_refused_with_a_sentence(damage, training, tmp_path):
    state, _ = training
    save_checkpoint(tmp_path, 1, **state)
    damage(tmp_path / "step-0000000001")
    with pytest.raises(ncode.InputError, match=r"step-0000000001 is damaged \(.+\), and there is none before it"):
        load_checkpoint(tmp_path, **state)
    assert (tmp_path / "step-0000000001").exists()


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda model: {"model": model, "optimizer": torch.optim.Adagrad(model.parameters())}, "has no optimizer.*sum"),
        (lambda model: {"model": nn.Sequential(nn.Linear(2, 4))}, "Size mismatch"),
        (lambda model: {"model": nn.Linear(2, 3)}, r"has no model\.weight"),
        (lambda model: {"model": model, "scaler": torch.optim.SGD(model.parameters())}, "has no scaler"),
    ],
)
def test_a_checkpoint_of_another_training_is_refused_and_stays(change, wrong, training, tmp_path):
    state, _ = training
    save_checkpoint(tmp_path, 1, **state)
    save_checkpoint(tmp_path, 2, **state)
    with pytest.raises(
        ncode.InputError, match=f"step-0000000002 is not one of this training: .*{wrong}.* Load it with"
    ):
        load_checkpoint(tmp_path, **change(state["model"]))
    assert load_checkpoint(tmp_path, **state) == 2


def test_an_interruption_is_no_damage(training, tmp_path, monkeypatch):
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    def interrupt(*given):
        raise KeyboardInterrupt

    state, _ = training
    save_checkpoint(tmp_path, 1, **state)
    save_checkpoint(tmp_path, 2, **state)
    monkeypatch.setattr(FileSystemReader, "read_data", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load_checkpoint(tmp_path, **state)
    assert (tmp_path / "step-0000000002").exists()
