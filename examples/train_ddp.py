"""Train an N-CODE classifier, one process per device. Stop it at any time, and continue on any number of processes.

python examples/train_ddp.py                           # a laptop
torchrun --nproc-per-node 2 examples/train_ddp.py      # a node with two GPUs, or without any
srun torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint $HEAD:29500 examples/train_ddp.py
# on Slurm, with HEAD=$(scontrol show hostnames | head -1)
"""

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

import ncode
from ncode.distributed import BalancedBatchSampler, all_ok, load_checkpoint, save_checkpoint, warm_up


class Model(nn.Module):  # an open-loop N-CODE moves points of the plane until a line separates the classes
    def __init__(self, compile: bool) -> None:
        super().__init__()
        gamma = nn.Sequential(nn.Linear(2, 32), nn.Tanh())
        self.block = ncode.NCODE(ncode.dynamics.MLP(2, hidden=16), ncode.OpenLoop(gamma), rtol=1e-4, compile=compile)
        self.readout = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, ncode.Solution]:
        solution = self.block.solve(x, throw=False)
        return self.readout(solution.x)[:, 0], solution


def rings(samples: int) -> tuple[Tensor, Tensor]:  # points of a disc (class 0) and of a ring around it (class 1)
    y, (radius, angle) = torch.arange(samples) % 2, torch.rand(2, samples)
    return torch.view_as_real(torch.polar(0.5 * radius + y, 2 * torch.pi * angle)), y.float()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("samples", 4096), ("batch-size", 256), ("epochs", 5), ("save-every", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--folder", default="out/train_ddp", help="where checkpoints are")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if "RANK" in os.environ:  # started by torchrun
        if device == "cuda":
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group()
    torch.manual_seed(0)
    x, y = (each.to(device) for each in rings(args.samples))
    sampler, model = BalancedBatchSampler(args.samples, args.batch_size), Model(args.compile).to(device)
    warm_up(model, x[: args.batch_size // sampler.ranks])  # compile before ranks wait for each other
    parallel = nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.Adam(parallel.parameters(), lr=0.01)
    step = load_checkpoint(args.folder, parallel, optimizer, sampler=sampler)
    if sampler.rank == 0 and step >= args.epochs * len(sampler):
        print(f"training is complete (step {step}); delete {args.folder} to start anew")
    for epoch in range(step // len(sampler), args.epochs):
        sampler.set_epoch(epoch, step % len(sampler))
        for step, indices in enumerate(sampler, step + 1):  # noqa: B020
            logits, solution = parallel(x[indices])
            sampler.update(indices, solution.stats.nfe)
            if all_ok(solution):  # on all ranks; otherwise all of them leave out this batch
                optimizer.zero_grad()
                cross_entropy(logits, y[indices]).backward()
                optimizer.step()
            if step % args.save_every == 0 or step == args.epochs * len(sampler):
                save_checkpoint(args.folder, step, parallel, optimizer, sampler=sampler)
        if sampler.rank == 0:
            print(f"epoch {epoch + 1}: loss {cross_entropy(model(x)[0].detach(), y):.6f}", flush=True)
    if dist.is_initialized():
        del parallel, optimizer  # what holds the group; threads of gloo that outlive Python abort it
        gc.collect()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
