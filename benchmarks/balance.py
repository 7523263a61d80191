"""How long ranks wait for the slowest of them, with random batches and with `ncode.distributed.BalancedBatchSampler`.

Blocks are trained in this process, and the evaluations (NFE) of every sample in every epoch are recorded. These epochs
are then dealt to 8 to 512 ranks, each by the NFE of the epoch before it. Efficiency is the mean time of all ranks over
that of the slowest, which all others wait for. Each block is trained a second time with batches of similar samples.

    python -m benchmarks.balance                              # train, simulate, draw; about half an hour
    python -m benchmarks.balance --data durations             # one training; the file keeps the others
    python -m benchmarks.balance --recorded                   # simulate the recorded epochs again
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import shlex
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ncode
from ncode.distributed import BalancedBatchSampler

from .environment import describe, prepare

RANKS = (8, 16, 32, 64, 128, 256, 512)
SAMPLERS = {"random": None, "balanced": 1, "balanced, window=8": 8}
COLOURS = {"random": "#888888", "balanced": "#4c72b0", "balanced, window=8": "#dd8452"}


class Workload(NamedTuple):
    """A training: the loss of a batch, given by the indices of its samples, and the NFE of each of them."""

    title: str
    samples: int
    loss: Callable[[Tensor], tuple[Tensor, Tensor]]
    parameters: list[nn.Parameter]
    batch_size: int
    lr: float


def annuli(options: argparse.Namespace) -> Workload:
    """Points of a disc and of a ring around it, by an open-loop N-CODE."""
    samples = 2048 if options.quick else 65536
    y = torch.arange(samples) % 2
    radius, angle = torch.rand(2, samples)
    x = torch.view_as_real(torch.polar(0.5 * radius + y, 2 * torch.pi * angle))
    gamma = nn.Sequential(nn.Linear(2, 32), nn.Tanh())
    block = ncode.NCODE(ncode.dynamics.MLP(2, hidden=16), ncode.OpenLoop(gamma), rtol=1e-4)
    readout = nn.Linear(2, 2)

    def loss(indices: Tensor) -> tuple[Tensor, Tensor]:
        solution = block.solve(x[indices])
        return F.cross_entropy(readout(solution.x), y[indices]), solution.stats.nfe

    title = f"annuli: {samples:,} points, MLP with 16 hidden units"
    return Workload(title, samples, loss, [*block.parameters(), *readout.parameters()], 1024, 3e-3)


def durations(options: argparse.Namespace) -> Workload:
    """Where Van der Pol oscillators of various stiffness are after various times, by a block that is told both."""
    samples = 2048 if options.quick else 65536
    x, mu, t1 = torch.randn(samples, 2), 0.5 + 3.5 * torch.rand(samples, 1), 0.5 * 16 ** torch.rand(samples)

    def van_der_pol(t: Tensor, x: Tensor, mu: Tensor) -> Tensor:
        position, velocity = x[:, :1], x[:, 1:]
        return torch.cat([velocity, mu * (1 - position**2) * velocity - position], 1)

    with torch.no_grad():
        ends = ncode.solve(van_der_pol, x, 0.0, t1, theta=mu).x
    block = ncode.NCODE(ncode.dynamics.MLP(2, hidden=32, controlled=(), context=1), ncode.DataControl(), rtol=1e-4)

    def loss(indices: Tensor) -> tuple[Tensor, Tensor]:
        solution = block.solve(x[indices], context=mu[indices], t1=t1[indices])
        return F.smooth_l1_loss(solution.x, ends[indices]), solution.stats.nfe

    title = f"durations: {samples:,} oscillators, MLP with 32 hidden units"
    return Workload(title, samples, loss, list(block.parameters()), 1024, 3e-3)


def mnist(options: argparse.Namespace) -> Workload:
    """Digits of MNIST, halved in size, by the paper's classifier."""
    from ncode_lab.data import load

    from ncode.models.classifier import Classifier, gamma

    digits = load("mnist", data_dir=options.data_dir).train
    x, y = (part[: 2048 if options.quick else 32768] for part in (digits.images, digits.labels))
    dynamics = ncode.dynamics.Augmented(ncode.dynamics.ConvBlock(2, filters=4), zeros=1)
    block = ncode.NCODE(dynamics, ncode.OpenLoop(gamma("conv", (1, 14, 14))), rtol=1e-4, atol=1e-4)
    model = Classifier(block, (1, 28, 28), shrink=2).set_normalisation(torch.tensor([0.13]), torch.tensor([0.31]))

    def loss(indices: Tensor) -> tuple[Tensor, Tensor]:
        output = model.classify(x[indices])
        return F.cross_entropy(output.logits, y[indices]), output.nfe

    return Workload(f"MNIST: {len(x):,} digits, convolutions", len(x), loss, list(model.parameters()), 256, 2e-3)


