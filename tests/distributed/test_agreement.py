"""In a single process; test_processes.py has the same with several."""

import pytest
import torch
from torch import nn

import ncode
from ncode import Status
from ncode.distributed import RankError, agreement, all_ok, raise_together, warm_up


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (True, True),
        (False, False),
        (Status.OK, True),
        (Status.MAX_STEPS, False),
        ((Status.OK, Status.NOT_FINITE), False),
        ([Status.OK, Status.OK], True),
        (torch.tensor([True, False]), False),
        (torch.tensor([0, 0], dtype=torch.int32), True),
        (torch.tensor([0, 2], dtype=torch.int32), False),
        (torch.zeros(0, dtype=torch.int32), True),
    ],
)
def test_all_kinds_of_outcomes_are_understood(outcome, expected):
    assert all_ok(outcome) is expected


def test_models_that_report_failed_samples_are_understood():
    block = ncode.NCODE(ncode.dynamics.ConvBlock(1, filters=2), max_steps=1)
    model = ncode.models.Classifier(block, (1, 8, 8))
    assert not all_ok(model.classify(torch.rand(3, 1, 8, 8)))
    assert all_ok(model.classify(torch.rand(3, 1, 8, 8), max_steps=1000))


def test_other_outcomes_are_refused():
    with pytest.raises(ncode.InputError, match=r"all_ok takes a Solution, a Status, .* given str"):
        all_ok("fine")


def test_a_single_process_raises_the_same_error_as_several():
    with pytest.raises(RankError, match="rank 0: ZeroDivisionError") as caught, raise_together():
        _ = 1 / 0
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_block_without_an_error_is_left_alone():
    with raise_together():
        done = True
    assert done


def test_an_interruption_by_the_user_is_not_held_up():
    with pytest.raises(KeyboardInterrupt), raise_together():
        raise KeyboardInterrupt


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (x, None), lambda x: {"a": [x]}])
def test_a_warm_up_runs_backward_and_changes_nothing(wrap):
    class Noisy(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(2, 2), nn.BatchNorm1d(2)
            self.pulled = 0

        def forward(self, x):
            y = self.norm(self.linear(x)) + torch.rand(2)
            y.register_hook(lambda grad: setattr(self, "pulled", self.pulled + 1))
            return wrap(y)

    model = Noisy()
    before, random = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    with torch.no_grad():
        warm_up(model, torch.randn(4, 2, generator=torch.Generator()))
    assert model.pulled == 1
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert torch.equal(random, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.slow
def test_a_warm_up_compiles_all_that_a_training_step_needs(traced):
    block = ncode.NCODE(ncode.dynamics.MLP(2, hidden=4), compile="inductor")
    x = torch.randn(16, 2)
    warm_up(block, x)
    count = len(traced)
    assert count > 0
    block(x).sum().backward()
    assert len(traced) == count


def test_an_error_in_a_warm_up_names_the_rank():
    with pytest.raises(RankError, match=r"rank 0: InputError: .*expects a state"):
        warm_up(ncode.NCODE(ncode.dynamics.MLP(2, hidden=4)), torch.zeros(4, 3))


@pytest.mark.parametrize(
    "use",
    [
        lambda folder: ncode.distributed.BalancedBatchSampler(10, 4),
        lambda folder: warm_up(nn.Linear(2, 2), torch.zeros(1, 2)),
        lambda folder: ncode.distributed.save_checkpoint(folder, 1, nn.Linear(2, 2)),
    ],
)
def test_processes_that_are_no_group_are_warned_once(use, monkeypatch, tmp_path):
    agreement._warn_of.cache_clear()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(
        UserWarning, match=r"2 processes were started .* Call torch.distributed.init_process_group\(\)"
    ) as found:
        use(tmp_path)
    assert found[0].filename == __file__
    use(tmp_path / "again")


@pytest.mark.parametrize("ranks", ["", "1", "two"])
def test_a_single_process_is_not_warned(ranks, monkeypatch):
    agreement._warn_of.cache_clear()
    monkeypatch.setenv("WORLD_SIZE", ranks)
    ncode.distributed.BalancedBatchSampler(10, 4)


def test_ranks_that_are_given_need_no_group(monkeypatch):
    agreement._warn_of.cache_clear()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert ncode.distributed.BalancedBatchSampler(10, 4, rank=1, ranks=2).ranks == 2
