import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

import ncode
from ncode.distributed import BalancedBatchSampler


def samplers(samples, batch_size, ranks, costs=None, **options):
    """One sampler per rank, in the second epoch, after all samples have been measured."""
    made = [BalancedBatchSampler(samples, batch_size, rank=rank, ranks=ranks, **options) for rank in range(ranks)]
    for sampler in made:
        if costs is not None:
            sampler.update(range(samples), costs)
        sampler.set_epoch(1)
    return made


def batches(made):
    """The batches of an epoch: for each step those of all ranks."""
    return list(zip(*map(list, made), strict=True))


def together(parts):
    """The samples of several batches."""
    return [index for part in parts for index in part]


def skewed(samples):
    """Costs as a training has them: most are near the smallest, few are far above."""
    return 14 + 6 * torch.distributions.Exponential(0.4).sample((samples,)).floor()


@given(
    samples=st.integers(1, 300),
    batch_size=st.integers(1, 64),
    ranks=st.integers(1, 9),
    window=st.integers(1, 5),
    drop_last=st.booleans(),
    measured=st.booleans(),
)
def test_every_sample_is_in_one_batch_and_all_ranks_have_equally_many(
    samples, batch_size, ranks, window, drop_last, measured
):
    costs = torch.randint(1, 9, (samples,)) if measured else None
    try:
        made = samplers(samples, batch_size, ranks, costs, window=window, drop_last=drop_last)
    except ncode.InputError:
        assert min(samples, batch_size) < ranks or (drop_last and samples < batch_size)
        return
    steps = batches(made)
    assert len(steps) == len(made[0])
    shown = together(map(together, steps))
    assert len(shown) == len(set(shown)) == (samples // batch_size * batch_size if drop_last else samples)
    for step in steps:
        sizes = [len(batch) for batch in step]
        assert min(sizes) >= 1
        assert max(sizes) - min(sizes) <= 1
    for step in steps[:-1]:
        assert sum(map(len, step)) == batch_size


def test_batches_are_random_but_repeat_with_the_seed_and_the_epoch():
    one, same, other = (BalancedBatchSampler(100, 10, seed=seed) for seed in (0, 0, 1))
    first = list(one)
    assert first == list(one) == list(same)
    assert first != list(other)
    one.set_epoch(1)
    assert first != list(one)
    assert sorted(together(first)) == sorted(together(one)) != together(first)


@pytest.mark.parametrize("ranks", [2, 8, 32])
@pytest.mark.parametrize("window", [1, 4])
def test_ranks_have_nearly_equal_sums_of_costs(ranks, window):
    costs = skewed(4096)

    def idle(made):
        """The part of the time that ranks wait, if it follows the sum of costs."""
        of_ranks = torch.stack([torch.stack([costs[batch].sum() for batch in step]) for step in batches(made)])
        return 1 - float(of_ranks.mean() / of_ranks.amax(1).mean())

    random, balanced = (idle(samplers(4096, 16 * ranks, ranks, given, window=window)) for given in (None, costs))
    assert balanced < random / 5


def test_a_window_makes_few_steps_long_instead_of_all():
    costs = skewed(4096)
    times = [
        sum(float(costs[together(step)].max()) for step in batches(samplers(4096, 64, 4, costs, window=window)))
        for window in (1, 4, 16)
    ]
    assert times[2] < 0.8 * times[1] < 0.8 * 0.8 * times[0]


def test_the_steps_of_a_window_come_in_random_order():
    costs = torch.arange(1.0, 4097.0)
    means = [float(costs[batch].mean()) for (batch,) in batches(samplers(4096, 64, 1, costs, window=8))]
    windows = [means[first : first + 8] for first in range(0, 64, 8)]
    ranked = {tuple(sorted(range(8), key=window.__getitem__)) for window in windows}
    assert len(ranked) > 4  # of 8 windows
    assert max(map(min, windows)) < min(map(max, windows))  # each has cheap and expensive steps


def test_with_a_window_of_one_step_costs_decide_only_who_gets_which_sample():
    before = batches(samplers(200, 20, 4, window=1))
    after = batches(samplers(200, 20, 4, skewed(200), window=1))
    assert [set(together(step)) for step in before] == [set(together(step)) for step in after]
    assert before != after


@pytest.mark.parametrize("window", [1, 8])
def test_the_samples_of_a_step_do_not_depend_on_the_number_of_ranks(window):
    costs = skewed(500)
    two, five = (batches(samplers(500, 40, ranks, costs, window=window)) for ranks in (2, 5))
    assert [set(together(step)) for step in two] == [set(together(step)) for step in five]


def test_costs_are_used_from_the_next_epoch_on_and_unknown_ones_are_taken_as_average():
    sampler = BalancedBatchSampler(6, 2)
    sampler.update([0, 1, 1], torch.tensor([10, 20, 40]))
    sampler.set_epoch(0)
    assert sampler.costs.tolist() == [0] * 6
    sampler.set_epoch(1)
    assert sampler.costs.tolist() == [10, 30, 0, 0, 0, 0]
    sampler.update([0], [50])
    sampler.set_epoch(2)
    assert sampler.costs.tolist() == [50, 30, 0, 0, 0, 0]
    assert sampler._expected_costs().tolist() == [50, 30, 40, 40, 40, 40]


@pytest.mark.parametrize("stop", [0, 3, 9])
def test_a_resumed_sampler_continues_with_the_batches_that_are_left(stop):
    costs = skewed(100)
    whole, resumed = samplers(100, 10, 1, costs, window=4)[0], BalancedBatchSampler(100, 10, window=4)
    left = list(whole)[stop:]
    whole.update(range(50), costs[:50] + 1)  # measured in this epoch, for the next one
    resumed.load_state_dict(whole.state_dict())
    resumed.set_epoch(1, step=stop)
    assert list(resumed) == left
    for sampler in (whole, resumed):
        sampler.set_epoch(2)
    assert list(resumed) == list(whole)


def test_a_data_loader_takes_it_as_its_batch_sampler():
    data = TensorDataset(torch.arange(10))
    sampler = BalancedBatchSampler(data, 4)
    shown = [batch.tolist() for (batch,) in DataLoader(data, batch_sampler=sampler)]
    assert shown == list(sampler)
    assert [len(batch) for batch in shown] == [4, 4, 2]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: BalancedBatchSampler(100, 3, ranks=4), "batch_size is 3, but each of 4 ranks needs a sample"),
        (lambda: BalancedBatchSampler(3, 8, ranks=4), "the number of samples is 3, but each of 4 ranks"),
        (lambda: BalancedBatchSampler(3, 8, drop_last=True), "3 samples do not fill a batch of 8"),
        (lambda: BalancedBatchSampler(8, 4, rank=2, ranks=2), "rank must be below the number of ranks, 2; given 2"),
        (lambda: BalancedBatchSampler(8, 4).update([0, 1], [1]), r"given shapes \(2,\) and \(1,\)"),
        (lambda: BalancedBatchSampler(8, 4).update([8], [1]), "indices must be from 0 to 7; given 8 to 8"),
        (
            lambda: BalancedBatchSampler(8, 4).load_state_dict(BalancedBatchSampler(9, 4).state_dict()),
            "the state is that of 9 samples, but this sampler has 8",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(make, sentence):
    with pytest.raises(ncode.InputError, match=sentence):
        make()


def test_another_default_dtype_does_not_matter():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        sampler = ncode.distributed.BalancedBatchSampler(8, 4)
        for indices in sampler:
            sampler.update(indices, torch.ones(len(indices)))
        assert sampler.state_dict()["next_costs"].dtype == torch.float32
    finally:
        torch.set_default_dtype(before)