WORKLOADS = {"durations": durations, "annuli": annuli, "mnist": mnist}


def train(work: Workload, epochs: int, seed: int, window: int) -> list[dict[str, Any]]:
    """Train; the loss, the seconds and the NFE of all samples for each epoch."""
    optimizer = torch.optim.Adam(work.parameters, lr=work.lr)
    sampler = BalancedBatchSampler(work.samples, work.batch_size, seed=seed, window=window)
    records = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        nfe, total, start = torch.zeros(work.samples, dtype=torch.int32), 0.0, time.process_time()
        for indices in map(torch.tensor, sampler):
            loss, used = work.loss(indices)
            sampler.update(indices, used)
            nfe[indices] = used.int()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(indices)
        found = {"loss": total / work.samples, "seconds": time.process_time() - start}
        found |= {"mean_nfe": float(nfe.float().mean()), "largest_nfe": int(nfe.max())}
        print(f"  epoch {epoch + 1}: " + ", ".join(f"{name} {value:.4g}" for name, value in found.items()), flush=True)
        records.append({**found, "nfe": pack(nfe)})
    return records


def pack(nfe: Tensor) -> str:
    """Counts as text: 16 bits each, compressed by zlib, in base64."""
    return base64.b64encode(zlib.compress(nfe.to(torch.int16).numpy().tobytes(), 9)).decode()


def unpack(text: str) -> Tensor:
    """Counts from what `pack` has made of them."""
    return torch.frombuffer(bytearray(zlib.decompress(base64.b64decode(text))), dtype=torch.int16).float()


def time_batches(work: Workload, nfe: Tensor, size: int, count: int) -> dict[str, float]:
    """Time training steps of single ranks, and fit seconds = a * largest NFE + b * sum of NFE.

    Batches are drawn from neighbours in the order of NFE, few or many, so that the largest and the sum vary.
    """
    order, rows, seconds = nfe.argsort(), [], []
    for _ in range(count):
        width = int(torch.randint(size, len(order) + 1, ()))
        first = int(torch.randint(0, len(order) - width + 1, ()))
        start = time.process_time()  # the machine may be shared: other processes do not count
        loss, used = work.loss(order[first + torch.randperm(width)[:size]])
        loss.backward()
        seconds.append(time.process_time() - start)
        rows.append((float(used.max()), float(used.sum())))
    costs, times = torch.tensor(rows, dtype=torch.float64), torch.tensor(seconds, dtype=torch.float64)
    factors = torch.linalg.lstsq(costs, times[:, None]).solution[:, 0]
    of_largest, of_sum = (factors * costs.mean(0) / times.mean()).tolist()
    a, b = factors.clamp_min(0).tolist()
    return {"seconds_per_largest": a, "seconds_per_sum": b, "share_of_largest": of_largest, "share_of_sum": of_sum}


def efficiency(times: Tensor) -> float:
    """The mean time over that of the slowest rank, from times (steps, ranks)."""
    return float(times.mean() / times.amax(1).mean())


def simulate(epochs: list[Tensor], timed: dict[str, float], size: int, seed: int) -> list[dict[str, Any]]:
    """Deal recorded epochs to ranks: efficiency and time if a batch costs its sum of NFE, its largest, or both."""
    rows = []
    for ranks in (ranks for ranks in RANKS if ranks * size <= len(epochs[0])):
        for name, window in SAMPLERS.items():
            costs = deal(epochs, ranks, size, window, seed)  # for each epoch (steps, ranks, samples)
            row: dict[str, Any] = {"ranks": ranks, "sampler": name}
            for kind, (a, b) in {
                "sum": (0.0, 1.0),
                "largest": (1.0, 0.0),
                "measured": (timed["seconds_per_largest"], timed["seconds_per_sum"]),
            }.items():
                times = [a * each.amax(2) + b * each.sum(2) for each in costs]
                row[kind] = {
                    "efficiency": efficiency(torch.cat(times)),
                    "of_each_epoch": [round(efficiency(each), 4) for each in times],
                    "time": float(torch.cat(times).amax(1).sum()),
                }
            rows.append(row)
    return rows


def deal(epochs: list[Tensor], ranks: int, size: int, window: int | None, seed: int) -> list[Tensor]:
    """The NFE of the samples that each rank gets, from the second epoch on; at random without a window."""
    samples = len(epochs[0])
    options: dict[str, Any] = {"window": window or 1, "seed": seed, "drop_last": True, "ranks": ranks}
    sampler, costs = BalancedBatchSampler(samples, ranks * size, **options), []
    for epoch in range(1, len(epochs)):
        if window:
            sampler.update(torch.arange(samples), epochs[epoch - 1])
        sampler.set_epoch(epoch)
        costs.append(epochs[epoch][sampler.deal()])
    return costs


