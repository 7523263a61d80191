"""`BalancedBatchSampler`: batches that cost each rank the same, by the evaluations that their samples last needed.

A step of a training with several ranks takes as long as its slowest rank. With a step size per sample, the time of a
batch lies between two bounds. If the dynamics are large, it follows the sum of the evaluations (NFE) of its samples,
because samples that are finished are left out. If they are small, it follows the largest NFE, because the time of an
evaluation hardly depends on the number of samples.

- Sum. The samples of a step are sorted by NFE and dealt out in tiers of one sample per rank, each time the most
  expensive sample to the rank with the smallest sum so far.
- Largest. The most expensive sample of a step decides, whoever gets it. With a window of several steps, their samples
  are sorted together, so that each step has samples of similar NFE: few steps are long, instead of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import Sampler

from ..errors import InputError, check_count
from .agreement import Group, collective_device, is_distributed, warn_if_alone


class BalancedBatchSampler(Sampler[list[int]]):
    """Deal out samples such that ranks finish together: a `batch_sampler` for `torch.utils.data.DataLoader`.

    In each epoch every sample is in exactly one batch of one rank, and all ranks have the same number of batches.
    Which samples a step has depends on the seed and the epoch, as with torch's `DistributedSampler`: costs and the
    number of ranks only decide who gets which of them.

    Args:
        data: The data set, or its length.
        batch_size: Samples per step over all ranks; each rank gets its share, up to one sample more or less.
        window: Number of steps whose samples are sorted by cost, so that each step has similar ones; the steps of a
            window then come in random order. More saves time where small dynamics are solved, and makes batches less
            random. Which samples a step has then depends on the measured costs too, which rounding can change.
        seed: Of the order.
        drop_last: Whether to leave out the samples that do not fill the last step. Otherwise the last step is smaller,
            or larger if fewer samples are left than there are ranks.
        group: The ranks. Default: all.
        rank, ranks: The number of this rank, and of all. Default: those of the group.

    >>> import torch, ncode
    >>> sampler = ncode.distributed.BalancedBatchSampler(1000, batch_size=64)
    >>> f, x = ncode.dynamics.MLP(2, hidden=16), torch.randn(1000, 2)
    >>> block = ncode.NCODE(f, t1=5.0)
    >>> for epoch in range(2):
    ...     sampler.set_epoch(epoch)
    ...     for indices in sampler:
    ...         sol = block.solve(x[indices])
    ...         sampler.update(indices, sol.stats.nfe)
    >>> len(sampler), len(indices)
    (16, 40)
    """

    def __init__(
        self,
        data: Sized | int,
        batch_size: int,
        *,
        window: int = 1,
        seed: int = 0,
        drop_last: bool = False,
        group: Group = None,
        rank: int | None = None,
        ranks: int | None = None,
    ):
        self.samples = check_count("the number of samples", data if isinstance(data, int) else len(data))
        self.batch_size, self.window = check_count("batch_size", batch_size), check_count("window", window)
        self.seed, self.drop_last, self.group = check_count("seed", seed, low=0), drop_last, group
        if ranks is None:
            warn_if_alone()
        found = (dist.get_rank(group), dist.get_world_size(group)) if is_distributed() else (0, 1)
        self.rank = found[0] if rank is None else check_count("rank", rank, low=0)
        self.ranks = found[1] if ranks is None else check_count("ranks", ranks)
        if self.rank >= self.ranks:
            raise InputError(f"rank must be below the number of ranks, {self.ranks}; given {self.rank}")
        smaller, name = min((self.batch_size, "batch_size"), (self.samples, "the number of samples"))
        if smaller < self.ranks:
            raise InputError(f"{name} is {smaller}, but each of {self.ranks} ranks needs a sample: use fewer ranks")
        if self.drop_last and self.samples < self.batch_size:
            raise InputError(f"{self.samples} samples do not fill a batch of {self.batch_size}: use drop_last=False")
        self.epoch = self.first_step = 0
        self.costs = torch.zeros(self.samples, dtype=torch.float32)  # of this epoch; 0: unknown
        self.next_costs = torch.zeros(self.samples, dtype=torch.float32)
        self._measured: list[tuple[Tensor, Tensor]] = []

    def set_epoch(self, epoch: int, step: int = 0) -> None:
        """Begin an epoch with the costs that all ranks have measured. Every rank must call it.

        Args:
            epoch: The number of the epoch, from 0.
            step: The step to begin with, for a training that is resumed in the middle of an epoch.
        """
        self._exchange()
        if epoch != self.epoch:
            self.epoch, self.costs = check_count("epoch", epoch, low=0), self.next_costs.clone()
        self.first_step = check_count("step", step, low=0)

    def update(self, indices: Any, nfe: Any) -> None:
        """Remember what samples have cost: `sol.stats.nfe` of those with these indices. It is used in the next epoch.

        This does not communicate: ranks exchange what they have measured in `set_epoch`.
        """
        where, cost = torch.as_tensor(indices, device="cpu"), torch.as_tensor(nfe).detach()
        if where.dim() != 1 or where.shape != cost.shape:
            raise InputError(
                "update takes the indices of samples and one number of evaluations for each; given shapes"
                f" {tuple(where.shape)} and {tuple(cost.shape)}"
            )
        low, high = (int(where.min()), int(where.max())) if len(where) else (0, 0)
        if low < 0 or high >= self.samples:
            raise InputError(f"indices must be from 0 to {self.samples - 1}; given {low} to {high}")
        self._measured.append((where, cost))  # the costs stay on their device: copying them would synchronise

    def __len__(self) -> int:
        """Steps per epoch."""
        return len(self._step_sizes())

    def __iter__(self) -> Iterator[list[int]]:
        """The batches of this rank, from the step given to `set_epoch`."""
        for batch in self.deal()[self.first_step :, self.rank].tolist():
            yield [index for index in batch if index >= 0]

    def deal(self) -> Tensor:
        """The batches of all ranks in this epoch, (steps, ranks, samples); -1 where one has a sample less."""
        costs = self._expected_costs()
        steps = self._steps(costs)
        tiers = -(-max(map(len, steps)) // self.ranks)
        samples = torch.full((len(steps), tiers * self.ranks), -1)
        for row, step in zip(samples, steps, strict=True):
            row[: len(step)] = step
        costs = torch.where(samples >= 0, costs[samples], 0)
        dealt = torch.empty(len(steps), self.ranks, tiers, dtype=torch.long)
        sums = torch.zeros(len(steps), self.ranks, dtype=torch.float32)
        for tier in range(tiers):
            part = slice(tier * self.ranks, (tier + 1) * self.ranks)
            receivers = sums.argsort(dim=1, stable=True)  # the most expensive sample goes to the smallest sum
            dealt[:, :, tier].scatter_(1, receivers, samples[:, part])
            sums.scatter_add_(1, receivers, costs[:, part])
        return dealt

    def state_dict(self) -> dict[str, Any]:
        """The epoch and all costs, equal on all ranks. Every rank must call it."""
        self._exchange()
        return {"epoch": self.epoch, "costs": self.costs.clone(), "next_costs": self.next_costs.clone()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue with the costs of an earlier sampler, of the same data but perhaps of another number of ranks."""
        if (given := len(state_dict["costs"])) != self.samples:
            raise InputError(f"the state is that of {given} samples, but this sampler has {self.samples}")
        self.epoch = int(state_dict["epoch"])
        self.costs, self.next_costs = (state_dict[name].clone() for name in ("costs", "next_costs"))
        self._measured.clear()

    def _exchange(self) -> None:
        """Make all ranks know what each has measured; of several values for one sample, the mean."""
        found = torch.zeros(2, self.samples, dtype=torch.float32)  # sums, and how many
        for indices, cost in self._measured:
            found[0].index_add_(0, indices, cost.cpu().float())
            found[1].index_add_(0, indices, torch.ones(len(indices), dtype=torch.float32))
        self._measured.clear()
        if is_distributed():
            found = found.to(collective_device(self.group))
            dist.all_reduce(found, group=self.group)
            found = found.cpu()
        total, count = found
        self.next_costs = torch.where(count > 0, total / count.clamp_min(1), self.next_costs)

    def _step_sizes(self) -> list[int]:
        full, rest = divmod(self.samples, self.batch_size)
        sizes = [self.batch_size] * full
        if rest and not self.drop_last:
            if rest < self.ranks and full:
                sizes[-1] += rest
            else:
                sizes.append(rest)
        return sizes

    def _expected_costs(self) -> Tensor:
        known = self.costs > 0
        mean = self.costs[known].mean() if bool(known.any()) else torch.ones(())
        return torch.where(known, self.costs, mean)

    def _steps(self, costs: Tensor) -> list[Tensor]:
        """The samples of each step, the most expensive first: equal on all ranks."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + self.epoch) % 2**63)
        order = torch.randperm(self.samples, generator=generator)
        sizes, steps = self._step_sizes(), {}
        for first in range(0, len(sizes), self.window):
            numbers = range(first, min(first + self.window, len(sizes)))
            count = sum(sizes[number] for number in numbers)
            samples, order = order[:count], order[count:]
            samples = samples[costs[samples].argsort(descending=True, stable=True)]
            shuffled = [numbers[i] for i in torch.randperm(len(numbers), generator=generator).tolist()]
            parts = samples.split([sizes[number] for number in shuffled])
            steps.update(zip(shuffled, parts, strict=True))
        return [steps[number] for number in range(len(sizes))]
