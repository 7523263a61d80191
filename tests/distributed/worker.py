"""Processes of the tests of distributed training: python worker.py FOLDER RANKS SCENARIO...

One interpreter imports torch and forks the ranks. Each rank writes what it found to FOLDER/SCENARIO-RANKS-RANK.pt. The
exit codes of all ranks are printed.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # FSDP2 needs it: imported once, before ranks are forked
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import fsdp
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import ncode
from ncode.distributed import (
    BalancedBatchSampler,
    RankError,
    all_ok,
    load_checkpoint,
    raise_together,
    save_checkpoint,
    warm_up,
)

DOUBLE = torch.float64
GRADIENTS = ("discrete", "adjoint", "autograd")
STEPS, SAVED, KILLED = 8, 4, 6  # three steps per epoch: both are in the middle of one


class Net(nn.Module):
    """Gamma, f, g and a cost; parameters that are used late, by some samples only, never, and a frozen one."""

    def __init__(self, branches: bool = True) -> None:
        super().__init__()
        self.branches = branches
        self.gamma, self.f, self.g = (nn.Linear(2, 2) for _ in range(3))
        self.price, self.late, self.some, self.unused = (nn.Parameter(torch.ones(2)) for _ in range(4))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        initialise(self)

    @classmethod
    def trained_by(cls, gradient: str) -> Net:
        """With gradient="autograd" the graph is torch's own, and all ranks must use the same parameters."""
        return cls(branches=gradient != "autograd")

    def dynamics(self, t: Tensor, x: Tensor, theta: Tensor) -> Tensor:
        slope = torch.tanh(self.f(x) + theta) * self.frozen
        if self.branches and bool((x[:, 0] > 2).any()):  # only the first rank has such a sample
            slope = slope + self.some * (x[:, :1] > 2)
        return slope + self.late * (t[:, None] > 0.5) if bool((t > 0.5).any()) else slope

    def forward(self, x: Tensor, gradient: str) -> Tensor:
        sol = ncode.solve(
            self.dynamics,
            x,
            0.0,
            1.0,
            theta=self.gamma(x),
            feedback=lambda t, x, theta: torch.tanh(self.g(x)) - theta,
            cost=lambda t, x, theta: (self.price * x.square()).sum(1),
            dt=0.1,
            method="rk4",
            gradient=gradient,
        )
        return sol.x.square().sum(1) + sol.cost


class Model(nn.Module):
    """A layer, a closed-loop N-CODE with steps of each sample's own, and a layer."""

    def __init__(self) -> None:
        super().__init__()
        dynamics, controller = ncode.NCODE.family()["closed-loop N-CODE"].choose(2)
        self.first, self.block, self.last = nn.Linear(2, 2), ncode.NCODE(dynamics, controller), nn.Linear(2, 1)
        initialise(self)

    def forward(self, x: Tensor, **changes: Any) -> tuple[Tensor, Tensor]:
        sol = self.block.solve(self.first(x), throw=False, **changes)
        return self.last(sol.x), sol.stats.nfe


def fully_shard(module: nn.Module, **options: Any) -> nn.Module:
    """FSDP2 on the CPU, also where there is a GPU."""
    return fsdp.fully_shard(module, mesh=init_device_mesh("cpu", (dist.get_world_size(),)), **options)


def initialise(module: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    module.to(DOUBLE)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator, dtype=DOUBLE))


