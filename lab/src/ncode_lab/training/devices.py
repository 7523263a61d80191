"""Devices, processes and seeds: what a run sets up before its first step."""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
from collections.abc import Sequence
from importlib import import_module
from subprocess import Popen, TimeoutExpired
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ncode import InputError

from .options import RunOptions
from .progress import check_tensorboard

if TYPE_CHECKING:
    from lightning_fabric import Fabric

PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed", "64": "64-true"}
SECONDS_TO_EXIT = 10


def start_fabric(options: RunOptions) -> Fabric:
    """Check the requested devices and start one process per device.

    With several devices, this program is started again for each of them, and all run the same code from the beginning.

    >>> fabric = start_fabric(RunOptions(device="cpu"))
    >>> fabric.device, fabric.world_size
    (device(type='cpu'), 1)
    """
    kind = _device_kind(options)
    if options.graph:
        _check_graph(options, kind)
    if options.tensorboard:
        check_tensorboard()
    _set_global_modes(options)
    several = options.devices * options.nodes > 1
    module = _import_fabric()
    fabric = module.Fabric(
        accelerator=kind,
        devices=options.devices,
        num_nodes=options.nodes,
        precision=PRECISIONS[options.precision],
        strategy=_ddp(module) if several else "auto",
    )
    fabric.launch()
    if several:
        atexit.register(_end_processes, getattr(fabric.strategy.launcher, "procs", []))
    return fabric


def is_first_process() -> bool:
    """Whether this is the one process that prints, of all processes of the run.

    >>> is_first_process()
    True
    """
    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0


def broadcast(value: Any, fabric: Fabric | None) -> Any:
    """Send the first process's value to all processes of a run.

    >>> broadcast({"step": 3}, fabric=None)
    {'step': 3}
    """
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
    if options.devices * options.nodes > 1:
        raise InputError(
            f"--graph works on one device, but {options.devices * options.nodes} were requested: leave it out,"
            " or choose --devices 1 --nodes 1"
        )
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


def _import_fabric() -> Any:
    """Import Lightning Fabric, which two packages provide under two names."""
    for name in ("lightning_fabric", "lightning.fabric"):
        try:
            module = import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise
            continue
        # Its info messages only repeat the options.
        logging.getLogger(name).setLevel(logging.WARNING)
        return module
    raise InputError("training needs Lightning Fabric: pip install pytorch-lightning")


def _ddp(module: Any) -> Any:
    strategies = import_module(f"{module.__name__}.strategies")
    # A loss need not use every parameter in every step.
    return strategies.DDPStrategy(find_unused_parameters=True)


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
    """The slice of every tensor in a batch that one device gets, along the first axis. Scalars go to all devices.

    >>> shard_batch({"x": torch.arange(6), "noise": 0.1}, rank=1, devices=3)
    {'x': tensor([2, 3]), 'noise': 0.1}
    """
    if devices == 1:
        return batch
    sizes = set(_batch_sizes(batch))
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
    part = size // devices
    return _slice_tensors(batch, slice(rank * part, (rank + 1) * part))


def _batch_sizes(batch: Any) -> list[int]:
    if isinstance(batch, Tensor):
        return [batch.shape[0]] if batch.dim() else []
    if isinstance(batch, dict):
        batch = list(batch.values())
    if isinstance(batch, tuple | list):
        return [size for each in batch for size in _batch_sizes(each)]
    return []


def _slice_tensors(batch: Any, part: slice) -> Any:
    if isinstance(batch, Tensor):
        return batch[part] if batch.dim() else batch
    if isinstance(batch, dict):
        return {key: _slice_tensors(each, part) for key, each in batch.items()}
    if isinstance(batch, tuple | list):
        parts = [_slice_tensors(each, part) for each in batch]
        # A named tuple takes its fields one by one.
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    return batch


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
    """Seed torch's random numbers on all devices.

    >>> seed_all(0, "weights")
    >>> first = torch.rand(3)
    >>> seed_all(0, "weights")
    >>> bool((first == torch.rand(3)).all())
    True
    """
    torch.manual_seed(derive_seed(*keys))


def seed_step(*keys: int | str) -> None:
    """Seed torch's random numbers on the devices in use, fast enough for every training step.

    Where CUDA is available but unused, `torch.manual_seed` takes a millisecond.

    >>> seed_step(0, "step", 1)
    """
    seed = derive_seed(*keys)
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