def draw(workloads: dict[str, Any], path: Path) -> None:
    """One row per training: efficiency for both kinds of cost, and the speed-up for the cost that was measured."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 2.7 * len(workloads)), layout="constrained")
    panels = figure.subplots(len(workloads), 3, sharex=True, sharey="col", squeeze=False)
    for row, work in zip(panels, workloads.values(), strict=True):
        rows = work["efficiency"]
        random = {it["ranks"]: it["measured"]["time"] for it in rows if it["sampler"] == "random"}
        for name, colour in COLOURS.items():
            mine = [it for it in rows if it["sampler"] == name]
            values = [[it[kind]["efficiency"] for it in mine] for kind in ("sum", "largest")]
            values.append([random[it["ranks"]] / it["measured"]["time"] for it in mine])
            for panel, points in zip(row, values, strict=True):
                panel.plot([it["ranks"] for it in mine], points, "o-", color=colour, label=name, markersize=4)
        row[0].set_ylabel(work["title"].partition(":")[0])
        for panel in row:
            panel.set_xscale("log", base=2)
            panel.set_xticks(RANKS, list(map(str, RANKS)))
            panel.grid(color="0.9")
    panels[0, 0].set_title("efficiency if time follows the sum", fontsize="medium")
    panels[0, 1].set_title("efficiency if time follows the largest", fontsize="medium")
    panels[0, 2].set_title("speed-up for the measured cost", fontsize="medium")
    for panel in panels[-1]:
        panel.set_xlabel("ranks")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(COLOURS))
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def commit() -> str:
    """The commit of this source tree, with "-dirty" if tracked files have changed; "unknown" without git."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return run.stdout.strip() or "unknown"


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.balance", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), help="trainings (all)")
    parser.add_argument("--data-dir", type=Path, help="the folder that has MNIST (that of the lab)")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--per-rank", type=int, default=32, help="samples per rank and step (32)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--recorded", action="store_true", help="use the epochs in the JSON file, without training")
    parser.add_argument("--quick", action="store_true", help="2,048 samples: does all run?")
    parser.add_argument("--json", type=Path, default=Path("results/balance.json"))
    parser.add_argument("--plot", type=Path, default=Path("docs/balance.svg"))
    return parser.parse_args()


def predictability(epochs: list[Tensor]) -> list[float]:
    """The correlation of the NFE of each epoch with that of the epoch before it, over samples."""
    return [round(float(torch.corrcoef(torch.stack(pair))[0, 1]), 4) for pair in itertools.pairwise(epochs)]


def main() -> int:
    options = parse()
    prepare("cpu", 1)
    kept = json.loads(options.json.read_text(encoding="utf-8"))["workloads"] if options.json.exists() else {}
    if not options.recorded:
        shown = [Path(each).name if Path(each).is_absolute() else each for each in sys.argv[1:]]
        made = {"command": shlex.join(["python", "-m", "benchmarks.balance", *shown]), "commit": commit()}
        for name in options.data:
            print(name, flush=True)
            torch.manual_seed(options.seed)
            work = WORKLOADS[name](options)
            epochs = train(work, options.epochs, options.seed, window=1)
            timed = time_batches(work, unpack(epochs[-1]["nfe"]), options.per_rank, 20 if options.quick else 300)
            settings = {"title": work.title, "seed": options.seed, "per_rank": options.per_rank}
            print("  in one process, with batches of similar samples:")
            torch.manual_seed(options.seed)
            again = train(WORKLOADS[name](options), options.epochs, options.seed, window=8)
            similar = {key: [epoch[key] for epoch in again] for key in ("loss", "seconds", "mean_nfe")}
            kept[name] = {**made, **settings, **describe("cpu", 1), "time_of_batch": timed, "window_8": similar}
            kept[name]["epochs"] = epochs
    workloads = {name: kept[name] for name in WORKLOADS if name in kept}
    for name, found in workloads.items():
        print(name)
        nfe = [unpack(epoch["nfe"]) for epoch in found["epochs"]]
        found["correlation_with_epoch_before"] = predictability(nfe)
        found["efficiency"] = simulate(nfe, found["time_of_batch"], found["per_rank"], found["seed"])
        for row in found["efficiency"]:
            numbers = ", ".join(f"{kind} {row[kind]['efficiency']:.3f}" for kind in ("sum", "largest", "measured"))
            print(f"  {row['ranks']:4} ranks, {row['sampler']:19} {numbers}")
    options.json.write_text(json.dumps({"workloads": workloads}, indent=1) + "\n", encoding="utf-8")
    draw(workloads, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