def data(samples: int = 24) -> Tensor:
    x = torch.randn(samples, 2, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    x[0] = 4.0
    return x * torch.linspace(1.0, 3.0, samples, dtype=DOUBLE)[:, None]  # so that they cost differently


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Weights, whole if they are sharded."""
    weights = {name.removeprefix("module."): value for name, value in model.state_dict().items()}
    return {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in weights.items()}


def train(model: nn.Module, x: Tensor, gradient: str) -> None:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(x, gradient).mean().backward()
        optimizer.step()


class Training:
    """The training that is interrupted and resumed: equal for every number of ranks."""

    def __init__(self, wrap: Any = None) -> None:
        self.x, self.ranks = data(), dist.get_world_size() if dist.is_initialized() else 1
        self.model: nn.Module = Model() if wrap is None else wrap(Model())
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.sampler = BalancedBatchSampler(self.x, 8, window=2)  # batches that depend on costs

    @property
    def state(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "sampler": self.sampler}

    def run(self, first: int, last: int, after_forward: Any = None) -> list[Tensor]:
        """Take the steps from `first` to `last`; returns the evaluations per sample of each step."""
        used, batches = [], iter(())
        for step in range(first, last):
            epoch, within = divmod(step, len(self.sampler))
            if step == first or within == 0:
                self.sampler.set_epoch(epoch, within)
                batches = iter(self.sampler)
            indices = next(batches)
            predicted, nfe = self.model(self.x[indices])
            if after_forward is not None:
                after_forward(step)
            self.sampler.update(indices, nfe)
            used.append(nfe)
            loss = (predicted - self.x[indices].sum(1, keepdim=True)).square().sum() * self.ranks / 8
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return used


# Scenarios: functions of (rank, ranks, folder) that return what the test then looks at.


def weights(rank: int, ranks: int, folder: Path) -> dict[str, Any]:
    """Train under DDP and FSDP2; `handed` counts how often each parameter was given a gradient in a backward pass."""
    found: dict[str, Any] = {}
    x = data(8).chunk(ranks)[rank]
    for gradient in GRADIENTS:
        net = Net.trained_by(gradient)  # one parameter is never used: DDP must look for such, as without a solve
        train(DistributedDataParallel(net, find_unused_parameters=True), x, gradient)
        found[f"{gradient}, DDP that looks for unused parameters"] = net.state_dict()

        net = Net.trained_by(gradient)
        net.unused.requires_grad_(False)
        net.some.requires_grad_(net.branches)
        found[f"{gradient}, handed over"] = handed = Counter[str]()
        for name, parameter in net.named_parameters():
            if parameter.requires_grad:
                count = partial(lambda handed, name, _: handed.update([name]), handed, name)
                parameter.register_post_accumulate_grad_hook(count)
        train(DistributedDataParallel(net), x, gradient)
        found[f"{gradient}, DDP"] = net.state_dict()

        for reshard in (False, True):
            net = Net.trained_by(gradient)
            fully_shard(net, reshard_after_forward=reshard)
            train(net, x, gradient)
            found[f"{gradient}, FSDP2, reshard_after_forward={reshard}"] = state_of(net)
    return found


def sharded_block(rank: int, ranks: int, folder: Path) -> dict[str, Any]:
    """Blocks that are sharded as a whole, within a model, by a method, and in ways that are refused."""
    found: dict[str, Any] = {}
    x = data(8).chunk(ranks)[rank]

    def gradients(model: nn.Module) -> dict[str, Tensor]:
        model(x)[0].sum().div(8 / ranks).backward()
        return {name: parameter.grad.full_tensor() for name, parameter in model.named_parameters()}

    model = Model()
    fully_shard(model)
    found["model"] = gradients(model)
    model = Model()
    fully_shard(model.block, reshard_after_forward=True)
    fsdp.register_fsdp_forward_method(model.block, "solve")
    fully_shard(model, reshard_after_forward=True)
    found["block and model"] = gradients(model)

    def refused(name: str, model: nn.Module, call: Any) -> None:
        try:
            call(model)
        except ncode.InputError as error:
            found[name] = str(error)

    model = Model()
    fully_shard(model.block)
    refused("solve is not forward", model, lambda model: model.block.solve(x))
    model = Model()
    fully_shard(model.block.controller)
    refused("a controller", model, lambda model: model.block(x))
    dynamics = nn.Linear(2, 2).to(DOUBLE)
    fully_shard(dynamics)
    refused("dynamics", dynamics, lambda f: ncode.solve(lambda t, x, theta: f(x), x, 0.0, 1.0))
    buffered = nn.BatchNorm1d(2).to(DOUBLE).eval()
    wrapped = DistributedDataParallel(buffered)
    refused("dynamics under DDP", wrapped, lambda f: ncode.solve(lambda t, x, theta: f(x), x, 0.0, 1.0))
    return found


def failures(rank: int, ranks: int, folder: Path) -> dict[str, Any]:
    """A sample that blows up on one rank."""
    found: dict[str, Any] = {}
    good, bad = torch.tensor([[0.1]]), torch.tensor([[0.1], [9.0]])

    def grow(x: Tensor, throw: bool) -> ncode.Solution:
        return ncode.solve(lambda t, x, theta: x * x, x, 0.0, 1.0, throw=throw)

    sol = grow(bad if rank == 1 else good, throw=False)
    found["all_ok"] = [all_ok(it) for it in (sol, sol.status, sol.codes, sol.ok, bool(sol.ok.all()), True)]
    try:
        with raise_together():
            grow(bad if rank == 1 else good, throw=True)
    except RankError as error:
        found["error"], found["cause"] = error.errors, type(error.__cause__).__name__
    with raise_together():  # and the training goes on
        found["next"] = all_ok(grow(good, throw=True))

    model, x = Model(), data(8).chunk(ranks)[rank]
    wrapped = DistributedDataParallel(model)
    for max_steps in (100, 1 if rank == 1 else 100, 100):  # the second batch is left out
        predicted, _ = wrapped(x, max_steps=max_steps)
        if all_ok(predicted.isfinite()):
            predicted.sum().backward()
    found["gradients"] = {name: parameter.grad for name, parameter in model.named_parameters()}
    return found


class SlowStart(nn.Module):
    """As a module that compiles at its first call, on one rank; with buffers that a call changes."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.seconds = 2.0 if rank == 0 else 0.0
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self.seconds)
        self.seconds = 0.0
        return self.norm(x) * torch.rand(())


