"""The time of a training step of the CIFAR-10 autoencoders, and the share of the latent flow in it.

    python -m benchmarks.lab.autoencoder [--device cuda] [--json lab/results/autoencoder-cuda.json]

The aims are 50 epochs within five minutes on one H200, and a flow that takes less than a tenth of a step. A step is
that of `ncode run autoencode --full --dataset cifar10 --precision bf16 --graph`, with its augmentation and Adam, on
drawn images: their content does not matter here. The flow, from the control to the code, is also timed alone, forward
and backward.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from ncode_lab.data import ImageSets, draw_shapes
from ncode_lab.experiments.coding.autoencode import Autoencode
from ncode_lab.experiments.coding.settings import FULL
from ncode_lab.experiments.coding.training import Code
from ncode_lab.training import RunOptions, Trial
from ncode_lab.training.devices import start_fabric
from ncode_lab.training.engine import Engine
from torch import Tensor

from ncode.models import AutoNCODE

from .record import Stopwatch, write_record

IMAGES = 48_000  # per epoch: the training images of CIFAR-10 without the held-out ones
EPOCHS = 50


def main() -> None:
    """Measure, print, and write JSON on request."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", nargs="+", default=["auton-code", "ae", "ae-wide", "vae"])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--width", type=float, default=1.0, help="factor of the coders' widths, for trials on a CPU")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    rows = [measure(kind, given) for kind in given.models]
    found = {"seed": 0, "batch": given.batch, "width": given.width, "models": rows}
    write_record("autoencoder", found, given.device, given.json)


def measure(kind: str, given: argparse.Namespace) -> dict[str, str | float]:
    """Time the step of one model, and its flow if it has one."""
    cuda = torch.device(given.device).type == "cuda"
    torch.backends.cudnn.benchmark = cuda
    own = {"dataset": "cifar10", "models": (kind,), "batch": given.batch, "width": given.width}
    settings = Autoencode(**{**FULL, **own})
    images = draw_shapes(8 * given.batch, generator=0)
    task = Code(settings, Trial(kind, "drawn", 0), ImageSets(images, images))
    fabric = start_fabric(RunOptions(device=given.device, precision="bf16", graph=cuda))
    engine = Engine(task, fabric, graph=cuda)
    generator = torch.Generator(fabric.device).manual_seed(0)

    def step(number: int) -> None:
        engine.step(task.batch(number, generator), lambda loss: None)

    found = milliseconds(step, given)
    epoch = found * IMAGES / given.batch / 1000
    row: dict[str, str | float] = {
        "model": kind,
        "ms per step": found,
        "s per epoch": epoch,
        f"min, {EPOCHS} epochs": EPOCHS * epoch / 60,
    }
    if isinstance(task.model, AutoNCODE):
        flow = milliseconds(flow_call(task.model, given.batch, cuda), given)
        row |= {"ms of the flow": flow, "part of the step": flow / found}
    row = {name: each if isinstance(each, str) else round(each, 3) for name, each in row.items()}
    print(row, flush=True)
    return row


def flow_call(model: AutoNCODE, batch: int, cuda: bool) -> Callable[[int], object]:
    """Return the flow of a batch, forward and backward; on CUDA as a recorded graph, as within a step."""
    place = next(model.parameters())
    control = model.norm(torch.randn(batch, model.latent, model.nonzeros, device=place.device)).detach()
    control.requires_grad_()

    def both() -> Tensor:
        return torch.autograd.grad(model.flow(control).square().sum(), control)[0]

    if not cuda:
        return lambda number: both()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            both()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        both()
    return lambda number: graph.replay()


def milliseconds(run: Callable[[int], object], given: argparse.Namespace) -> float:
    """Time one call, after warming up."""
    warm = max(2, given.steps // 10)
    for number in range(warm):
        run(number)
    clock = Stopwatch(given.device)
    for number in range(warm, warm + given.steps):
        run(number)
    return 1000 * clock.lap() / given.steps


if __name__ == "__main__":
    main()
