"""One process of the test of distributed training: python ddp_worker.py RANK WORLD FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ncode

GRADIENTS = ("discrete", "adjoint")


class Net(nn.Module):
    """Gamma, f, g and a cost, one parameter that is used only late in the solve, one frozen and one never used."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.gamma = nn.Linear(2, 2)
        self.f = nn.Linear(2, 2)
        self.g = nn.Linear(2, 2)
        self.price = nn.Parameter(torch.ones(2))
        self.late = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))

    def dynamics(self, t: Tensor, x: Tensor, theta: Tensor) -> Tensor:
        slope = torch.tanh(self.f(x) + theta) * self.frozen
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


def train(model: nn.Module, x: Tensor, gradient: str) -> None:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        model(x, gradient).mean().backward()
        optimizer.step()


def data() -> Tensor:
    return torch.randn(8, 2, generator=torch.Generator().manual_seed(1))


def main() -> None:
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=world)
    x = data().chunk(world)[rank]
    for gradient in GRADIENTS:
        # One parameter is never touched: DDP must look for such parameters, as it must without us.
        net = Net()
        train(DistributedDataParallel(net, find_unused_parameters=True), x, gradient)
        torch.save(net.state_dict(), folder / f"{gradient}-{rank}.pt")
        # Without unused parameters it need not look.
        net = Net()
        net.unused.requires_grad_(False)
        train(DistributedDataParallel(net), x, gradient)
        torch.save(net.state_dict(), folder / f"{gradient}-plain-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