def compilation(rank: int, ranks: int, folder: Path) -> dict[str, Any]:
    """One rank takes longer for its first call than the others wait for an all-reduce."""
    found: dict[str, Any] = {}
    x = torch.randn(4, 2)
    for warm in (True, False):
        module, short = SlowStart(rank), dist.new_group(timeout=timedelta(seconds=1))
        before, random = {name: value.clone() for name, value in module.state_dict().items()}, torch.get_rng_state()
        if warm:
            warm_up(module, x)
            found["unchanged"] = all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
            found["unchanged"] &= torch.equal(random, torch.get_rng_state())
            found["gradients"] = [parameter.grad for parameter in module.parameters()]
        try:
            wrapped = DistributedDataParallel(module, process_group=short)
            wrapped(x).sum().backward()
            found[f"warm {warm}"] = "trained"
        except RuntimeError as error:
            found[f"warm {warm}"] = type(error).__name__
    try:
        warm_up(SlowStart(1), x if rank else x[:, :1])
    except RankError as error:
        found["errors on ranks"] = list(error.errors)
    return found


def interrupted(rank: int, ranks: int, folder: Path) -> dict[str, Any]:
    """An uninterrupted training; then one with a checkpoint in which a rank is killed, in backward of the others."""
    whole = Training(DistributedDataParallel)
    used = whole.run(0, STEPS)
    found = {"weights": state_of(whole.model), "costs": whole.sampler.state_dict()["next_costs"], "nfe": used}
    torch.save(found, folder / f"whole-{ranks}-{rank}.pt")

    def end(step: int) -> None:
        if step == KILLED and rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    again = Training(DistributedDataParallel)
    again.run(0, SAVED)
    save_checkpoint(folder / "checkpoints", SAVED, **again.state)
    again.run(SAVED, STEPS, end)
    return found


def resumed(rank: int, ranks: int, folder: Path) -> dict[str, Any]:
    """The interrupted training on another number of ranks, under DDP and then under FSDP2."""
    found: dict[str, Any] = {}
    for name, wrap in (("ddp", DistributedDataParallel), ("fsdp", fully_shard)):
        training = Training(wrap)
        found[f"{name} step"] = step = load_checkpoint(folder / "checkpoints", **training.state)
        training.run(step, STEPS)
        found[name], found[f"{name} costs"] = state_of(training.model), training.sampler.state_dict()["next_costs"]
    save_checkpoint(folder / "sharded", STEPS, **training.state)
    torch.manual_seed(rank)
    save_checkpoint(folder / "random", 1, nn.Linear(1, 1))
    found["drawn"] = torch.rand(3)
    load_checkpoint(folder / "random", nn.Linear(1, 1))
    found["drawn again"] = torch.rand(3)
    return found


def one_rank(folder: Path, rank: int, ranks: int, scenarios: list[str]) -> None:
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting-{ranks}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    for name in scenarios:
        torch.save(globals()[name](rank, ranks, folder), folder / f"{name}-{ranks}-{rank}.pt")
    dist.destroy_process_group()


def main() -> None:
    folder, ranks, *scenarios = Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
    children = []
    for rank in range(ranks):
        child = os.fork()
        if child == 0:
            try:
                one_rank(folder, rank, ranks, scenarios)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
                os._exit(1)
        children.append(child)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))


if __name__ == "__main__":
    main()
