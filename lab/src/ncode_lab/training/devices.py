"""Devices, processes and seeds: what a run sets up before its first step."""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
from collections.abc import Sequence
from subprocess import Popen, TimeoutExpired
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ncode import InputError

from .options import RunOptions
from .progress import import_summary_writer

if TYPE_CHECKING:
    from lightning_fabric import Fabric

PRECISIONS: dict[str, Any] = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed", "64": "64-true"}
SECONDS_TO_EXIT = 10


def start_fabric(options: RunOptions) -> Fabric:
    """Check the requested devices and start one process per device.

    With several devices, this program is started again for each of them, and all run the same code from the beginning.
    """
    # Imported here, since it takes a second, and reading results does not need it.
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy

    kind = _device_kind(options)
    if options.graph:
        _check_graph(options, kind)
    if options.tensorboard:
        import_summary_writer()  # or refuse it before any work
    _set_global_modes(options)
    several = options.devices * options.nodes > 1
    # Its info messages only repeat the options.
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    fabric = Fabric(
        accelerator=kind,
        devices=options.devices,
        num_nodes=options.nodes,
        precision=PRECISIONS[options.precision],
        # A loss need not use every parameter in every step.
        strategy=DDPStrategy(find_unused_parameters=True) if several else "auto",
    )
    fabric.launch()
    if several:
        atexit.register(_end_processes, getattr(fabric.strategy.launcher, "procs", []))
    return fabric


def is_first_process() -> bool:
    """Whether this is the one process that prints, of all processes of the run."""
    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0


def broadcast(value: Any, fabric: Fabric | None) -> Any:
    """Send the first process's value to all processes of a run."""
    return value if fabric is None or fabric.world_size == 1 else fabric.broadcast(value)


def _device_kind(options: RunOptions) -> str:
    available = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if options.device == "cuda" and not available:
        raise InputError("device 'cuda' was requested, but torch finds no CUDA device: choose --device cpu, or auto")
    kind = "cuda" if available and options.device != "cpu" else "cpu"
    if kind == "cuda" and options.devices > available:
        raise InputError(
            f"{options.devices} CUDA devices were requested, but there are {available}: choose --devices {available}"
        )
    if kind == "cpu" and options.precision == "16":
        raise InputError("precision '16' needs a CUDA device: choose --precision bf16, or 32")
    return kind


def _check_graph(options: RunOptions, kind: str) -> None:
    if kind != "cuda":
        raise InputError("--graph records a CUDA graph, but this run is on the CPU: leave it out")
    if (count := options.devices * options.nodes) > 1:
        raise InputError(f"--graph works on one device, but {count} were requested: leave it out, or use one device")
    if options.precision == "16":
        raise InputError(
            "--graph does not work with precision '16', whose steps check on the CPU whether gradients are finite:"
            " choose --precision bf16, or leave --graph out"
        )


def _set_global_modes(options: RunOptions) -> None:
    if options.deterministic:
        # cuBLAS reads it when it starts, and is not deterministic without it.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(options.deterministic)
    # Data that a task creates then have the precision of its model.
    torch.set_default_dtype(torch.float64 if options.precision == "64" else torch.float32)


def _end_processes(others: Sequence[Popen]) -> None:
    """End the processes that this one has started, which would wait for it if it ends with an error."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    for process in others:
        try:
            process.wait(SECONDS_TO_EXIT)
        except TimeoutExpired:
            process.kill()


# Batches of several devices.


def shard_batch(batch: Any, rank: int, devices: int) -> Any:
    """The slice of every tensor in a batch that one device gets, along the first axis. Scalars go to all devices."""
    if devices == 1:
        return batch
    sizes = {each.shape[0] for each in pytree.tree_leaves(batch) if isinstance(each, Tensor) and each.dim()}
    if len(sizes) != 1:
        raise InputError(
            f"the tensors of a batch must have one length to be split over {devices} devices; given {sorted(sizes)}"
        )
    size = sizes.pop()
    if size % devices:
        raise InputError(
            f"a batch of {size} cannot be split equally over {devices} devices: "
            f"choose a batch size that {devices} divides, or another number of --devices"
        )
    part = slice(rank * size // devices, (rank + 1) * size // devices)
    return pytree.tree_map(lambda each: each[part] if isinstance(each, Tensor) and each.dim() else each, batch)


# Random numbers as a function of their purpose: there is no generator state to save and restore.


def derive_seed(*keys: int | str) -> int:
    """A seed computed from several keys by a hash, so that different keys give unrelated seeds.

    >>> derive_seed(0, "step", 1) == derive_seed(0, "step", 1), derive_seed(0, "step", 1) == derive_seed(0, "step", 2)
    (True, False)
    """
    digest = hashlib.blake2b(repr(keys).encode(), digest_size=8).digest()
    # torch's seeds are signed: one bit less.
    return int.from_bytes(digest, "little") >> 1


def seed_all(*keys: int | str) -> None:
    """Seed torch's random numbers on all devices."""
    torch.manual_seed(derive_seed(*keys))


def seed_step(*keys: int | str) -> None:
    """The same for every training step: `torch.manual_seed` takes a millisecond where CUDA is available but unused."""
    seed = derive_seed(*keys)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
