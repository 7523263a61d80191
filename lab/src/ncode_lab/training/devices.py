"""Devices, precision and processes: one Fabric a run."""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Sequence
from importlib import import_module
from subprocess import Popen, TimeoutExpired
from typing import TYPE_CHECKING, Any

import torch

from ncode import InputError

from .options import RunOptions
from .tensorboard import check_tensorboard

if TYPE_CHECKING:
    from lightning_fabric import Fabric

PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed", "64": "64-true"}
SECONDS_TO_LEAVE = 10


def start_fabric(options: RunOptions) -> Fabric:
    """The devices that the options ask for, with one process each, all started.

    With several devices, this program is started again for each of them: all run the same code from the beginning.

    >>> fabric = start_fabric(RunOptions(device="cpu"))
    >>> fabric.device, fabric.world_size
    (device(type='cpu'), 1)
    """
    kind = _kind(options)
    if options.graph:
        _check_graph(options, kind)
    if options.tensorboard:
        check_tensorboard()
    _set_modes(options)
    several = options.devices * options.nodes > 1
    module = _lightning()
    fabric = module.Fabric(
        accelerator=kind,
        devices=options.devices,
        num_nodes=options.nodes,
        precision=PRECISIONS[options.precision],
        strategy=_ddp(module) if several else "auto",
    )
    fabric.launch()
    if several:
        atexit.register(_leave, getattr(fabric.strategy.launcher, "procs", []))
    return fabric


def first_process() -> bool:
    """Whether this is the process that talks, of all that run the same.

    >>> first_process()
    True
    """
    return not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0


def _kind(options: RunOptions) -> str:
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if options.device == "cuda" and not there:
        raise InputError("device 'cuda' was asked for, and torch finds none here: choose --device cpu, or auto")
    kind = "cuda" if there and options.device != "cpu" else "cpu"
    if kind == "cuda" and options.devices > there:
        raise InputError(
            f"{options.devices} CUDA devices were asked for, and there are {there}: choose --devices {there}"
        )
    if kind == "cpu" and options.precision == "16":
        raise InputError("precision '16' needs a CUDA device: choose --precision bf16, or 32")
    return kind


def _check_graph(options: RunOptions, kind: str) -> None:
    """Refuse what cannot be recorded."""
    if kind != "cuda":
        raise InputError("--graph records what a CUDA device does, and this run is on the CPU: leave it out")
    if options.devices * options.nodes > 1:
        raise InputError(
            f"--graph is for one device, and {options.devices * options.nodes} were asked for: leave it out,"
            " or choose --devices 1 --nodes 1"
        )
    if options.precision == "16":
        raise InputError(
            "--graph cannot be used with precision '16', whose steps look at whether a gradient is finite: choose"
            " --precision bf16, or leave --graph out"
        )


def _set_modes(options: RunOptions) -> None:
    if options.deterministic:
        # cuBLAS reads it when it starts, and is not deterministic without.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(options.deterministic)
    # So that data which a task makes have the precision of its model.
    torch.set_default_dtype(torch.float64 if options.precision == "64" else torch.float32)


def _lightning() -> Any:
    """Fabric comes with either of two packages, under two names."""
    for name in ("lightning_fabric", "lightning.fabric"):
        try:
            module = import_module(name)
        except ModuleNotFoundError as error:
            if error.name not in (name, name.partition(".")[0]):
                raise
            continue
        # Its notes on what it was asked to do are nothing new to who asked.
        logging.getLogger(name).setLevel(logging.WARNING)
        return module
    raise InputError("training needs Lightning Fabric: pip install pytorch-lightning")


def _ddp(module: Any) -> Any:
    strategies = import_module(f"{module.__name__}.strategies")
    # A loss need not use every parameter in every step.
    return strategies.DDPStrategy(find_unused_parameters=True)


def _leave(others: Sequence[Popen]) -> None:
    """End the processes that this one has started, where it ends with an error and they wait for it."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    for each in others:
        try:
            each.wait(SECONDS_TO_LEAVE)
        except TimeoutExpired:
            each.kill()
